"""Where the time of a training step goes: clocks around the public seams of replay."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from benchmarks.harness import Cell
from benchmarks.timing import fair_clock
from sphere_replay.replay import Draw, Engine, Labels, Scorer, SphereSelection, Weighting
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
    draw, weigh = Engine.draw, SphereSelection.weigh

    def timed_draw(
        replay: Engine, count: int, scorer: Scorer, labels: Labels | None = None
    ) -> Draw:
        def timed_scorer(slots: Tensor, *, increments: bool = True) -> Scores:
            with watch.part("scoring"):
                return scorer(slots, increments=increments)

        with watch.part("draw"):
            return draw(replay, count, timed_scorer, labels)

    def timed_weigh(
        selection: SphereSelection, scores: Scores, scale: float | None, source: torch.Generator
    ) -> Weighting:
        with watch.part("allocation"):
            return weigh(selection, scores, scale, source)

    with (
        mock.patch.object(Engine, "draw", timed_draw),
        mock.patch.object(SphereSelection, "weigh", timed_weigh),
        watch.part("rest"),
    ):
        yield


class DividedTurn:
    """A turn of training steps, divided among PARTS whenever it is taken."""

    def __init__(self, turn: Callable[[], object]) -> None:
        self._turn = turn
        self._shares: list[dict[str, float]] = []

    def __call__(self) -> None:
        """Take the turn."""
        watch = Stopwatch(fair_clock())
        with divided(watch):
            self._turn()
        whole = sum(watch.seconds.values())
        self._shares.append({part: seconds / whole for part, seconds in watch.seconds.items()})

    @property
    def shares(self) -> dict[str, float]:
        """Of PARTS, adding up to 1: means over the turns without the first, a warm-up."""
        counted = self._shares[1:]
        return {part: sum(turn[part] for turn in counted) / len(counted) for part in PARTS}

    def cells(self, whole: Cell) -> list[Cell]:
        """The parts of a cell that was measured with these turns; they add up to it."""
        return [
            {
                "figure": f"its {part}",
                "against": whole["against"],
                "part_of": whole["figure"],
                "seconds": share * whole["seconds"],
                "ratio": share * whole["ratio"],
            }
            for part, share in self.shares.items()
        ]
