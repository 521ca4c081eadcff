"""Sweeps on a Ray cluster: the same folders to the last bit, also when a node is killed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugged import forgotten
from sphere_replay.cli import main
from sphere_replay.codebase import this_code
from sphere_replay.errors import UsageError
from sphere_replay.plugging import load
from sphere_replay.runs import cluster
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.launch import Surroundings, run_folder
from sphere_replay.vision.presets import resolve

HALTING = Path(__file__).with_name("halting.py")
EXPERIMENT = f"""
title = "Killed"
preset = "digits"
measures = ["tail_accuracy"]
seeds = 2
plugins = ['{HALTING}']

[settings]
limit = 1100
batch = 2
replay_batch = 2

[columns]
"40%" = {{ noise = 0.4 }}

[[rows]]
method = "halting"
host = "halting"
"""
WITHOUT_RAY = "the extra `ray` is not installed"
STEPS = 550
"""A few more where tasks do not end with a whole batch."""
DEADLINE = 120.0


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes with one CPU each, and the node that may be killed."""
    pytest.importorskip("ray", reason=WITHOUT_RAY)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("HALTING_FOLDER", str(tmp_path))
    bare = {"num_cpus": 1, "include_dashboard": False, "include_log_monitor": False}
    local = Cluster(initialize_head=True, head_node_args={"no_monitor": True, **bare})
    session = local.head_node.get_session_dir_path()
    try:
        yield local, local.add_node(**bare, env_vars={"HALTING_DOOMED": "1"})
    finally:
        local.shutdown()
        shutil.rmtree(session)


def test_a_killed_node_loses_nothing_but_steps_since_the_checkpoint(
    two_nodes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local, doomed = two_nodes
    experiment, here, there = tmp_path / "killed.toml", tmp_path / "here", tmp_path / "there"
    experiment.write_text(EXPERIMENT)
    words = ["sweep", str(experiment), "--quiet", "--out"]
    with subprocess.Popen(
        [sys.executable, "-m", "sphere_replay", *words, str(there), "--ray", local.address],
        stdout=subprocess.PIPE,
        text=True,
    ) as sweeping:
        until = time.monotonic() + DEADLINE
        while not (tmp_path / "halted").exists():
            assert sweeping.poll() is None
            assert time.monotonic() < until, "no run has come to the doomed node"
            time.sleep(0.1)
        local.remove_node(doomed, allow_graceful=False)
        said, _ = sweeping.communicate(timeout=DEADLINE)
    assert sweeping.returncode == 0
    assert said == f"2 of 2 runs finished in {there}\n"

    def taken(where: str) -> list[int]:
        return sorted(path.stat().st_size for path in tmp_path.glob(f"{where}-*"))

    assert taken("doomed") == [510]
    resumed, whole = taken("spared")
    assert whole >= STEPS
    assert resumed < STEPS - 490  # from the checkpoint on, not from the beginning

    with forgotten(), pytest.MonkeyPatch.context() as patch:
        patch.delenv("HALTING_FOLDER")
        assert main([*words, str(here)]) == 0
    for path in here.glob("digits-*/results.json"):
        assert (there / path.relative_to(here)).read_bytes() == path.read_bytes()
    shown = []
    for runs in (here, there):
        capsys.readouterr()
        with forgotten():
            assert main(["table", str(experiment), "--runs", str(runs), "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0] == shown[1]
    assert [row["seeds"] for row in shown[0]["rows"]] == [2]


def test_a_node_refuses_what_would_not_be_the_same_run(tmp_path: Path) -> None:
    config = resolve("digits", "er", "uniform", limit=20)
    text = cluster._text(config, Surroundings(tmp_path / "runs", None, 0, ()))

    def refusal(**changes: object) -> str:
        told = json.loads(cluster.run_from_text(json.dumps(json.loads(text) | changes)))
        assert told["status"] == "failed"
        assert os.uname().nodename in told["reason"]
        reason: str = told["reason"]
        return reason

    assert "must be on a disk of all nodes" in refusal()
    (tmp_path / "runs").mkdir()
    assert "install the same everywhere" in refusal(code="another")
    older = config.to_dict() | {"code": {"sphere_replay": "0.0.1"}}
    assert "code.sphere_replay: '0.0.1' ->" in refusal(config=older)
    plugin = tmp_path / "mine.py"
    plugin.write_text("")
    with forgotten():
        digest = load(plugin).digest
        assert "has changed" in refusal(plugins=[{"source": str(plugin), "digest": "another"}])
    with forgotten():
        told = cluster.run_from_text(
            json.dumps(json.loads(text) | {"plugins": [{"source": str(plugin), "digest": digest}]})
        )
    assert json.loads(told)["status"] == "finished"
    assert list((tmp_path / "runs").glob("*/results.json"))


def test_what_travels_is_absolute_and_names_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPHERE_DATA", "images")
    config = resolve("digits", "er", "uniform")
    sent = json.loads(cluster._text(config, Surroundings(Path("runs"), None, 3, ("tensorboard",))))
    assert sent["out"] == str(tmp_path / "runs")
    assert sent["data"] == str(tmp_path / "images")
    assert (sent["record"], sent["track"]) == (3, ["tensorboard"])
    assert sent["code"] == this_code().digest
    assert sent["config"] == json.loads(json.dumps(config.to_dict()))


def test_workers_and_a_cluster_are_not_had_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "digits", "--workers", "2", "--ray"]) == 2
    assert "leave out one" in capsys.readouterr().err


def test_a_cluster_that_is_not_there_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason=WITHOUT_RAY)
    for address in ("127.0.0.1:1", "nowhere"):
        words = ["sweep", "digits", "--seeds", "1", "--out", str(tmp_path), "--ray", address]
        assert main(words) == 2
        assert f"no Ray cluster at '{address}'" in capsys.readouterr().err


