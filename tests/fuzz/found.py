"""What looking at a case gives."""

from typing import NamedTuple


class Found(NamedTuple):
    """What is wrong with one case, and how many checks it took to find out."""

    problems: list[str]
    checks: int
