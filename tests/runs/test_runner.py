"""The runner: whatever stops a run, the next call takes it to the same bits."""

import json
import random
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from runs.accidents import AccidentError, Event, accident, at, interrupt, nothing
from sphere_replay.errors import Interrupted
from sphere_replay.runs import runner
from sphere_replay.runs.checkpoint import load_latest, save
from sphere_replay.runs.folder import ConfigMismatchError, DataMismatchError, RunFolder
from sphere_replay.runs.job import SteppedJob
from sphere_replay.runs.log import read_log
from sphere_replay.runs.runner import run_job

STEPS = 40
CONFIG = {"steps": STEPS}


class Walk:
    """A random walk with a log line at every third step; something may happen during a step."""

    def __init__(self, before: Event = nothing, after: Event = nothing, data: str = "a") -> None:
        self._generator = torch.Generator().manual_seed(4)
        self._place = torch.zeros(5)
        self._sums: list[float] = []
        self._before, self._after = before, after
        self._data = data

    def __len__(self) -> int:
        return STEPS

    @property
    def checksums(self) -> dict[str, str]:
        return {"walk": self._data}

    @property
    def status(self) -> str:
        return f"{len(self._sums)} sums"

    def advance(self, step: int) -> dict[str, Any] | None:
        assert step == len(self._sums)
        self._before(step)
        self._place += torch.randn(5, generator=self._generator)
        self._sums.append(float(self._place.sum()))
        self._after(step)
        return {"step": step, "sum": self._sums[-1]} if step % 3 == 0 else None

    def results(self) -> dict[str, Any]:
        return {"place": self._place.tolist(), "sums": self._sums}

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": self._generator.get_state(),
            "place": self._place,
            "sums": self._sums,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._generator.set_state(state["generator"])
        self._place, self._sums = state["place"].clone(), list(state["sums"])

    def record(self, folder: Path, moments: int) -> None:
        raise AssertionError("nobody asks a walk for this")


