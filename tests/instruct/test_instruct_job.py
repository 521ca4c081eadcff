"""An instruction-tuning run: resumed anywhere it ends alike, it learns, and replay helps."""

import json
import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from instruct.small import brief, corpus, llama, save, t5, train
from sphere_replay.errors import DivergenceError
from sphere_replay.instruct import job as job_module
from sphere_replay.instruct.config import InstructConfig
from sphere_replay.instruct.job import InstructJob, make_job
from sphere_replay.instruct.presets import resolve
from sphere_replay.language.models import BaseModel
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.recording import FOLDER, read_recording
from sphere_replay.runs.records import TaskMatrix
from sphere_replay.storage.files import canonical_json
from sphere_replay.storage.trees import to_bytes
from states import read, spelled, under_two_global_seeds

RUNS: list[tuple[str, Callable[[], BaseModel], dict[str, Any]]] = [
    ("sphere", t5, {"rank": 2}),
    ("sphere-identity", t5, {"rank": 2, "schedule": "economical", "landmarks": 4}),
    ("mir-top", t5, {"rank": 0}),
    ("sphere-permuted", llama, {"rank": 2}),
    ("sphere", llama, {"rank": 0, "answer_tokens": 1, "trained_blocks": 1, "tail": 1}),
    ("uniform", llama, {"rank": 2, "host": "none"}),
]


def job_of(config: InstructConfig, build: Callable[[], BaseModel] = t5) -> InstructJob:
    return InstructJob(config, corpus(), build())


def run(config: InstructConfig, build: Callable[[], BaseModel] = t5) -> InstructJob:
    job = job_of(config, build)
    train(job)
    return job


@cache
def plain(select: str, build: Callable[[], BaseModel]) -> InstructJob:
    """A run with small adapters that is over: to be read by several tests, and not to go on."""
    return run(brief(select, rank=2), build)


@pytest.mark.parametrize(("select", "build", "overrides"), RUNS)
def test_interrupted_anywhere_a_run_ends_with_the_same_bits(
    select: str,
    build: Callable[[], BaseModel],
    overrides: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "LOG_EVERY", 1)
    config = brief(select, **overrides)
    whole = job_of(config, build)
    records = train(whole)
    assert len(records) == len(whole) == 9
    stops = sorted(random.Random(select).sample(range(1, len(whole)), 3))
    job = job_of(config, build)
    for first, end in pairwise([0, *stops, len(whole)]):
        assert train(job, first, end) == records[first:end]
        written = spelled(job.state_dict())
        job = job_of(config, build)
        job.load_state_dict(read(written))
    assert train(job, len(whole)) == []
    assert job.results() == whole.results()
    assert spelled(job.state_dict()) == spelled(whole.state_dict())
    assert job.checksums == whole.checksums


def test_a_run_neither_reads_nor_moves_the_global_generator() -> None:
    first, second = under_two_global_seeds(lambda: run(brief("sphere", rank=2)).state_dict())
    assert spelled(first) == spelled(second)


def test_results_are_plain_json_and_what_the_metrics_read() -> None:
    job = plain("sphere", t5)
    results = job.results()
    assert json.loads(canonical_json(results, "results")) == results
    accuracy = results["accuracy"]
    assert accuracy["tasks"] == ["topic", "review", "order"]
    assert accuracy["counts"] == [10, 10, 10]
    matrix = TaskMatrix.from_dict(accuracy)
    assert matrix.values.isnan().tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert measure(matrix)
    assert results["task_ends"] == [3, 6, 9]


def test_costs_and_shares_are_what_happened() -> None:
    job = plain("sphere", t5)
    replay, costs = job.results()["replay"], job.results()["costs"]
    # 8 updates replay 4 of 120 examples each; rescored before the 1st, 4th and 7th of them, when
    # the memory holds 16, 24 (capacity) and 24: a pool of 12 each time, twice.
    assert costs["stream_examples"] == 120
    assert costs["backward_per_example"] == pytest.approx((120 + 32) / 120)
    assert costs["scored_per_example"] == pytest.approx(3 * 12 * 2 / 120)
    assert costs["forward_per_example"] == pytest.approx((120 + 32 + 72) / 120)
    assert replay["share_of_tasks"][0] == [1.0, 0.0, 0.0]
    assert all(sum(row) == pytest.approx(1.0) for row in replay["share_of_tasks"])
    assert 0 < replay["mean_mass"] <= 1
    assert 1 <= replay["mean_effective_sample_size"] <= 12


