"""The picture of reinforcement learning: reward while training, accuracy after each stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.reports.figure_parts import (
    RunSummary,
    Style,
    band_sentence,
    collect,
    explain,
    label_ends,
    left_out,
    mark_tasks,
    new_figure,
    save,
    seed_count,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


def plot_reward(runs: Sequence[RunSummary], path: Path | str) -> Path:
    """Write a picture of visible reward and full-suite accuracy."""
    return save(reward_figure(runs), path)


def reward_figure(runs: Sequence[RunSummary]) -> "Figure":
    """Two panels for each column: reward by update on the left, accuracy by stage on the right."""
    panels = collect(runs, _course, "rewards by update")
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
        for method, courses in methods.items():
            smooth = [smoothed(course.rewards) for course in courses]
            _line(left, range(1, ends[-1] + 1), smooth, method, styles[method])
        at_stages = {
            method: _line(
                right, range(len(ends) + 1), [c.accuracies for c in courses], method, styles[method]
            )
            for method, courses in methods.items()
        }
        mark_tasks(left, [0.0, *map(float, ends)])
        left.set(xlim=(0, ends[-1]), xlabel="update", ylabel="visible reward (%)")
        left.set_title(column, loc="left", pad=20)
        right.set_xticks(range(len(ends) + 1), ["start", *map(str, range(1, len(ends) + 1))])
        right.set(xlim=(0, len(ends)), xlabel="after stage")
        right.set_ylabel("full-suite accuracy over all stages (%)")
        low, high = right.get_ylim()
        label_ends(right, at_stages, styles, gap=0.062 * (high - low))
    explain(
        figure,
        "Left: programs that pass the visible test while they are learned from. Right: greedy "
        "programs that pass every test.",
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


def _line(
    axes: "Axes",
    places: Sequence[int],
    rows: Sequence[Sequence[float]],
    method: str,
    style: Style,
) -> tuple[float, float]:
    """Draw the mean of the rows, in percent, with a band; returns where it ends."""
    import numpy as np

    values = 100 * np.asarray(rows, dtype=float)
    center, spread = values.mean(0), values.std(0)
    axes.plot(places, center, color=style.color, ls=style.line, lw=2.0, label=method)
    if len(rows) > 1:
        strength = 0.16 if style.line == "-" else 0.08
        low, high = center - spread, center + spread
        axes.fill_between(places, low, high, color=style.color, alpha=strength, lw=0)
    return float(places[-1]), float(center[-1])


def _course(run: RunSummary) -> Course | None:
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
