"""Training steps in turns: a bare loop, the runner, and the runner with SPHERE."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bare import BareReplay
from benchmarks.stopwatch import PARTS, Stopwatch, divided, fair_clock
from benchmarks.timing import interleave
from sphere_replay.vision.datasets import ImageData
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve


@dataclass(frozen=True)
class StepTimes:
    """Median seconds of a step by contestant, and how those of `sphere` divide."""

    seconds: dict[str, float]
    """Of `bare`, `er` and `sphere`."""
    shares: dict[str, float]
    """Of PARTS, adding up to 1: means over the turns."""
    batch: int
    """Stream images of a step."""
    rounds: int


def time_steps(
    data: ImageData, *, capacity: int, steps: int, least_rounds: int, least_seconds: float
) -> StepTimes:
    """Time turns of `steps` steps each on the first task of MNIST's stream.

    The task is gone through over and over, without its first and its last step: a task's end is
    for evaluations.
    """
    runner, sphere = (_job(data, select, capacity) for select in ("uniform", "sphere"))
    batch, replay_batch = runner.config.batch, runner.config.replay_batch
    batches = list(runner.stream.batches(0, batch))
    bare = BareReplay(data.train_images, runner.stream.labels, capacity, replay_batch)
    shares: list[dict[str, float]] = []

    def turns(step: Callable[[int], object], start: float) -> Callable[[], None]:
        # Everyone starts elsewhere: the second would find the first one's images in the cache.
        inner = range(1, len(batches) - 1)
        first = int(start * len(inner))
        order = itertools.cycle([*inner[first:], *inner[:first]])

        def turn() -> None:
            for index in itertools.islice(order, steps):
                step(index)

        return turn

    turn_of_sphere = turns(sphere.advance, 2 / 3)

    def divided_turn() -> None:
        watch = Stopwatch(fair_clock())
        with divided(watch):
            turn_of_sphere()
        whole = sum(watch.seconds.values())
        shares.append({part: seconds / whole for part, seconds in watch.seconds.items()})

    timing = interleave(
        {
            "bare": turns(lambda index: bare.step(batches[index]), 0),
            "er": turns(runner.advance, 1 / 3),
            "sphere": divided_turn,
        },
        least_rounds=least_rounds,
        least_seconds=least_seconds,
        clock=fair_clock(),
    )
    counted = shares[1:]  # the first turn is the warm-up
    return StepTimes(
        {name: seconds / steps for name, seconds in timing.seconds.items()},
        {part: sum(turn[part] for turn in counted) / len(counted) for part in PARTS},
        batch,
        timing.rounds,
    )


def _job(data: ImageData, select: str, capacity: int) -> VisionJob:
    job = VisionJob(resolve("mnist", "er", select, capacity=capacity, evaluate_every=None), data)
    job.advance(0)
    return job
