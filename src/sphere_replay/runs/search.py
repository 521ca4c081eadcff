"""Grid search by paired improvement over a control; on development seeds only."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sphere_replay.config import RunConfig
from sphere_replay.runs.launch import run_folder
from sphere_replay.runs.runner import Report
from sphere_replay.runs.sweep import sweep


@dataclass(frozen=True)
class GridPoint:
    """A point of the grid and what it gained over alpha = 0."""

    settings: Mapping[str, Any]
    gain: float
    standard_error: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.settings, "gain": self.gain, "standard_error": self.standard_error}


def search(
    base: RunConfig,
    grid: Mapping[str, Sequence[Any]],
    seeds: Iterable[int],
    out: Path,
    *,
    data: Path | None = None,
    workers: int = 1,
    report: Report | None = None,
) -> list[GridPoint]:
    """Every point of the grid, best first."""
    seeds = list(seeds)
    points: list[dict[str, Any]] = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    controls = [replace(base, alpha=0.0, seed=seed) for seed in seeds]
    treated = [[replace(base, **point, seed=seed) for seed in seeds] for point in points]
    configs = [*controls, *itertools.chain.from_iterable(treated)]
    sweep(configs, out, data=data, workers=workers, report=report, strict=True)
    reached = [_accuracy(config, out) for config in controls]
    ranking = []
    for point, runs in zip(points, treated, strict=True):
        gains = [_accuracy(run, out) - control for run, control in zip(runs, reached, strict=True)]
        spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
        ranking.append(GridPoint(point, statistics.mean(gains), spread / math.sqrt(len(gains))))
    return sorted(ranking, key=lambda point: -point.gain)


def _accuracy(config: RunConfig, out: Path) -> float:
    return float(run_folder(config, out).results["metrics"]["class_il"])
