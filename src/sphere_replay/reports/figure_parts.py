"""What the pictures of a comparison share: runs by panel, styles of methods, captions, files."""

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sphere_replay.config import Pair
from sphere_replay.errors import UsageError
from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.courses import Curve, curve_of
from sphere_replay.reports.statistics import mean
from sphere_replay.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sphere_replay.reports.courses import Array

T = TypeVar("T")
Panels = dict[str, dict[str, list[T]]]
"""What is drawn: by column, then by method, an entry per seed."""

HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#5A5A5A", "#56B4E9")
"""Okabe and Ito's colors, which color-blind readers tell apart; gray for black, no pale yellow."""
GRAY = "0.45"
"""Of what is read last: the numbers of tasks, notes."""
_MARKERS = "os^DvPXp"
_VARIANTS = (("--", -0.25), ("-.", -0.45), (":", -0.6))
"""Line and tone of a host's variants."""
_THICK, _THIN = 3.4, 1.8
_BANDS = 3
"""As many may overlap and stay readable; with more methods the best alone has one."""
_DPI = 150
_FILES = {
    "png": ("Software",),
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Creator", "Producer"),
}
"""Kinds of picture, and what each would tell of its making: without it, equal pictures are equal
files."""


@dataclass(frozen=True)
class Style:
    """How a method looks in every picture."""

    color: tuple[float, float, float]
    line: str
    marker: str


def by_place(runs: Sequence[FinishedRun], extract: Callable[[FinishedRun], T | None]) -> Panels[T]:
    """What the runs have, by column and method; runs without it are left out."""
    panels: Panels[T] = {}
    for run in runs:
        if (found := extract(run)) is not None:
            panels.setdefault(run.column, {}).setdefault(run.method, []).append(found)
    return panels


def panels_of(
    runs: Sequence[FinishedRun], extract: Callable[[FinishedRun], T | None], what: str
) -> Panels[T]:
    """What the runs have to draw; a run must not be there twice."""
    known: set[tuple[str, str, Pair]] = set()
    for run in runs:
        if (run.method, run.column, run.pair) in known:
            raise ValueError(
                f"two runs of {run.method!r}, {run.column!r}, seed {run.pair}: a run counts once"
            )
        known.add((run.method, run.column, run.pair))
    panels = by_place(runs, extract)
    if not panels:
        raise ValueError(f"nothing to draw: none of the {len(runs)} runs has {what}")
    return panels


def run_curve(run: FinishedRun) -> Curve | None:
    """The curve of a run; an error says which it is."""
    return curve_of(run.results, f"{run.method}, {run.column}, seed {run.pair}")


