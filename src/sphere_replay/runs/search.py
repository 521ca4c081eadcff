"""Grid search by paired improvement over a control; on development seeds only."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphere_replay.config import RunConfig
from sphere_replay.runs.launch import run_folder
from sphere_replay.runs.metrics import METRICS
from sphere_replay.runs.runner import Report
from sphere_replay.runs.settings import spelled_out, with_settings
from sphere_replay.runs.sweep import sweep


@dataclass(frozen=True)
class GridPoint:
    """A point of the grid and what it gained over the control."""

    settings: Mapping[str, Any]
    gain: float
    standard_error: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.settings, "gain": self.gain, "standard_error": self.standard_error}


def search(
    base: RunConfig,
    control: RunConfig,
    grid: Mapping[str, Sequence[Any]],
    seeds: Iterable[int],
    out: Path,
    *,
    metric: str = "class_il",
    data: Path | None = None,
    workers: int = 1,
    report: Report | None = None,
) -> list[GridPoint]:
    """Every point of the grid, best first: `base` with its settings, compared with `control`."""
    seeds = list(seeds)
    controls = _on_seeds(control, seeds)
    points, candidates = candidates_of(base, grid)
    treated = [_on_seeds(candidate, seeds) for candidate in candidates]
    configs = [*controls, *itertools.chain.from_iterable(treated)]

    def reached(config: RunConfig) -> float:
        return float(run_folder(config, out).results["metrics"][metric])

    sweep(configs, out, data=data, workers=workers, report=report, strict=True)
    ranking = []
    for point, runs in zip(points, treated, strict=True):
        gains = [reached(run) - reached(plain) for run, plain in zip(runs, controls, strict=True)]
        if not METRICS[metric].higher_is_better:
            gains = [-gain for gain in gains]
        spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
        ranking.append(GridPoint(point, statistics.mean(gains), spread / math.sqrt(len(gains))))
    return sorted(ranking, key=lambda point: -point.gain)


def candidates_of(
    base: RunConfig, grid: Mapping[str, Sequence[Any]]
) -> tuple[list[dict[str, Any]], list[RunConfig]]:
    """The points of a grid, and `base` with the settings of each."""
    points: list[dict[str, Any]] = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    return points, [with_settings(base, spelled_out(point)) for point in points]


def _on_seeds(config: RunConfig, seeds: Iterable[int]) -> list[RunConfig]:
    return [with_settings(config, {"seed": seed}) for seed in seeds]