def walk(path: Path, make: Callable[[], SteppedJob] = Walk, every: int = 6) -> dict[str, Any]:
    return run_job(make, RunFolder(path), CONFIG, seed=4, checkpoint_every=every)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that never stopped."""
    path = tmp_path_factory.mktemp("whole")
    walk(path)
    return path


def assert_same_run(path: Path, whole: Path) -> None:
    for name in ("results.json", "config.json", "manifest.json"):
        assert (path / name).read_bytes() == (whole / name).read_bytes()
    log = read_log(path / "log.jsonl", times=False)
    assert log == read_log(whole / "log.jsonl", times=False)


def test_a_run_leaves_its_results_and_its_log(whole: Path) -> None:
    results = RunFolder(whole).results
    assert len(results["sums"]) == STEPS
    assert results["identity"] == RunFolder(whole).identity
    log = read_log(whole / "log.jsonl")
    assert [line["step"] for line in log] == list(range(0, STEPS, 3))
    assert all("unix" in line["time"] for line in log)
    assert RunFolder(whole).manifest["seed"] == 4
    assert RunFolder(whole).manifest["data"] == {"walk": "a"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("when", ["before", "after"])
def test_accidents_at_random_steps_change_nothing(
    seed: int, when: str, whole: Path, tmp_path: Path
) -> None:
    choose = random.Random(seed)
    steps = set(choose.sample(range(STEPS), 5))
    every = choose.choice([1, 2, 5, 7, 1000])
    event = at(steps, accident)
    make = {"before": lambda: Walk(before=event), "after": lambda: Walk(after=event)}[when]
    happened = 0
    while not RunFolder(tmp_path).finished:
        try:
            walk(tmp_path, make, every)
        except AccidentError:
            happened += 1
            assert happened <= 5
    assert happened == 5
    assert_same_run(tmp_path, whole)


def test_an_error_in_the_last_moment_costs_nothing_but_time(whole: Path, tmp_path: Path) -> None:
    class Unlucky(Walk):
        def results(self) -> dict[str, Any]:
            raise AccidentError

    with pytest.raises(AccidentError):
        walk(tmp_path, Unlucky)
    assert not RunFolder(tmp_path).finished
    walk(tmp_path)
    assert_same_run(tmp_path, whole)


def test_checkpoints_come_at_their_interval_and_not_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[int] = []

    def counted(folder: Path, tree: Any) -> None:
        steps.append(tree["step"])
        save(folder, tree)

    monkeypatch.setattr(runner, "save", counted)
    walk(tmp_path, every=8)
    assert steps == [8, 16, 24, 32]  # not 40: the results follow at once


def test_a_resumed_run_repeats_only_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(AccidentError):
        walk(tmp_path, lambda: Walk(before=at({20}, accident)))
    taken: list[int] = []
    walk(tmp_path, lambda: Walk(before=taken.append))
    assert taken == list(range(18, STEPS))


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("name", ["checkpoint.safetensors", "checkpoint.json"])
def test_after_damage_the_previous_checkpoint_serves(
    name: str, damage: str, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(AccidentError):
        walk(tmp_path, lambda: Walk(before=at({27}, accident)))
    newest = tmp_path / name
    content = newest.read_bytes()
    match damage:
        case "flipped":
            middle = len(content) // 2
            newest.write_bytes(
                content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            )
        case "cut":
            newest.write_bytes(content[:-3])
        case _:
            newest.unlink()
    taken: list[int] = []
    walk(tmp_path, lambda: Walk(before=taken.append))
    assert taken[0] == 18
    assert (tmp_path / "results.json").read_bytes() == (whole / "results.json").read_bytes()
    lines = read_log(tmp_path / "log.jsonl", times=False)
    told = [line for line in lines if "checkpoint" in line]
    if name == "checkpoint.json" and damage == "gone":
        assert told == []  # as if it had never been completed
    else:
        (line,) = told
        assert line["step"] == 18
        assert name in line["checkpoint"]
    rest = [line for line in lines if line not in told]
    assert rest == read_log(whole / "log.jsonl", times=False)


# Ctrl-C.


@pytest.mark.parametrize("step", [0, 10, 17, STEPS - 1])
def test_ctrl_c_saves_the_step_and_the_run_can_go_on(
    step: int, whole: Path, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=f"after step {step + 1} of {STEPS}"):
        walk(tmp_path, lambda: Walk(before=at({step}, interrupt)))
    assert signal.getsignal(signal.SIGINT) is before
    latest = load_latest(tmp_path)
    assert latest is not None
    assert latest.tree["step"] == step + 1
    assert not RunFolder(tmp_path).finished
    taken: list[int] = []
    walk(tmp_path, lambda: Walk(before=taken.append))
    assert taken == list(range(step + 1, STEPS))
    assert_same_run(tmp_path, whole)


def test_interrupted_again_and_again_a_run_still_ends_alike(whole: Path, tmp_path: Path) -> None:
    event = at({3, 4, 5, 21, 39}, interrupt)
    for _ in range(5):
        with pytest.raises(Interrupted):
            walk(tmp_path, lambda: Walk(after=event))
    walk(tmp_path)
    assert_same_run(tmp_path, whole)


def test_a_second_ctrl_c_does_not_wait_for_the_step(whole: Path, tmp_path: Path) -> None:
    def twice() -> None:
        interrupt()
        interrupt()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        walk(tmp_path, lambda: Walk(before=at({15}, twice)))
    assert signal.getsignal(signal.SIGINT) is before
    latest = load_latest(tmp_path)
    assert latest is not None
    assert latest.tree["step"] == 12
    walk(tmp_path)
    assert_same_run(tmp_path, whole)


def test_after_a_run_ctrl_c_is_what_it_was(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    walk(tmp_path)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_outside_the_main_thread_works_without_signals(whole: Path, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(walk(tmp_path)))
    thread.start()
    thread.join()
    assert results == [RunFolder(whole).results]
    assert_same_run(tmp_path, whole)


# The folder.


def never() -> SteppedJob:
    raise AssertionError("a finished run must not be computed again")


def test_a_finished_run_is_read_and_not_computed_again(tmp_path: Path) -> None:
    first = walk(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert walk(tmp_path, never) == first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written


def test_what_is_returned_is_what_was_written(tmp_path: Path) -> None:
    results = walk(tmp_path)
    assert results == json.loads((tmp_path / "results.json").read_text())


def test_what_is_computed_from_the_results_is_written_with_them(tmp_path: Path) -> None:
    def finish(results: dict[str, Any]) -> dict[str, Any]:
        return {**results, "last": results["sums"][-1]}

    results = run_job(Walk, RunFolder(tmp_path), CONFIG, seed=4, finish=finish)
    assert results["last"] == results["sums"][-1]
    assert RunFolder(tmp_path).results == results


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    walk(tmp_path)
    with pytest.raises(ConfigMismatchError, match="steps"):
        run_job(never, RunFolder(tmp_path), {"steps": 41}, seed=4)


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    with pytest.raises(AccidentError):
        walk(tmp_path, lambda: Walk(before=at({20}, accident)))
    with pytest.raises(DataMismatchError, match="walk"):
        walk(tmp_path, lambda: Walk(data="b"))


def test_progress_is_reported_after_every_step(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    run_job(
        Walk,
        RunFolder(tmp_path),
        CONFIG,
        seed=4,
        report=lambda step, steps, status: told.append((step, steps, status)),
    )
    assert told == [(step, STEPS, f"{step} sums") for step in range(1, STEPS + 1)]


def test_long_steps_are_saved_by_the_clock(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(runner, "monotonic", lambda: 100.0 * len(steps))
    with pytest.raises(AccidentError):
        walk(tmp_path, lambda: Walk(steps.append, at({10}, accident)), every=1000)
    walk(tmp_path, lambda: Walk(steps.append), every=1000)
    # 300 seconds are allowed: saved after 400 and after 800.
    assert steps == [*range(11), *range(8, STEPS)]
    assert_same_run(tmp_path, whole)


def test_an_impossible_interval_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint_every"):
        walk(tmp_path, every=0)
