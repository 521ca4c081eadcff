"""Runs in the tool that their owner watches: TensorBoard, Weights & Biases, MLflow or trackio.

A tracker gets the numbers of `log.jsonl`, line by line, and in the end those of `results.json`. A
run takes no notice: neither its identity nor its results depend on who watches. Each session of a
run sends the whole log again from its first line, so nothing is missing, and nothing is left of
steps that were taken twice. A package is imported when its tracker is asked for.
"""

import importlib.util
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sphere_replay.errors import UsageError, unknown
from sphere_replay.extras import how_to_get
from sphere_replay.runs.folder import RunFolder
from sphere_replay.storage.files import leaves

PROJECT = "sphere-replay"
"""What runs are filed under where a tool has projects or experiments."""

Numbers = Mapping[str, float]


class Tracker(Protocol):
    """One run, as a tool sees it."""

    def log(self, step: int, numbers: Numbers) -> None:
        """Numbers of a step; steps never decrease."""
        ...

    def summarize(self, numbers: Numbers) -> None:
        """What came out in the end."""
        ...

    def close(self, *, finished: bool) -> None:
        """Nothing follows; the run has finished, or stopped before its end."""
        ...


class TensorBoard:
    """Event files in the folder `tensorboard` of a run: `tensorboard --logdir runs` shows all."""

    def __init__(self, run: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.path / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier session
        self._run = run
        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, numbers: Numbers) -> None:
        """A point of each curve."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def summarize(self, numbers: Numbers) -> None:
        """A row of the table that compares settings."""
        settings = {
            name: value
            for name, value in leaves(self._run.config)
            if isinstance(value, bool | int | float | str)
        }
        self._writer.add_hparams(settings, dict(numbers), run_name=".")

    def close(self, *, finished: bool) -> None:
        """Bring everything onto the disk."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, sent or, if `offline`, kept in the run's folder until a sync."""

    def __init__(self, run: RunFolder, *, offline: bool = False) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(
            project=PROJECT,
            name=run.path.name,
            id=run.identity[:32],  # an earlier session of the same run is overwritten
            config=run.config,
            dir=str(run.path),
            mode="offline" if offline else None,
        )

    def log(self, step: int, numbers: Numbers) -> None:
        """A point of each curve."""
        self._run.log(dict(numbers), step=step)

    def summarize(self, numbers: Numbers) -> None:
        """The run's summary."""
        self._run.summary.update(dict(numbers))

    def close(self, *, finished: bool) -> None:
        """Send what is left."""
        self._run.finish(exit_code=0 if finished else 1)


class MLflow:
    """A run of MLflow, where MLFLOW_TRACKING_URI says."""

    def __init__(self, run: RunFolder) -> None:
        self._mlflow = importlib.import_module("mlflow")
        self._client = self._mlflow.MlflowClient()
        experiment = self._mlflow.set_experiment(PROJECT).experiment_id
        known = f"tags.identity = '{run.identity}'"
        for earlier in self._client.search_runs([experiment], filter_string=known):
            self._client.delete_run(earlier.info.run_id)
        tags = {"identity": run.identity}
        made = self._client.create_run(experiment, tags=tags, run_name=run.path.name)
        self._id = made.info.run_id
        settings = [
            self._mlflow.entities.Param(name, str(value)) for name, value in leaves(run.config)
        ]
        for start in range(0, len(settings), 100):  # so many it takes at a time
            self._client.log_batch(self._id, params=settings[start : start + 100])

    def log(self, step: int, numbers: Numbers) -> None:
        """A point of each curve."""
        now = int(1000 * time.time())
        points = [
            self._mlflow.entities.Metric(name, number, now, step)
            for name, number in numbers.items()
        ]
        self._client.log_batch(self._id, metrics=points)

    def summarize(self, numbers: Numbers) -> None:
        """Metrics of their own."""
        self.log(0, numbers)

    def close(self, *, finished: bool) -> None:
        """Say how it ended."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


class Trackio:
    """A run of trackio, in its local database."""

    def __init__(self, run: RunFolder) -> None:
        trackio = importlib.import_module("trackio")
        self._step = 0
        self._run = trackio.init(
            project=PROJECT, name=run.path.name, config=run.config, resume="never"
        )

    def log(self, step: int, numbers: Numbers) -> None:
        """A point of each curve."""
        self._step = step
        self._run.log(dict(numbers), step=step)

    def summarize(self, numbers: Numbers) -> None:
        """Points at the last step, for want of a summary."""
        self._run.log(dict(numbers), step=self._step)

    def close(self, *, finished: bool) -> None:
        """Write what is left."""
        self._run.finish()


@dataclass(frozen=True)
class Tool:
    """A tracker by name: the module it needs, how to get that, what begins a run."""

    module: str
    begin: Callable[[RunFolder], Tracker]
    remedy: str


TRACKERS: dict[str, Tool] = {
    "tensorboard": Tool("tensorboard", TensorBoard, how_to_get("tensorboard", "track")),
    "wandb": Tool("wandb", WandB, "this needs wandb: pip install wandb"),
    "wandb-offline": Tool(
        "wandb", lambda run: WandB(run, offline=True), "this needs wandb: pip install wandb"
    ),
    "mlflow": Tool("mlflow", MLflow, "this needs mlflow: pip install mlflow"),
    "trackio": Tool("trackio", Trackio, "this needs trackio: pip install trackio"),
}
"""What `--track` takes."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse tools that are not known or not installed, without importing any."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(unknown("tracker", name, TRACKERS))
        if importlib.util.find_spec(TRACKERS[name].module) is None:
            raise UsageError(f"--track {name}: {TRACKERS[name].remedy}")


class Tracking:
    """All trackers of a run, told how it ends; one that fails is left alone, the run goes on."""

    def __init__(self, names: Sequence[str], run: RunFolder) -> None:
        check_trackers(names)
        self._trackers: dict[str, Tracker] = {}
        for name in dict.fromkeys(names):
            try:
                self._trackers[name] = TRACKERS[name].begin(run)
            except Exception as error:  # whatever a tool says that cannot begin
                self._close(finished=False)
                raise UsageError(f"--track {name} cannot begin: {error}") from error

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._close(finished=kind is None)

    def log(self, line: Mapping[str, Any]) -> None:
        """Pass on the numbers in a line of the log."""
        found = numbers_of(line)
        numbers = {name: found[name] for name in found if name not in ("step", "time/unix")}
        if numbers:
            self._tell(lambda tracker: tracker.log(line["step"], numbers))

    def summarize(self, results: Mapping[str, Any]) -> None:
        """Pass on the single numbers among the results: metrics, what was replayed, costs."""
        groups = ("metrics", "replay", "costs")
        chosen = {name: results[name] for name in groups if name in results}
        numbers = numbers_of({"results": chosen})
        if numbers:
            self._tell(lambda tracker: tracker.summarize(numbers))

    def _close(self, *, finished: bool) -> None:
        self._tell(lambda tracker: tracker.close(finished=finished))
        self._trackers = {}

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # hours of work are not lost to somebody else's server
                del self._trackers[name]
                print(f"sphere: {name} has failed, and tracks no more: {error}", file=sys.stderr)


def numbers_of(tree: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers in nested values, by their paths; text, lists and truths are left out."""
    return {
        name: value
        for name, value in leaves(tree)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
