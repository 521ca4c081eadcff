"""Runs programs that nobody has read against tests, and says which tests they pass.

See `docs/sandbox.md` for what is promised, and what is not.
"""

from .limits import Limits, Verdict
from .sandbox import Job, Sandbox, SandboxError, collect

__all__ = ["Job", "Limits", "Sandbox", "SandboxError", "Verdict", "collect"]
