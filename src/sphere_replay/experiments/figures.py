"""Three pictures of a comparison: accuracy along the stream, forgetting, and what was replayed.

Each `plot_...` writes a PNG; the `..._figure` beneath it returns the matplotlib figure. Columns of
a table become panels, methods keep their color in all three pictures, seeds are averaged.
"""

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sphere_replay.experiments.files import write_atomically
from sphere_replay.experiments.metrics import forgetting_of_classes
from sphere_replay.experiments.records import AccuracyRecord
from sphere_replay.experiments.statistics import Spread, mean, standard_deviation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy import float64
    from numpy.typing import NDArray

    Array = NDArray[float64]

T = TypeVar("T")
Panels = dict[str, dict[str, list[T]]]
"""What is drawn: by column, then by method, an entry per seed."""

HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#5A5A5A", "#56B4E9")
"""Okabe and Ito's colors, which color-blind readers tell apart; gray for black, no pale yellow."""
_MARKERS = "os^DvPXp"
_PALE = 0.36
_DARK = (0.0, -0.35, -0.6)
_GRAY = "0.45"
_DPI = 150


@dataclass(frozen=True)
class RunSummary:
    """A finished run as the pictures see it; `results` is the content of its `results.json`."""

    method: str
    """As it is to be read: `ER`, `ER + SPHERE`."""
    column: str
    """The setting that is compared across, e.g. the share of wrong labels, `40%`."""
    seed: int
    results: Mapping[str, Any]


@dataclass(frozen=True)
class Style:
    """How a method looks in every picture."""

    color: tuple[float, float, float]
    line: str
    marker: str


@dataclass(frozen=True)
class Curve:
    """Anytime accuracies of one run, and the steps at which its tasks ended."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    ends: tuple[int, ...]


def plot_accuracy_over_stream(runs: Sequence[RunSummary], path: Path | str) -> Path:
    """Write a picture of the accuracy over the classes seen so far, step by step."""
    return _save(accuracy_figure(runs), path)


def plot_forgetting_per_class(runs: Sequence[RunSummary], path: Path | str) -> Path:
    """Write a picture of what each class lost, in the order of the stream."""
    return _save(forgetting_figure(runs), path)


def plot_noisy_lift(runs: Sequence[RunSummary], path: Path | str) -> Path:
    """Write a picture of how much mislabelled memory each method replays."""
    return _save(lift_figure(runs), path)


def styles_of(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method, decided by their order alone.

    A host (`ER`) is pale and dashed; with SPHERE on top (`ER + SPHERE`) the same hue is strong and
    solid, and further variants of SPHERE are darker. Any other method (`ER + MIR`) has a hue of
    its own and is dashed. `er/sphere` is read like `er + sphere`.
    """
    hues: dict[str, int] = {}
    variants: dict[str, int] = {}
    styles: dict[str, Style] = {}
    for method in dict.fromkeys(methods):
        host, *selection = re.split(r"\s*/\s*|\s\+\s", method, maxsplit=1)
        sphere = "sphere" in method.lower()
        bare = not sphere and selection in ([], ["uniform"])
        hue = hues.setdefault(host if sphere or bare else method, len(hues))
        tone, line = (_PALE if bare else 0.0), "--"
        if sphere:
            variant = variants.get(host, 0)
            variants[host] = variant + 1
            tone, line = _DARK[variant % len(_DARK)], "-" if variant < len(_DARK) else "-."
        marker = _MARKERS[len(styles) % len(_MARKERS)]
        styles[method] = Style(_toned(HUES[hue % len(HUES)], tone), line, marker)
    return styles


def task_ends(record: AccuracyRecord) -> tuple[int, ...]:
    """The steps after which each task was evaluated: the task's last steps; `[T]`.

    The record stores accuracies after tasks without their steps, and anytime points without their
    tasks. They meet in the value: Σ_c n_c a[t, c] / Σ_c n_c over the classes seen. Where several
    points share it, one outside the regular interval is taken, then the latest: accuracy stands
    still within a task more often than across two.
    """
    if len(record.anytime) == len(record.after_task):
        return tuple(step for step, _ in record.anytime)
    interval = record.anytime[0][0]
    ends: list[int] = []
    for task in reversed(range(len(record.after_task))):
        seen = record.task_of_class <= task
        weights = record.counts[seen].double()
        overall = float((record.after_task[task, seen] * weights).sum() / weights.sum())
        matching = [
            step
            for step, value in record.anytime
            if abs(value - overall) < 1e-9 and (not ends or step < ends[0])
        ]
        if not matching:
            raise ValueError(
                f"no anytime accuracy equals the accuracy after task {task}, {overall:.6f}: the "
                "two belong to different runs, or the run was not evaluated at the task's end"
            )
        ends.insert(0, max(matching, key=lambda step: (step % interval != 0, step)))
    return tuple(ends)


