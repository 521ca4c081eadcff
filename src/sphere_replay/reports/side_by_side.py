"""Saved results of several variants, summarised line by line."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sphere_replay.config import Pair
from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.render import gain_text, value_text
from sphere_replay.reports.statistics import mean, paired_difference, standard_deviation
from sphere_replay.runs.table import Spread

Runs = Sequence[FinishedRun]


@dataclass(frozen=True)
class Line:
    """One method in one column of one variant; accuracies and gains in percent."""

    variant: str
    method: str
    column: str
    seeds: int
    mean: float
    sd: float | None
    gain: float | None
    """Paired improvement over the host in the baseline, on common seeds."""
    ci95: tuple[float, float] | None
    mass: float | None
    noisy_lift: float | None
    effective_sample_size: float | None


def summarise(variant: str, runs: Runs, baseline: Runs | None = None) -> list[Line]:
    """A line for every method and column, in the order of first appearance."""
    lines = []
    for method, column in dict.fromkeys((run.method, run.column) for run in runs):
        chosen = _of(runs, method, column)
        accuracies = _accuracies(chosen)
        # "ER + SPHERE" is compared with "ER", and "ER" with itself.
        host = method.partition(" + ")[0]
        reference = _accuracies(_of(baseline or (), host, column))
        paired = paired_difference(accuracies, reference)
        lines.append(
            Line(
                variant,
                method,
                column,
                seeds=len(accuracies),
                mean=mean(list(accuracies.values())),
                sd=standard_deviation(list(accuracies.values()), Spread.POPULATION),
                gain=None if paired is None else paired.mean,
                ci95=None if paired is None else paired.interval,
                mass=_average(chosen, "mean_mass"),
                noisy_lift=_average(chosen, "noisy_lift"),
                effective_sample_size=_average(chosen, "mean_effective_sample_size"),
            )
        )
    return lines


def to_markdown(lines: Iterable[Line]) -> str:
    """A table with one row per line."""
    head = "variant | method | column | n | accuracy ± SD | gain [95% CI] | mass | lift | ESS"
    rows = [f"| {head} |", "|" + " --- |" * (head.count("|") + 1)]
    for line in lines:
        gain = "" if line.gain is None else gain_text(line.gain, line.ci95, 1)
        numbers = (line.mass, line.noisy_lift, line.effective_sample_size)
        shown = ["" if number is None else f"{number:.3g}" for number in numbers]
        names = [line.variant, line.method, line.column, str(line.seeds)]
        accuracy = value_text(line.mean, line.sd, 1)
        rows.append("| " + " | ".join([*names, accuracy, gain, *shown]) + " |")
    return "\n".join(rows)


def _of(runs: Runs, method: str, column: str) -> Runs:
    return [run for run in runs if (run.method, run.column) == (method, column)]


def _accuracies(runs: Runs) -> dict[Pair, float]:
    return {run.pair: 100 * _accuracy(run.results["metrics"]) for run in runs}


def _accuracy(metrics: Mapping[str, float]) -> float:
    """Class-IL where there are classes, the final accuracy over tasks elsewhere."""
    return metrics["class_il"] if "class_il" in metrics else metrics["final_accuracy"]


def _average(runs: Runs, name: str) -> float | None:
    found = [run.results["replay"].get(name) for run in runs]
    values = [value for value in found if value is not None]
    return mean(values) if values else None
