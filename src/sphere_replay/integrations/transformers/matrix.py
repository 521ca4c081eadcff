"""What a model can do of each task after each task, and what it has forgotten by then."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sphere_replay.extras import require


@dataclass(frozen=True, eq=False)
class EvaluationMatrix:
    """An accuracy, a reward or a loss of every task after every task."""

    names: tuple[str, ...]
    values: Tensor
    """A[t, j], float64 `[T, T]`: task j after task t; NaN where it was not evaluated."""
    metric: str = "loss"
    greater_is_better: bool = False

    @classmethod
    def from_history(
        cls,
        history: Iterable[Mapping[str, Any]],
        names: Iterable[str],
        steps: Iterable[int],
        metric: str,
        *,
        greater_is_better: bool,
    ) -> "EvaluationMatrix":
        """Read from a trainer's log: `steps` are the updates after which each task has ended."""
        order, ends = tuple(names), list(steps)
        values = torch.full((len(ends), len(order)), float("nan"), dtype=torch.float64)
        for entry in history:
            for column, name in enumerate(order):
                value = evaluated(entry, name, metric)
                if value is not None:
                    for row, step in enumerate(ends):
                        if entry["step"] == step:
                            values[row, column] = value
        return cls(order, values, metric, greater_is_better)

    @property
    def learned(self) -> int:
        """Tasks after which all tasks up to them were evaluated."""
        known = [not bool(row[: i + 1].isnan().any()) for i, row in enumerate(self.values)]
        return known.index(False) if False in known else len(known)

    @property
    def average(self) -> float | None:
        """(1/T) Σ_j A[T, j] over the tasks learned so far."""
        return _mean(self._good[-1:, :].flatten() * self._sign)

    @property
    def forgetting(self) -> float | None:
        """Mean over earlier tasks of how much worse it is than it was at best; never negative."""
        if self.learned < 2:
            return None
        good = self._good
        best = good.masked_fill(torch.ones_like(good).triu(1).bool(), -torch.inf).amax(0)
        return _mean((best - good[-1])[:-1])

    @property
    def backward_transfer(self) -> float | None:
        """Mean over earlier tasks of A[T, j] - A[j, j], the other way round for a loss."""
        good = self._good
        return _mean((good[-1] - good.diagonal())[:-1]) if self.learned > 1 else None

    def summary(self) -> dict[str, float]:
        """Average, forgetting and backward transfer, as far as they are known."""
        known = {
            "average": self.average,
            "forgetting": self.forgetting,
            "backward_transfer": self.backward_transfer,
        }
        return {name: value for name, value in known.items() if value is not None}

    def __str__(self) -> str:
        """A table: a row after each task, a column for each."""
        width = max(10, *(len(name) + 2 for name in self.names))
        label = max(len(name) for name in (*self.names, self.metric)) + len("after ")
        lines = [f"{self.metric:{label}}" + "".join(f"{name:>{width}}" for name in self.names)]
        for name, row in zip(self.names, self.values.tolist(), strict=False):
            cells = (f"{'-' if cell != cell else format(cell, '.3f'):>{width}}" for cell in row)
            lines.append(f"{f'after {name}':{label}}" + "".join(cells))
        known = [f"{name.replace('_', ' ')} {v:.3f}" for name, v in self.summary().items()]
        return "\n".join([*lines, ", ".join(known)])

    def heat_map(self, file: str | Path) -> None:
        """Draw the matrix; the format is the file name's (.png, .svg, .pdf)."""
        pyplot = require("matplotlib.figure", "report")
        size = 2 + 0.8 * len(self.names)
        figure = pyplot.Figure(figsize=(size, 0.8 * size), layout="constrained")
        axes = figure.subplots()
        colors = "viridis" if self.greater_is_better else "viridis_r"
        image = axes.imshow(self.values.numpy(), cmap=colors)
        figure.colorbar(image, label=self.metric)
        axes.set_xticks(range(len(self.names)), self.names, rotation=30, ha="right")
        axes.set_yticks(range(len(self.values)), [f"after {name}" for name in self.names])
        axes.set_xlabel(
            ", ".join(f"{n.replace('_', ' ')} {v:.3f}" for n, v in self.summary().items())
        )
        for row, line in enumerate(self.values.tolist()):
            for column, value in enumerate(line):
                if value == value:
                    axes.text(
                        column,
                        row,
                        f"{value:.2f}",
                        ha="center",
                        va="center",
                        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.7},
                    )
        figure.savefig(file, dpi=150)

    @property
    def _sign(self) -> int:
        return 1 if self.greater_is_better else -1

    @property
    def _good(self) -> Tensor:
        """The square part of the tasks learned so far, greater is better."""
        return self.values[: self.learned, : self.learned] * self._sign


def evaluated(entry: Mapping[str, Any], name: str, metric: str) -> float | None:
    """A task's metric in an entry of a trainer's log; None if the entry is of something else.

    Trainers of TRL put their own metrics, such as rewards, under `eval_` without the task's name.
    """
    if f"eval_{name}_runtime" not in entry:
        return None
    value = entry.get(f"eval_{name}_{metric}", entry.get(f"eval_{metric}"))
    return None if value is None else float(value)


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if values.numel() else None
