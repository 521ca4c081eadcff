"""Pictures of a comparison: accuracy along the stream, forgetting, what was replayed, rewards.

Columns of a table become panels, methods keep their color in all pictures, seeds are averaged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.courses import aligned, record_in
from sphere_replay.reports.figure_parts import (
    GRAY,
    band_sentence,
    draw_lines,
    explain,
    heading,
    highest,
    label_ends,
    left_out,
    mark_tasks,
    new_figure,
    panels_of,
    run_curve,
    seed_count,
    styles_of,
    write_above,
)
from sphere_replay.reports.statistics import mean, standard_deviation
from sphere_replay.runs.metrics import forgetting_of_classes, forgetting_of_tasks
from sphere_replay.runs.records import AccuracyRecord
from sphere_replay.runs.table import Spread

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


def accuracy_figure(runs: Sequence[FinishedRun], subject: str = "") -> "Figure":
    """A panel for each column, a line for each method, the best in front with its band."""
    import numpy as np

    panels = panels_of(runs, run_curve, "anytime accuracies")
    units = _unit(runs)
    styles = styles_of(run.method for run in runs)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(7.0 * columns + 1.0, 4.3 * rows + 1.0)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for empty in grid[len(panels) :]:
        empty.set_axis_off()
    top = 0.0
    finals: list[dict[str, tuple[float, float]]] = []
    # The last row may have a place to spare.
    for axes, (column, methods) in zip(grid, panels.items(), strict=False):
        counts = {len(curve.ends) for curves in methods.values() for curve in curves}
        if len(counts) > 1:
            raise ValueError(
                f"runs of column {column!r} have {sorted(counts)} tasks; runs are comparable on "
                "the same stream only, give others a column of their own"
            )
        ends = np.mean([curve.ends for curves in methods.values() for curve in curves], axis=0)
        lines = {method: aligned(curves, ends) for method, curves in methods.items()}
        finals.append(draw_lines(axes, lines, styles))
        top = max(top, *(float((v.mean(0) + v.std(0)).max()) for _, v in lines.values()))
        mark_tasks(axes, [0.0, *ends.tolist()])
        axes.set_title(heading(column), loc="left", pad=20)
        axes.set(xlim=(0, ends[-1]), xlabel="training step")
        axes.tick_params(labelleft=True)
    top = min(100.0, top + 2)
    grid[0].set_ylim(0, top)
    for axes, ends_of_lines in zip(grid, finals, strict=False):
        best = highest({method: height for method, (_, height) in ends_of_lines.items()})
        label_ends(axes, ends_of_lines, styles, 0.062 * top, best)
    for axes in grid[::columns]:
        axes.set_ylabel(f"accuracy over the {units} seen so far (%)")
    explain(
        figure,
        subject,
        f"How well each method still knows all {units} seen so far.",
        f"Line: mean over {seed_count(panels)}, straight between evaluations; the number is where "
        f"it ends.{band_sentence(panels)} Thin vertical lines: a new task begins (each "
        "seed's tasks are stretched to their mean length). Thick: the one that ends highest."
        + left_out(runs, panels),
    )
    return figure


def forgetting_figure(runs: Sequence[FinishedRun], subject: str = "") -> "Figure":
    """A panel for each column, a dot for each class and method, and the mean of each method."""
    panels = panels_of(runs, _forgetting, "accuracies after two tasks or more")
    unit = "class" if _unit(runs) == "classes" else "task"
    styles = styles_of(run.method for run in runs)
    classes = max(len(losses) for panel in panels.values() for [losses, *_] in panel.values())
    figure = new_figure(min(18.0, max(9.0, 0.8 * classes + 4.0)), 3.8 * len(panels) + 1.0)
    grid = figure.subplots(len(panels), 1, squeeze=False, sharey=True).flatten()
    labels: list[tuple[Axes, dict[str, tuple[float, float]]]] = []
    for axes, (column, methods) in zip(grid, panels.items(), strict=True):
        layouts = {
            tuple(task for task, _ in entry) for seeds in methods.values() for entry in seeds
        }
        if len(layouts) > 1:
            raise ValueError(
                f"runs of column {column!r} split the classes into tasks differently; give each "
                "split a column of its own"
            )
        tasks = layouts.pop()
        starts = [i for i in range(len(tasks)) if i == 0 or tasks[i] != tasks[i - 1]]
        width = max(1.2, 0.09 * len(tasks))  # of the strip for the means, right of the classes
        summary = len(tasks) - 0.5 + width / 2
        finals: dict[str, tuple[float, float]] = {}
        for index, (method, seeds) in enumerate(methods.items()):
            style = styles[method]
            heights = [100 * mean([entry[i][1] for entry in seeds]) for i in range(len(tasks))]
            shift = (index - (len(methods) - 1) / 2) * 0.72 / len(methods)
            places = [i + shift for i in range(len(tasks))]
            if len(tasks) * len(methods) <= 80:  # more stems than that would hide the dots
                axes.vlines(places, 0, heights, color=style.color, lw=1.6, alpha=0.6)
            size = 46 if len(tasks) <= 20 else 16
            dots = axes.scatter(places, heights, size, [style.color], marker=style.marker)
            dots.set(label=method, zorder=3, clip_on=False)
            average, half = mean(heights), 0.3 * width
            axes.plot([summary - half, summary + half], [average] * 2, color=style.color, lw=3.5)
            finals[method] = (summary + half, average)
        mark_tasks(axes, [*(start - 0.5 for start in starts), len(tasks) - 0.5])
        axes.axvspan(len(tasks) - 0.5, len(tasks) - 0.5 + width, color="0.96", zorder=0)
        write_above(axes, summary, "mean")
        axes.set_title(heading(column), loc="left", pad=20)
        axes.set(xlim=(-0.5, len(tasks) - 0.5 + width))
        axes.set(xlabel=f"{unit}, by its place in the stream", ylabel="accuracy lost (points)")
        step = 1 if len(tasks) <= 20 else 10
        axes.set_xticks(range(0, len(tasks), step), range(1, len(tasks) + 1, step))
        labels.append((axes, finals))
    grid[0].set_ylim(0, max(10.0, grid[0].get_ylim()[1]))
    for axes, finals in labels:
        least = highest({method: -height for method, (_, height) in finals.items()})
        label_ends(axes, finals, styles, 0.08 * axes.get_ylim()[1], least)
    explain(
        figure,
        subject,
        f"Each dot shows how much accuracy a {unit} lost from its best to the end.",
        f"Mean over {seed_count(panels)}. Lost: the best accuracy after any task since the "
        f"{unit} was learned, minus the one after the last task. Orders differ from run to run: a "
        f"place in the stream is averaged, not a {unit} of the dataset. The last task is left "
        "out, it had no time to be forgotten." + left_out(runs, panels),
    )
    return figure


def lift_figure(runs: Sequence[FinishedRun], subject: str = "") -> "Figure":
    """A panel for each column, a bar for each method, and a line at the fair share."""
    panels = panels_of(runs, _lift, "replay statistics with mislabelled memories")
    styles = styles_of(run.method for run in runs)
    methods = [name for name in styles if any(name in panel for panel in panels.values())]
    figure = new_figure(max(7.5, 3.6 * len(panels) + 2.2), 0.46 * len(methods) + 2.6)
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True).flatten()
    for axes, (column, lifts) in zip(grid, panels.items(), strict=True):
        for place, method in enumerate(methods):
            if method not in lifts:
                axes.annotate("no data", (0.02, place), va="center", color=GRAY, fontsize=9)
                continue
            center = mean(lifts[method])
            spread = standard_deviation(lifts[method], Spread.POPULATION) or 0.0
            axes.barh(place, center, height=0.66, color=styles[method].color)
            if len(lifts[method]) > 1:
                axes.errorbar(center, place, xerr=spread, color="0.1", capsize=3, lw=1.2)
            beside = (max(1.0, center + spread), place)
            axes.annotate(f"{center:.2f}", beside, (6, 0), textcoords="offset points", va="center")
        axes.axvline(1.0, color="0.15", lw=1.2, ls=":")
        write_above(axes, 1.0, "fair share", color="0.15")
        axes.set_title(heading(column), loc="left", pad=20)
        axes.set_xlabel("mislabelled memories replayed,\nas a multiple of their fair share")
        axes.tick_params(axis="y", length=0)
    grid[0].set_yticks(range(len(methods)), methods)
    grid[0].set_ylim(len(methods) - 0.5, -0.5)
    grid[0].set_xlim(0, 1.12 * grid[0].get_xlim()[1])
    explain(
        figure,
        subject,
        "Each bar shows how often a method replays mislabelled memories, compared with chance.",
        f"Bar: mean over {seed_count(panels)}.{band_sentence(panels, 'Whisker')} At 1, the fair "
        "share, wrong labels are replayed as often as by uniform draws from the same memory; more "
        "means that wrong labels attract replay." + left_out(runs, panels),
    )
    return figure


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
        subject,
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


def _unit(runs: Sequence[FinishedRun]) -> str:
    """What accuracies are of."""
    by_class = any(isinstance(record_in(run.results), AccuracyRecord) for run in runs)
    return "classes" if by_class else "tasks"


def _forgetting(run: FinishedRun) -> list[tuple[int, float]] | None:
    """(task, forgetting) of all but what the last task brought, in the order of the stream."""
    record = record_in(run.results)
    if record is not None and not isinstance(record, AccuracyRecord):
        return list(enumerate(forgetting_of_tasks(record).tolist())) or None
    if record is None or len(record.after_task) < 2:
        return None
    tasks = [task for task in record.task_of_class.tolist() if task < len(record.after_task) - 1]
    losses = forgetting_of_classes(record).tolist()
    return sorted(zip(tasks, losses, strict=True), key=lambda entry: entry[0])


def _lift(run: FinishedRun) -> float | None:
    return (run.results.get("replay") or {}).get("noisy_lift")


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
