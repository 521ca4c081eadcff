"""Errors of usage: bad input from a person, answered in a sentence."""

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Bad input from the command line; its message says what to do."""


class DataError(ValueError):
    """Data that cannot be had or read as asked; the message says what to do."""


class Interrupted(Exception):  # noqa: N818  # not an error: the user asked for it
    """Somebody pressed Ctrl-C, and everything has been saved."""


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no GPU here: choose --device cpu")


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """A sentence for a name that does not exist, with the closest ones that do."""
    names = list(known)
    close = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
    return f"unknown {kind} {name!r}: {hint}"
