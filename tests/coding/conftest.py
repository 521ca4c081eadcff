"""No test of this folder reaches the network."""

import os

# Read once, when the hub client is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