def spread_apart(values: Sequence[float], gap: float) -> list[float]:
    """Positions at least `gap` apart, in the order of the values and as near to them as can be."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    # Without i * gap, "apart" is "not decreasing": pool neighbours that are out of order.
    blocks: list[list[float]] = []
    for rank, i in enumerate(order):
        blocks.append([values[i] - rank * gap])
        while len(blocks) > 1 and mean(blocks[-2]) > mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = [mean(block) for block in blocks for _ in block]
    placed = dict(zip(order, level, strict=True))
    return [placed[i] + order.index(i) * gap for i in range(len(values))]


def accuracy_figure(runs: Sequence[RunSummary]) -> "Figure":
    """A panel for each column, a line for each method, a band for its seeds."""
    import numpy as np

    panels = _collect(runs, _curve, "anytime accuracies")
    styles = styles_of(run.method for run in runs)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure(7.0 * columns + 1.0, 4.3 * rows + 1.0)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for empty in grid[len(panels) :]:
        empty.set_axis_off()
    highest = 0.0
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
        finals.append({})
        for method, curves in methods.items():
            steps, values = _aligned(curves, ends)
            center, spread = values.mean(0), values.std(0)
            style = styles[method]
            axes.plot(steps, center, color=style.color, ls=style.line, lw=2.0, label=method)
            if len(curves) > 1:
                strength = 0.16 if style.line == "-" else 0.08
                low, high = center - spread, center + spread
                axes.fill_between(steps, low, high, color=style.color, alpha=strength, lw=0)
            highest = max(highest, float((center + spread).max()))
            finals[-1][method] = (float(steps[-1]), float(center[-1]))
        _mark_tasks(axes, [0.0, *ends.tolist()])
        axes.set_title(_heading(column), loc="left", pad=20)
        axes.set(xlim=(0, ends[-1]), xlabel="training step")
        axes.tick_params(labelleft=True)
    top = min(100.0, highest + 2)
    grid[0].set_ylim(0, top)
    for axes, ends_of_lines in zip(grid, finals, strict=False):
        _label_ends(axes, ends_of_lines, styles, gap=0.062 * top)
    for axes in grid[::columns]:
        axes.set_ylabel("accuracy over the classes seen so far (%)")
    _explain(
        figure,
        "Each line shows how well a method still knows all classes seen so far.",
        f"Line: mean over {_seeds(panels)}, straight between evaluations; the number is where it "
        f"ends.{_band(panels)} Thin vertical lines: a new task brings new classes (each seed's "
        "tasks are stretched to their mean length). Solid: with SPHERE; dashed: without."
        + _left_out(runs, panels),
    )
    return figure


def forgetting_figure(runs: Sequence[RunSummary]) -> "Figure":
    """A panel for each column, a dot for each class and method, and the mean of each method."""
    panels = _collect(runs, _forgetting, "accuracies after two tasks or more")
    styles = styles_of(run.method for run in runs)
    classes = max(len(losses) for panel in panels.values() for [losses, *_] in panel.values())
    figure = _figure(min(18.0, max(9.0, 0.8 * classes + 4.0)), 3.8 * len(panels) + 1.0)
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
        _mark_tasks(axes, [*(start - 0.5 for start in starts), len(tasks) - 0.5])
        axes.axvspan(len(tasks) - 0.5, len(tasks) - 0.5 + width, color="0.96", zorder=0)
        _above(axes, summary, "mean")
        axes.set_title(_heading(column), loc="left", pad=20)
        axes.set(xlim=(-0.5, len(tasks) - 0.5 + width))
        axes.set(xlabel="class, by its place in the stream", ylabel="accuracy lost (points)")
        step = 1 if len(tasks) <= 20 else 10
        axes.set_xticks(range(0, len(tasks), step), range(1, len(tasks) + 1, step))
        labels.append((axes, finals))
    grid[0].set_ylim(0, max(10.0, grid[0].get_ylim()[1]))
    for axes, finals in labels:
        _label_ends(axes, finals, styles, gap=0.08 * axes.get_ylim()[1])
    _explain(
        figure,
        "Each dot shows how much accuracy a class lost from its best to the end.",
        f"Mean over {_seeds(panels)}. Lost: the best accuracy after any task since the class was "
        "learned, minus the one after the last task. Every seed has an order of classes of its "
        "own: a place in the stream is averaged, not a class of the dataset. The last task is left "
        "out, it had no time to be forgotten." + _left_out(runs, panels),
    )
    return figure


def lift_figure(runs: Sequence[RunSummary]) -> "Figure":
    """A panel for each column, a bar for each method, and a line at the fair share."""
    panels = _collect(runs, _lift, "replay statistics with mislabelled memories")
    styles = styles_of(run.method for run in runs)
    methods = [name for name in styles if any(name in panel for panel in panels.values())]
    figure = _figure(max(7.5, 3.6 * len(panels) + 2.2), 0.46 * len(methods) + 2.6)
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True).flatten()
    for axes, (column, lifts) in zip(grid, panels.items(), strict=True):
        for place, method in enumerate(methods):
            if method not in lifts:
                axes.annotate("no data", (0.02, place), va="center", color=_GRAY, fontsize=9)
                continue
            center = mean(lifts[method])
            spread = standard_deviation(lifts[method], Spread.POPULATION) or 0.0
            axes.barh(place, center, height=0.66, color=styles[method].color)
            if len(lifts[method]) > 1:
                axes.errorbar(center, place, xerr=spread, color="0.1", capsize=3, lw=1.2)
            beside = (max(1.0, center + spread), place)
            axes.annotate(f"{center:.2f}", beside, (6, 0), textcoords="offset points", va="center")
        axes.axvline(1.0, color="0.15", lw=1.2, ls=":")
        _above(axes, 1.0, "fair share", color="0.15")
        axes.set_title(_heading(column), loc="left", pad=20)
        axes.set_xlabel("mislabelled memories replayed,\nas a multiple of their fair share")
        axes.tick_params(axis="y", length=0)
    grid[0].set_yticks(range(len(methods)), methods)
    grid[0].set_ylim(len(methods) - 0.5, -0.5)
    grid[0].set_xlim(0, 1.12 * grid[0].get_xlim()[1])
    _explain(
        figure,
        "Each bar shows how often a method replays mislabelled memories, compared with chance.",
        f"Bar: mean over {_seeds(panels)}.{_band(panels, 'Whisker')} At 1, the fair share, wrong "
        "labels are replayed as often as by uniform draws from the same memory; more means that "
        "wrong labels attract replay." + _left_out(runs, panels),
    )
    return figure


def _collect(
    runs: Sequence[RunSummary], extract: Callable[[RunSummary], T | None], what: str
) -> Panels[T]:
    """What the runs have to draw, by column and method; runs without it are left out."""
    panels: Panels[T] = {}
    known: set[tuple[str, str, int]] = set()
    for run in runs:
        if (run.method, run.column, run.seed) in known:
            raise ValueError(
                f"two runs of {run.method!r}, {run.column!r}, seed {run.seed}: a run counts once"
            )
        known.add((run.method, run.column, run.seed))
        found = extract(run)
        if found is not None:
            panels.setdefault(run.column, {}).setdefault(run.method, []).append(found)
    if not panels:
        raise ValueError(f"nothing to draw: none of the {len(runs)} runs has {what}")
    return panels


def _record(run: RunSummary) -> AccuracyRecord | None:
    saved = run.results.get("accuracy")
    return AccuracyRecord.from_dict(saved) if saved and saved["after_task"] else None


def _curve(run: RunSummary) -> Curve | None:
    record = _record(run)
    if record is None or not record.anytime:
        return None
    try:
        ends = task_ends(record)
    except ValueError as error:
        raise ValueError(f"{run.method}, {run.column}, seed {run.seed}: {error}") from None
    steps, values = zip(*(p for p in record.anytime if p[0] <= ends[-1]), strict=True)
    return Curve(steps, values, ends)


def _aligned(curves: Sequence[Curve], ends: "Array") -> "tuple[Array, Array]":
    """Steps `[n]` and accuracies in percent `[seeds, n]`, with the tasks ending at `ends`.

    Label noise makes a task a little longer or shorter from seed to seed. Stretched to common
    lengths, the fall after a boundary is averaged with the falls of the other seeds.
    """
    import numpy as np

    places = [np.interp(c.steps, (0, *c.ends), (0, *ends)).round(6) for c in curves]
    steps = np.unique(np.concatenate(places))
    steps = steps[steps >= max(place[0] for place in places)]  # from where all have been evaluated
    rows = [np.interp(steps, p, c.values) for p, c in zip(places, curves, strict=True)]
    return steps, 100 * np.stack(rows)


def _forgetting(run: RunSummary) -> list[tuple[int, float]] | None:
    """(task, forgetting) of every class but those of the last task, in the order of the stream."""
    record = _record(run)
    if record is None or len(record.after_task) < 2:
        return None
    tasks = [task for task in record.task_of_class.tolist() if task < len(record.after_task) - 1]
    losses = forgetting_of_classes(record).tolist()
    return sorted(zip(tasks, losses, strict=True), key=lambda entry: entry[0])


def _lift(run: RunSummary) -> float | None:
    return (run.results.get("replay") or {}).get("noisy_lift")


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path | str) -> Path:
    content = io.BytesIO()
    # Without the version of matplotlib, equal pictures are equal files.
    figure.savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())
    return path


def _explain(figure: "Figure", title: str, caption: str) -> None:
    """Title above, caption below, both broken to the figure's width; the panels' common look."""
    width = figure.get_figwidth()
    figure.suptitle(
        textwrap.fill(title, int(9.2 * width)), x=0.01, ha="left", fontsize=13, fontweight="bold"
    )
    figure.supxlabel(
        textwrap.fill(caption, int(14.2 * width)), x=0.01, ha="left", fontsize=9, color="0.35"
    )
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)


def _mark_tasks(axes: "Axes", edges: Sequence[float]) -> None:
    """Thin lines where a task ends and the next begins; the tasks' numbers above."""
    for edge in edges[1:-1]:
        axes.axvline(edge, color="0.75", lw=0.8, zorder=0)
    for number, (start, end) in enumerate(pairwise(edges), 1):
        _above(axes, (start + end) / 2, f"task {number}" if len(edges) <= 11 else str(number))


