"""Things that happen to a run at a step, as a test tells them to."""

import signal
from collections.abc import Callable

Event = Callable[[int], None]


class AccidentError(Exception):
    """Whatever may go wrong in the middle of a run."""


def nothing(step: int) -> None:
    """An uneventful step."""


def at(steps: set[int], event: Callable[[], None]) -> Event:
    """An event at the given steps, once each."""
    left = set(steps)

    def happen(step: int) -> None:
        if step in left:
            left.discard(step)
            event()

    return happen


def accident() -> None:
    raise AccidentError


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)
