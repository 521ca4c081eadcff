"""Where the time of a training step goes: clocks around the public seams of replay."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from sphere_replay.replay import Draw, Replay, SphereSelection, Weighting
from sphere_replay.replay.controller import Scorer
from sphere_replay.scoring import Scores

PARTS = ("scoring", "allocation", "draw", "rest")
"""Parts of a step with SPHERE."""


class Stopwatch:
    """Seconds by part; while an inner part runs, the clock of the outer one stands still."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._clock = clock
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Inside, time goes to this part."""
        self._charge()
        self._running.append(name)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def _charge(self) -> None:
        now = self._clock()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


@contextmanager
def divided(watch: Stopwatch) -> Iterator[None]:
    """Inside, the watch divides the time of training steps among PARTS."""
    draw, weigh = Replay.draw, SphereSelection.weigh

    def timed_draw(replay: Replay, count: int, scorer: Scorer) -> Draw:
        def timed_scorer(slots: Tensor) -> Scores:
            with watch.part("scoring"):
                return scorer(slots)

        with watch.part("draw"):
            return draw(replay, count, timed_scorer)

    def timed_weigh(
        selection: SphereSelection, scores: Scores, scale: float | None, source: torch.Generator
    ) -> Weighting:
        with watch.part("allocation"):
            return weigh(selection, scores, scale, source)

    with (
        mock.patch.object(Replay, "draw", timed_draw),
        mock.patch.object(SphereSelection, "weigh", timed_weigh),
        watch.part("rest"),
    ):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use this many threads; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fair_clock() -> Callable[[], float]:
    """On one thread the processor's own time, which other work does not lengthen; else seconds."""
    precise = time.get_clock_info("process_time").resolution < 1e-5
    alone = torch.get_num_threads() == 1
    return time.process_time if precise and alone else time.perf_counter