def styles_of(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method, decided by their order alone.

    A host (`ER`) is solid; with SPHERE on top (`ER + SPHERE`) the same hue is darker and dashed,
    and further variants of SPHERE more so. Any other method (`ER + MIR`) has a hue of its own. No
    method is louder than another: what stands out in a picture is the best. `er/sphere` is read
    like `er + sphere`.
    """
    hues: dict[str, int] = {}
    variants: dict[str, int] = {}
    styles: dict[str, Style] = {}
    for method in dict.fromkeys(methods):
        host, *selection = re.split(r"\s*/\s*|\s\+\s", method, maxsplit=1)
        sphere = "sphere" in method.lower()
        bare = not sphere and selection in ([], ["uniform"])
        hue = hues.setdefault(host if sphere or bare else method, len(hues))
        line, tone = "-", 0.0
        if sphere:
            variant = variants.get(host, 0)
            variants[host] = variant + 1
            line, tone = _VARIANTS[variant % len(_VARIANTS)]
        marker = _MARKERS[len(styles) % len(_MARKERS)]
        styles[method] = Style(_toned(HUES[hue % len(HUES)], tone), line, marker)
    return styles


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


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that makes room for all that is written on it."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path | str) -> Path:
    """Write a figure as PNG, SVG or PDF, whole or not at all; folders are made as needed."""
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in _FILES:
        raise UsageError(f"{path} must end in one of .{', .'.join(_FILES)}: a picture has a kind")
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=_DPI, metadata=dict.fromkeys(_FILES[kind]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())
    return path


def explain(figure: "Figure", subject: str, title: str, caption: str) -> None:
    """Title above, with what it is about in front, where that is said; caption below.

    Both are broken to the figure's width. The panels get their common look.
    """
    width = figure.get_figwidth()
    title = f"{subject}: {title[0].lower()}{title[1:]}" if subject else title
    figure.suptitle(
        textwrap.fill(title, int(9.2 * width)), x=0.01, ha="left", fontsize=13, fontweight="bold"
    )
    figure.supxlabel(
        textwrap.fill(caption, int(14.2 * width)), x=0.01, ha="left", fontsize=9, color="0.35"
    )
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)


def mark_tasks(axes: "Axes", edges: Sequence[float]) -> None:
    """Thin lines where a task ends and the next begins; the tasks' numbers above."""
    for edge in edges[1:-1]:
        axes.axvline(edge, color="0.75", lw=0.8, zorder=0)
    for number, (start, end) in enumerate(pairwise(edges), 1):
        write_above(axes, (start + end) / 2, f"task {number}" if len(edges) <= 11 else str(number))


def write_above(axes: "Axes", x: float, text: str, color: str = GRAY) -> None:
    """Small text over the upper edge of a panel, at x in its data."""
    place = axes.get_xaxis_transform()
    axes.annotate(text, (x, 1.02), xycoords=place, ha="center", color=color, fontsize=9)


def draw_lines(
    axes: "Axes",
    lines: "Mapping[str, tuple[Sequence[float] | Array, Array]]",
    styles: Mapping[str, Style],
) -> dict[str, tuple[float, float]]:
    """Places and rows `[seeds, n]` of each method as a mean line; returns where the lines end.

    The one that ends highest is thick and in front. Bands are drawn while they can be told apart.
    """
    best = highest({method: float(rows.mean(0)[-1]) for method, (_, rows) in lines.items()})
    ends = {}
    for method, (places, rows) in lines.items():
        center, spread, style = rows.mean(0), rows.std(0), styles[method]
        width, order = (_THICK, 3) if method == best else (_THIN, 2)
        axes.plot(
            places, center, color=style.color, ls=style.line, lw=width, label=method, zorder=order
        )
        if len(rows) > 1 and (method == best or len(lines) <= _BANDS):
            low, high = center - spread, center + spread
            strength = 0.2 if method == best else 0.1
            axes.fill_between(places, low, high, color=style.color, alpha=strength, lw=0)
        ends[method] = (float(places[-1]), float(center[-1]))
    return ends


def highest(values: Mapping[str, float]) -> str:
    """The name with the largest value, the first of several."""
    return max(values, key=lambda name: values[name])


def label_ends(
    axes: "Axes",
    ends: Mapping[str, tuple[float, float]],
    styles: Mapping[str, Style],
    gap: float,
    best: str,
) -> None:
    """Write each method's name beside the end of its line, the best in bold."""
    heights = spread_apart([height for _, height in ends.values()], gap)
    for (method, end), height in zip(ends.items(), heights, strict=True):
        color = styles[method].color
        axes.annotate(
            f"{method}  {end[1]:.0f}",
            end,
            xytext=(1.04, height),
            textcoords=axes.get_yaxis_transform(),
            color=color,
            fontweight="bold" if method == best else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.8, "relpos": (0, 0.5)},
        )


def heading(column: str) -> str:
    """The title of a column's panel: a bare percentage is said to be of wrong labels."""
    share = column.removesuffix("%")
    if share != column and share.replace(".", "", 1).isdigit():
        return f"{column} of the training labels are wrong"
    return column


def seed_count(panels: Panels[T]) -> str:
    """How many seeds were averaged, in words: `3 seeds`, `2 to 3 seeds`."""
    counts = {len(seeds) for panel in panels.values() for seeds in panel.values()}
    low, high = min(counts), max(counts)
    if low == high:
        return f"{low} seed{'s' if low > 1 else ''}"
    return f"{low} to {high} seeds"


def band_sentence(panels: Panels[T], name: str = "Band") -> str:
    """A sentence on the spread over seeds, where there is any."""
    several = any(len(seeds) > 1 for panel in panels.values() for seeds in panel.values())
    crowded = name == "Band" and any(len(panel) > _BANDS for panel in panels.values())
    whose = " (of the best alone, where there are many)" if crowded else ""
    return f" {name}: ± 1 population standard deviation over the seeds{whose}." if several else ""


def left_out(runs: Sequence[FinishedRun], panels: Panels[T]) -> str:
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
