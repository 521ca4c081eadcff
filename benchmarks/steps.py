"""Training steps in turns: a bare loop, the runner, and the runner with SPHERE."""

import itertools
from collections.abc import Callable

from benchmarks.bare import BareReplay
from benchmarks.harness import Cell, Plan
from benchmarks.stopwatch import DividedTurn
from sphere_replay.vision.datasets import ImageData
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve


def step_cells(plan: Plan, data: ImageData, *, capacity: int, steps: int) -> list[Cell]:
    """The runner against the bare loop, and SPHERE with its parts against the runner.

    Turns are `steps` steps each on the first task of MNIST's stream. The task is gone through over
    and over, without its first and its last step: a task's end is for evaluations.
    """
    runner, sphere = (_job(data, select, capacity) for select in ("uniform", "sphere"))
    batch, replay_batch = runner.config.batch, runner.config.replay_batch
    batches = list(runner.stream.batches(0, batch))
    bare = BareReplay(data.train_images, runner.stream.labels, capacity, replay_batch)

    def turns(step: Callable[[int], object], start: float) -> Callable[[], None]:
        # Everyone starts elsewhere: the second would find the first one's images in the cache.
        inner = range(1, len(batches) - 1)
        first = int(start * len(inner))
        order = itertools.cycle([*inner[first:], *inner[:first]])

        def turn() -> None:
            for index in itertools.islice(order, steps):
                step(index)

        return turn

    divided = DividedTurn(turns(sphere.advance, 2 / 3))
    timing = plan.race(
        {
            "bare loop": turns(lambda index: bare.step(batches[index]), 0),
            "ER": turns(runner.advance, 1 / 3),
            "ER + SPHERE": divided,
        },
        each=steps,
    )

    def cell(name: str, against: str) -> Cell:
        speed = batch / timing.seconds[name]
        more = {"setting": "a step", "threads": 1, "images_per_second": speed}
        return timing.cell(name, against, **more)

    whole = cell("ER + SPHERE", "ER")
    return [cell("ER", "bare loop"), whole, *divided.cells(whole)]


def _job(data: ImageData, select: str, capacity: int) -> VisionJob:
    job = VisionJob(resolve("mnist", "er", select, capacity=capacity, evaluate_every=None), data)
    job.advance(0)
    return job