def test_a_head_that_the_environment_names_is_not_waited_for_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[object] = []
    idle = {"is_initialized": lambda: False, "init": lambda **options: begun.append(options)}
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(**idle, shutdown=lambda: None))
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert main(["sweep", "digits", "--seeds", "1", "--out", str(tmp_path), "--ray"]) == 2
        assert f"no Ray cluster at $RAY_ADDRESS, '{address}'" in capsys.readouterr().err
    assert not begun
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # whose head Ray looks for itself
    with cluster._connected(""):
        assert len(begun) == 1


def test_an_address_is_knocked_on_however_it_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    idle = SimpleNamespace(
        is_initialized=lambda: False, init=lambda **_: begun.append(_), shutdown=lambda: None
    )
    monkeypatch.setitem(sys.modules, "ray", idle)
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "auto"):
            with cluster._connected(address):
                assert begun.pop()["address"] == address
    with (
        pytest.raises(UsageError, match="no Ray cluster at 'nowhere'"),
        cluster._connected("nowhere"),
    ):
        pass


def test_results_that_a_disk_shows_later_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve("digits", "er")
    folder = run_folder(config, tmp_path).path
    shown: list[Path] = []

    def listed(place: Path) -> list[str]:
        shown.append(place)
        if folder in shown:
            monkeypatch.setattr(RunFolder, "finished", True)
        return []

    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(os, "listdir", listed)
    assert cluster._seen(config, tmp_path)
    assert shown == [tmp_path, folder]
    monkeypatch.setattr(cluster, "SHOWN_WITHIN", -1.0)
    monkeypatch.setattr(RunFolder, "finished", False)
    assert not cluster._seen(config, tmp_path)


def test_without_ray_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert (
        main(["sweep", "digits", "--seeds", "1", "--out", str(tmp_path), "--quiet", "--ray"]) == 2
    )
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "this needs ray: pip install" in said.err
