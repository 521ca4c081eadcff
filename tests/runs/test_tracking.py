"""Trackers get what the log and the results say, however a run came to its end, and change nothing.

TensorBoard is the real one. Of the others, which are too heavy to install for this, stand-ins keep
the calls; their signatures are those of the real packages.
"""

import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sphere_replay.cli import main
from sphere_replay.config import RunConfig
from sphere_replay.errors import UsageError
from sphere_replay.runs import tracking
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.launch import Outcome, run_config, run_folder
from sphere_replay.runs.log import read_log
from sphere_replay.runs.sweep import sweep
from sphere_replay.runs.tracking import PROJECT, TRACKERS, Tool, check_trackers, numbers_of
from sphere_replay.vision.presets import resolve

CONFIG = resolve("digits", "er", "sphere", noise=0.4, seed=1, limit=300)


class StopError(Exception):
    """A power cut."""


def stop_at(step: int) -> Any:
    def report(done: int, total: int, words: str) -> None:
        if done == step:
            raise StopError

    return report


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would draw of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def logged(run: Path, name: str) -> list[tuple[int, float]]:
    lines = read_log(run / "log.jsonl")
    return [(line["step"], line[name]) for line in lines if line.get(name) is not None]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain")
    run_config(CONFIG, out)
    return run_folder(CONFIG, out).path


def test_tensorboard_shows_log_and_results_and_the_run_is_the_same(
    tmp_path: Path, plain: Path
) -> None:
    results = run_config(CONFIG, tmp_path, track=["tensorboard"])
    run = run_folder(CONFIG, tmp_path).path
    for name in ("config.json", "results.json"):
        assert (run / name).read_bytes() == (plain / name).read_bytes()
    shown = curves(run)
    for name in ("loss", "accuracy", "forward"):
        assert len(logged(plain, name)) > 1
        assert dict(shown[name]) == pytest.approx(dict(logged(plain, name)), rel=1e-6)
        assert len(shown[name]) == len(logged(plain, name))
    final = dict(shown["results/metrics/class_il"])
    assert final == pytest.approx({0: results["metrics"]["class_il"]}, rel=1e-6)
    assert "time/unix" not in shown


def test_a_resumed_run_is_shown_whole_and_once(tmp_path: Path, plain: Path) -> None:
    with pytest.raises(StopError):
        run_config(CONFIG, tmp_path, checkpoint_every=5, report=stop_at(13), track=["tensorboard"])
    run_config(CONFIG, tmp_path, checkpoint_every=5, track=["tensorboard"])
    shown = curves(run_folder(CONFIG, tmp_path).path)
    assert [step for step, _ in shown["loss"]] == [step for step, _ in logged(plain, "loss")]


def test_a_finished_run_is_sent_from_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "digits", "--limit", "200", "--quiet", "--out", str(tmp_path)]
    assert main(words) == 0
    assert main([*words, "--track", "tensorboard"]) == 0
    run = next(path.parent for path in tmp_path.glob("*/results.json"))
    assert [step for step, _ in curves(run)["loss"]] == [step for step, _ in logged(run, "loss")]
    capsys.readouterr()


def test_runs_of_a_sweep_are_tracked(tmp_path: Path) -> None:
    configs = [resolve("digits", "er", seed=seed, limit=100) for seed in (0, 1)]
    outcomes = sweep(configs, tmp_path, track=["tensorboard"])
    assert [outcome.status for outcome in outcomes] == ["finished", "finished"]
    for config in configs:
        assert "results/metrics/class_il" in curves(run_folder(config, tmp_path).path)


def test_a_run_that_is_wanted_twice_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def outcomes(configs: list[RunConfig], *_: object) -> Iterator[Outcome]:
        made.extend(configs)
        return (Outcome(config, "finished") for config in configs)

    monkeypatch.setattr("sphere_replay.runs.sweep._outcomes", outcomes)
    other = resolve("digits", "er", seed=2, limit=100)
    found = sweep([CONFIG, other, CONFIG], tmp_path, workers=2)
    assert made == [CONFIG, other]
    assert [outcome.config for outcome in found] == [CONFIG, CONFIG, other]
    assert {outcome.status for outcome in found} == {"finished"}
    monkeypatch.setattr(
        "sphere_replay.runs.sweep._outcomes",
        lambda configs, *_: (Outcome(config, "failed", "broken") for config in configs),
    )
    failed = sweep([CONFIG, CONFIG], tmp_path, workers=2)
    assert [outcome.reason for outcome in failed] == ["broken"] * 2


def test_nothing_is_imported_unless_asked() -> None:
    script = (
        "import sys, sphere_replay.runs.launch, sphere_replay.cli.commands.run as run\n"
        "tools = {'tensorboard', 'wandb', 'mlflow', 'trackio'}\n"
        "assert not tools & set(sys.modules), tools & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_mistakes_are_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "digits", "--out", str(tmp_path / "runs"), "--track"]
    assert main([*words, "tensorbord"]) == 2
    assert "tensorboard" in capsys.readouterr().err
    absent = Tool("no_such_package", TRACKERS["wandb"].begin, TRACKERS["wandb"].remedy)
    monkeypatch.setitem(TRACKERS, "wandb", absent)
    assert main([*words, "wandb"]) == 2
    assert "--track wandb: this needs wandb: pip install wandb" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_tracker_that_fails_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone:
        def log(self, step: int, numbers: Mapping[str, float]) -> None:
            raise ConnectionError("the server is gone")

        def summarize(self, numbers: Mapping[str, float]) -> None: ...

        def close(self, *, finished: bool) -> None: ...

    monkeypatch.setitem(TRACKERS, "gone", Tool("math", lambda run: Gone(), ""))
    run_config(CONFIG, tmp_path, track=["gone", "tensorboard"])
    run = run_folder(CONFIG, tmp_path).path
    assert (run / "results.json").read_bytes() == (plain / "results.json").read_bytes()
    assert "gone has failed, and tracks no more: the server is gone" in capsys.readouterr().err
    assert curves(run)["loss"]


def test_one_that_cannot_begin_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: RunFolder) -> tracking.Tracker:
        raise RuntimeError("log in first")

    monkeypatch.setitem(TRACKERS, "refusing", Tool("math", refuse, ""))
    with pytest.raises(UsageError, match="--track refusing cannot begin: log in first"):
        run_config(CONFIG, tmp_path, track=["refusing"])