def _above(axes: "Axes", x: float, text: str, color: str = _GRAY) -> None:
    """Small text over the upper edge of a panel, at x in its data."""
    place = axes.get_xaxis_transform()
    axes.annotate(text, (x, 1.02), xycoords=place, ha="center", color=color, fontsize=9)


def _label_ends(
    axes: "Axes",
    ends: Mapping[str, tuple[float, float]],
    styles: Mapping[str, Style],
    gap: float,
) -> None:
    """Write each method's name beside the end of its line."""
    heights = spread_apart([height for _, height in ends.values()], gap)
    for (method, end), height in zip(ends.items(), heights, strict=True):
        color = styles[method].color
        axes.annotate(
            f"{method}  {end[1]:.0f}",
            end,
            xytext=(1.04, height),
            textcoords=axes.get_yaxis_transform(),
            color=color,
            fontweight="bold" if styles[method].line == "-" else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.8, "relpos": (0, 0.5)},
        )


def _heading(column: str) -> str:
    share = column.removesuffix("%")
    if share != column and share.replace(".", "", 1).isdigit():
        return f"{column} of the training labels are wrong"
    return column


def _seeds(panels: Panels[T]) -> str:
    counts = {len(seeds) for panel in panels.values() for seeds in panel.values()}
    low, high = min(counts), max(counts)
    if low == high:
        return f"{low} seed{'s' if low > 1 else ''}"
    return f"{low} to {high} seeds"


def _band(panels: Panels[T], name: str = "Band") -> str:
    """A sentence on the spread over seeds, where there is any."""
    several = any(len(seeds) > 1 for panel in panels.values() for seeds in panel.values())
    return f" {name}: ± 1 population standard deviation over the seeds." if several else ""


def _left_out(runs: Sequence[RunSummary], panels: Panels[T]) -> str:
    """A closing sentence that names what could not be drawn, if anything."""
    pairs = dict.fromkeys((run.method, run.column) for run in runs if run.column in panels)
    missing = [f"{method} ({column})" for method, column in pairs if method not in panels[column]]
    missing += [f"all of {c}" for c in dict.fromkeys(run.column for run in runs) if c not in panels]
    return f" Without data: {', '.join(missing)}." if missing else ""


def _toned(color: str, tone: float) -> tuple[float, float, float]:
    """Mixed with white by `tone` if positive, with black by -tone if negative."""
    from matplotlib.colors import to_rgb

    target = 1.0 if tone > 0 else 0.0
    red, green, blue = ((1 - abs(tone)) * part + abs(tone) * target for part in to_rgb(color))
    return red, green, blue
