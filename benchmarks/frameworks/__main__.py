"""Compares replay of ours with a framework's own, on the same stream.

python -m benchmarks.frameworks lightning --seeds 10 --out results/frameworks/lightning.json
python -m benchmarks.frameworks show results/frameworks/lightning.json --figure gains.svg
"""

import argparse
import json
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.frameworks.comparison import (
    BATCH,
    CAPACITY,
    EVERY,
    OWN,
    RATE,
    REPLAYED,
    TAIL,
    TASKS,
    Line,
    compare,
    summary,
    table,
)
from sphere_replay.reports.figure_parts import GRAY, HUES, new_figure, save
from sphere_replay.storage.files import write_atomically

FRAMEWORKS = ("lightning", "avalanche", "avalanche_online", "mammoth")


def draw(lines: Sequence[Line], title: str, path: Path) -> None:
    """Gains over the other ER with their intervals: blue above zero, orange below."""
    gains = [line for line in lines if line.gain is not None and line.gain.interval is not None]
    figure = new_figure(8, 1.2 + 0.34 * len(gains))
    axes = figure.subplots()
    axes.axvline(0, color="0.7", linewidth=1)
    for place, line in enumerate(gains):
        assert line.gain is not None
        assert line.gain.interval is not None
        low, high = line.gain.interval
        color = HUES[0] if low > 0 else HUES[1] if high < 0 else GRAY
        axes.plot([low, high], [place, place], color=color, linewidth=2.5)
        axes.plot([line.gain.mean], [place], "o", color=color)
    names = [f"{line.method}, {line.noise:.0%} wrong" for line in gains]
    axes.set_yticks(range(len(gains)), names)
    axes.invert_yaxis()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    seeds = {line.gain.pairs for line in gains if line.gain is not None}
    axes.set_xlabel(f"paired gain over {OWN} (points), 95% interval, {min(seeds)} seeds")
    axes.set_title(title, loc="left", fontsize=11)
    save(figure, path)


def main() -> None:
    """Measure or show, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=[*FRAMEWORKS, "show"])
    parser.add_argument("file", type=Path, nargs="?", help="results to show")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where results are kept, as JSON")
    parser.add_argument("--figure", type=Path, help="where the gains are drawn")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "show":
        if given.file is None:
            parser.error("name the file to show")
        found = json.loads(given.file.read_text("utf-8"))
    else:
        framework = import_module(f"benchmarks.frameworks.{given.what}")
        rows = compare(framework.train, given.seeds, lambda text: print(text, flush=True))
        where = f" --out {given.out}" if given.out else ""
        found = {
            "command": f"python -m benchmarks.frameworks {given.what} --seeds {given.seeds}{where}",
            "framework": given.what,
            "versions": {name: version(name) for name in (framework.PACKAGE, "torch")},
            "stream": {"dataset": "digits", "tasks": TASKS, "batch": BATCH},
            "replay": {"batch": REPLAYED, "capacity": CAPACITY, "every": EVERY},
            "learning_rate": RATE,
            "accuracy": f"mean over the last {TAIL} updates, all classes, percent",
            "rows": rows,
        }
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(given.out, (json.dumps(found, indent=1) + "\n").encode())
    lines = summary(found["rows"])
    print(table(lines))
    if given.figure is not None:
        draw(lines, f"Split digits: {found['framework']}", given.figure)


if __name__ == "__main__":
    main()
