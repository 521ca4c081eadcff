"""Replay in Mammoth: one model file, `er_sphere.py`, that is put into a checkout.

python -m sphere_replay.integrations.mammoth path/to/mammoth
"""

from pathlib import Path

MODEL_FILE = Path(__file__).with_name("er_sphere.py")
"""Imports what only a checkout has; nothing here imports it."""
