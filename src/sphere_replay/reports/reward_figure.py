"""The picture of reinforcement learning: reward while training, accuracy after each stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.figure_parts import (
    about,
    band_sentence,
    draw_lines,
    explain,
    highest,
    label_ends,
    left_out,
    mark_tasks,
    new_figure,
    panels_of,
    seed_count,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW = 5
"""Updates that a point of the reward's line averages, at most."""


@dataclass(frozen=True)
class Course:
    """A run as two lines."""

    rewards: tuple[float, ...]
    """Mean visible reward, update by update."""
    accuracies: tuple[float, ...]
    """Mean full-suite accuracy over all stages: at the start, then after each stage."""
    ends: tuple[int, ...]
    """Updates after which the stages end."""


def reward_figure(runs: Sequence[FinishedRun], subject: str = "") -> "Figure":
    """Two panels for each column: reward by update on the left, accuracy by stage on the right."""
    import numpy as np

    panels = panels_of(runs, _course, "rewards by update")
    styles = styles_of(run.method for run in runs)
    figure = new_figure(15.0, 4.4 * len(panels) + 1.0)
    grid = figure.subplots(len(panels), 2, squeeze=False)
    for (left, right), (column, methods) in zip(grid, panels.items(), strict=True):
        schedules = {course.ends for courses in methods.values() for course in courses}
        if len(schedules) > 1:
            raise ValueError(
                f"runs of column {column!r} end their stages after different updates; runs are "
                "comparable on the same stream only, give others a column of their own"
            )
        ends = schedules.pop()
        rewards, accuracies = {}, {}
        for method, courses in methods.items():
            smooth = 100 * np.array([smoothed(course.rewards) for course in courses])
            rewards[method] = (range(1, ends[-1] + 1), smooth)
            reached = 100 * np.array([course.accuracies for course in courses])
            accuracies[method] = (range(len(ends) + 1), reached)
        draw_lines(left, rewards, styles)
        at_stages = draw_lines(right, accuracies, styles)
        mark_tasks(left, [0.0, *map(float, ends)])
        left.set(xlim=(0, ends[-1]), xlabel="update", ylabel="visible reward (%)")
        left.set_title(column, loc="left", pad=20)
        right.set_xticks(range(len(ends) + 1), ["start", *map(str, range(1, len(ends) + 1))])
        right.set(xlim=(0, len(ends)), xlabel="after stage")
        right.set_ylabel("full-suite accuracy over all stages (%)")
        low, high = right.get_ylim()
        best = highest({method: height for method, (_, height) in at_stages.items()})
        label_ends(right, at_stages, styles, 0.062 * (high - low), best)
    explain(
        figure,
        about(
            subject,
            "Left: programs that pass the visible test while they are learned from. Right: greedy "
            "programs that pass every test.",
        ),
        f"Line: mean over {seed_count(panels)}.{band_sentence(panels)} Rewards are those of the "
        f"current problems, averaged over {WINDOW} updates; a stage that has just begun pulls them "
        "down. Accuracy is the mean over all stages, those still to come included."
        + left_out(runs, panels),
    )
    return figure


def smoothed(values: Sequence[float]) -> list[float]:
    """Means over the last few values, of as many as there are at the start."""
    windows = [values[max(0, end - WINDOW) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]


def _course(run: FinishedRun) -> Course | None:
    rewards = (run.results.get("reward") or {}).get("visible")
    if not rewards:
        return None
    saved = run.results["accuracy"]
    rows = [saved["initial"], *saved["values"]]
    return Course(
        tuple(rewards),
        tuple(sum(row) / len(row) for row in rows),
        tuple(run.results["task_ends"]),
    )
