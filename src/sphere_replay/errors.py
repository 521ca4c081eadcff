"""Errors that are the user's to fix, answered in a sentence that says what to do."""

import difflib
import sys
import warnings
from collections.abc import Iterable
from types import FrameType


class UserError(Exception):
    """Base of every error whose message is for the user; commands print it without a traceback."""

    exit_code = 2
    afterword = ""
    """What commands print after the message."""


class UsageError(UserError):
    """Bad input from the command line."""


class ConfigError(UserError, ValueError):
    """A configuration that cannot run; the message says which value and what to do."""


class DataError(UserError, ValueError):
    """Data that cannot be had or read as asked."""


class DivergenceError(UserError, RuntimeError):
    """A loss stopped being a number."""

    exit_code = 1
    afterword = "Checkpoints before it are kept."


class Interrupted(Exception):  # noqa: N818  # not an error: the user asked for it
    """Somebody pressed Ctrl-C, and everything has been saved."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """A sentence for a name that does not exist, with the closest ones that do."""
    names = list(known)
    close = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
    return f"unknown {kind} {name!r}: {hint}"


def caution(message: str) -> None:
    """A warning of the line that called the package, however deep inside it is noticed."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
