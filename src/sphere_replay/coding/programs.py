"""The program in what a model wrote: the last code block, or all of it."""

import re

_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE
)
_PYTHON = ("", "python", "python3", "py")


def extract_program(completion: str) -> str:
    """The program of a completion.

    The last block between fences that is called Python or nothing at all; one that was cut off
    counts. Without fences all of the text is the program, which is what base models write.
    """
    blocks = [code for name, code in _BLOCK.findall(completion) if name.lower() in _PYTHON]
    program = blocks[-1] if blocks else completion
    return program if program.strip() else ""


def text_of(completion: object) -> str:
    """The text of a completion as TRL hands it out: plain, or a conversation of one message."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list) and completion and isinstance(completion[-1], dict):
        return str(completion[-1].get("content") or "")
    raise TypeError(f"a completion is a text or a list of messages, got {completion!r}")