def test_an_economical_run_passes_landmarks_twice_and_the_others_once() -> None:
    economy: dict[str, Any] = {"schedule": "economical", "landmarks": 5, "longest": 3}
    costs = run(brief("sphere", rank=2, **economy)).results()["costs"]
    assert costs["scored_per_example"] == pytest.approx(3 * (12 + 5) / 120)


def test_without_replay_nothing_is_remembered_or_scored() -> None:
    job = run(brief(host="none", rank=2))
    results = job.results()
    assert results["costs"]["forward_per_example"] == 1
    assert results["replay"]["mean_mass"] is None
    assert results["replay"]["share_of_tasks"][2] == [None] * 3


def test_selections_share_stream_and_memory_and_differ_in_what_they_replay() -> None:
    jobs = {select: plain(select, t5) for select in ("uniform", "sphere", "loss")}
    replays = [job.state_dict()["learner"]["replay"] for job in jobs.values()]
    assert len({spelled(replay["memory"]) for replay in replays}) == 1
    parameters = {to_bytes(job.state_dict()["learner"]["parameters"]) for job in jobs.values()}
    assert len(parameters) == 3
    assert len({json.dumps(job.checksums) for job in jobs.values()}) == 1


def test_a_log_line_tells_losses_mass_quantiles_and_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "LOG_EVERY", 1)
    job = job_of(brief("sphere", rank=2))
    first, *_, last = train(job)
    assert first["replay_loss"] is None
    assert last["loss"] > 0
    assert last["replay_loss"] > 0
    assert last["replay"].keys() >= {"mass", "ess", "increment_p5", "increment_p95"}
    shares = [value for name, value in last["replay"].items() if name.startswith("share/")]
    assert sum(shares) == pytest.approx(1.0)
    assert job.status == f"accuracy {100 * last['accuracy']:.1f}%"


@pytest.mark.parametrize("select", ["sphere", "uniform"])
@pytest.mark.parametrize("build", [t5, llama])
def test_a_recorded_run_is_the_same_run_and_shows_its_texts(
    tmp_path: Path, select: str, build: Callable[[], BaseModel]
) -> None:
    expected = plain(select, build)
    recorded = job_of(brief(select, rank=2), build)
    recorded.record(tmp_path / FOLDER, 3)
    train(recorded)
    assert recorded.results() == expected.results()
    assert spelled(recorded.state_dict()) == spelled(expected.state_dict())
    moments = read_recording(tmp_path)
    assert 2 <= len(moments) <= 3  # a short run may have fewer rescorings than were asked for
    for _, tree in moments:
        assert len(tree["texts"]) == len(tree["weights"])
        assert all("Answer:" in text and "→ " in text for text in tree["texts"])
        for text, label in zip(tree["texts"], tree["labels"].tolist(), strict=True):
            task, _, answer = tree["names"][label].partition(": ")
            assert task in ("topic", "review", "order")
            assert text.lower().endswith(f"→ {answer}")


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step() -> None:
    with pytest.raises(DivergenceError, match=r"diverged at step \d+: .*lower lr"):
        run(brief("uniform", rank=0, lr=1e30, clip=1e30))


def test_a_folder_is_as_good_a_model_as_any(tmp_path: Path) -> None:
    """The path of t5-large: adapters of rank 8 on a T5 that transformers has written."""
    folder = save(t5(), tmp_path / "t5")
    config = brief("sphere", model=str(folder), rank=8, order="topic", cap=20)
    job = make_job(config, None, tmp_path)
    train(job)
    parameters = job.state_dict()["learner"]["parameters"]
    assert all("lora_" in name for name in parameters)
    assert any(value.abs().max() > 0 for name, value in parameters.items() if "lora_B" in name)
    assert len(job.results()["accuracy"]["values"]) == 1


def test_a_tiny_model_learns_and_replay_saves_what_sequence_forgets(tmp_path: Path) -> None:
    """On the generated corpus, with the preset's own model: chance is 1/4, 1/3 and 1/2."""
    final, learned = {}, {}
    for host in ("none", "er"):
        config = resolve(
            "instruct-tiny",
            host,
            order="topic,stars,parity",
            cap=320,
            tests_per_task=60,
            warm_up=300,
        )
        job = make_job(config, None, tmp_path)
        train(job)
        values = job.results()["accuracy"]["values"]
        learned[host] = [values[task][task] for task in range(3)]
        final[host] = sum(values[-1]) / 3
    assert learned["er"][0] > 0.6
    assert sum(learned["er"]) / 3 > 0.6
    assert final["er"] > final["none"] + 0.15
