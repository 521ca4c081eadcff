"""Runs programs that nobody has read against tests, and says which tests they pass.

See `docs/sandbox.md` for what is promised, and what is not.
"""

from .limits import JUDGES, Limits, Verdict
from .sandbox import Sandbox, SandboxError, Trial

__all__ = ["JUDGES", "Limits", "Sandbox", "SandboxError", "Trial", "Verdict"]