class StandIn(ModuleType):
    """Keeps the calls of a package's functions and of what they return."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]  # what find_spec asks for
        self.__file__ = (
            name  # which whoever looks for the source of a function asks all modules for
        )
        self.calls: list[tuple[str, Any, Any]] = []
        self.summary = self
        self.entities = SimpleNamespace(Metric=lambda *it: it, Param=lambda *it: it)

    def called(self, name: str) -> list[tuple[Any, Any]]:
        return [(words, options) for call, words, options in self.calls if call == name]

    def _keep(self, name: str, result: Any) -> Any:
        def call(*words: Any, **options: Any) -> Any:
            self.calls.append((name, words, options))
            return result

        return call

    def __getattr__(self, name: str) -> Any:
        results: dict[str, Any] = {
            "init": self,
            "MlflowClient": self,
            "set_experiment": SimpleNamespace(experiment_id="7"),
            "search_runs": [SimpleNamespace(info=SimpleNamespace(run_id="old"))],
            "create_run": SimpleNamespace(info=SimpleNamespace(run_id="new")),
        }
        return self._keep(name, results.get(name))


def standing_in(monkeypatch: pytest.MonkeyPatch, name: str) -> StandIn:
    module = StandIn(name)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.mark.parametrize(("name", "mode"), [("wandb", None), ("wandb-offline", "offline")])
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mode: str) -> None:
    wandb = standing_in(monkeypatch, "wandb")
    results = run_config(CONFIG, tmp_path, track=[name])
    folder = run_folder(CONFIG, tmp_path)
    ((_, options),) = wandb.called("init")
    assert (options["project"], options["name"]) == (PROJECT, folder.path.name)
    assert (options["mode"], options["id"]) == (mode, folder.identity[:32])
    assert options["config"] == folder.config
    points = [(given["step"], words[0]["loss"]) for words, given in wandb.called("log")]
    assert points == logged(folder.path, "loss")
    (((summary,), _),) = wandb.called("update")
    assert summary["results/metrics/class_il"] == results["metrics"]["class_il"]
    assert wandb.called("finish") == [((), {"exit_code": 0})]


def test_wandb_is_told_of_an_unfinished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = standing_in(monkeypatch, "wandb")
    with pytest.raises(StopError):
        run_config(CONFIG, tmp_path, report=stop_at(13), track=["wandb"])
    assert wandb.called("finish") == [((), {"exit_code": 1})]
    assert not wandb.called("update")


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = standing_in(monkeypatch, "mlflow")
    results = run_config(CONFIG, tmp_path, track=["mlflow"])
    folder = run_folder(CONFIG, tmp_path)
    assert mlflow.called("set_experiment") == [((PROJECT,), {})]
    assert mlflow.called("delete_run") == [(("old",), {})]
    tags = {"identity": folder.identity}
    assert mlflow.called("create_run") == [(("7",), {"tags": tags, "run_name": folder.path.name})]
    batches = [options for words, options in mlflow.called("log_batch") if words == ("new",)]
    settings = dict(item for batch in batches for item in batch.get("params", ()))
    assert (settings["host"], settings["noise"]) == ("er", "0.4")
    metrics = [item for batch in batches for item in batch.get("metrics", ())]
    losses = [(step, value) for name, value, _, step in metrics if name == "loss"]
    assert losses == logged(folder.path, "loss")
    final = {name: value for name, value, _, _ in metrics if name.startswith("results/")}
    assert final["results/metrics/class_il"] == results["metrics"]["class_il"]
    assert mlflow.called("set_terminated") == [(("new", "FINISHED"), {})]


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = standing_in(monkeypatch, "trackio")
    run_config(CONFIG, tmp_path, track=["trackio"])
    folder = run_folder(CONFIG, tmp_path)
    ((_, options),) = trackio.called("init")
    assert (options["project"], options["name"]) == (PROJECT, folder.path.name)
    *points, (last, given) = trackio.called("log")
    assert [(it["step"], words[0]["loss"]) for words, it in points] == logged(folder.path, "loss")
    assert "results/metrics/class_il" in last[0]
    assert given["step"] == points[-1][1]["step"]
    assert trackio.called("finish") == [((), {})]


def test_numbers_of() -> None:
    tree = {"a": 1, "b": {"c": 0.5, "d": math.nan, "e": "nan"}, "f": [1], "g": True, "h": None}
    assert numbers_of(tree) == {"a": 1, "b/c": 0.5}


def test_known_names() -> None:
    with pytest.raises(UsageError, match="mlflow"):
        check_trackers(["mlflo"])
