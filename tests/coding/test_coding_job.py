"""A run through TRL's own loop: it learns, is judged, and resumed anywhere it ends alike."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from coding.brief import brief, home, job_of
from sphere_replay.coding.config import CodingConfig
from sphere_replay.coding.job import CodingJob, make_job
from sphere_replay.coding.presets import resolve
from sphere_replay.errors import DivergenceError, Interrupted, UsageError
from sphere_replay.runs.checkpoint import load_latest
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.log import read_log
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.recording import FOLDER, read_recording
from sphere_replay.runs.records import TaskMatrix
from sphere_replay.runs.runner import run_job
from sphere_replay.storage.files import canonical_json
from sphere_replay.storage.trees import flatten, from_bytes, to_bytes, unflatten


class Recorder:
    """Keeps records and states; stops the loop after some steps."""

    def __init__(self, job: CodingJob, stop_after: int | None = None) -> None:
        self.records: list[Mapping[str, object] | None] = []
        self.states: list[tuple[bytes, str]] = []
        self._job = job
        self._stop_after = stop_after

    def __call__(
        self, record: Mapping[str, object] | None, seconds: Mapping[str, float] | None = None
    ) -> None:
        self.records.append(record)
        tensors, skeleton = flatten(self._job.state_dict())
        self.states.append((to_bytes(tensors), json.dumps(skeleton)))
        if len(self.records) == self._stop_after:
            raise Interrupted("enough")


def whole(config: CodingConfig) -> tuple[CodingJob, Recorder]:
    job = job_of(config)
    recorder = Recorder(job)
    job.run(0, recorder)
    return job, recorder


@pytest.fixture(scope="module")
def sphere() -> tuple[CodingJob, Recorder]:
    return whole(brief("sphere"))


def test_a_recorded_run_is_the_same_run_and_shows_its_programs(
    sphere: tuple[CodingJob, Recorder], tmp_path: Path
) -> None:
    expected, plain = sphere
    job = job_of(brief("sphere"))
    job.record(tmp_path / FOLDER, 8)
    recorder = Recorder(job)
    job.run(0, recorder)
    assert recorder.states == plain.states
    assert job.results() == expected.results()
    moments = read_recording(tmp_path)
    assert moments
    for _, tree in moments:
        assert tree["fleeting"]
        assert all(text.count("— advantage ") == 4 for text in tree["texts"])


def test_options_of_the_selection_reach_it() -> None:
    job = job_of(brief("sphere", select_options={"leave_one_out": True}))
    with pytest.raises(Interrupted):
        job.run(0, Recorder(job, stop_after=1))
    assert job._trainer is not None
    selection: Any = job._trainer.replay.weigher.selection
    assert selection.recipe.leave_one_out


def test_interrupted_between_two_updates_a_run_ends_with_the_same_bits(
    sphere: tuple[CodingJob, Recorder],
) -> None:
    expected, recorder = sphere
    first = job_of(brief("sphere"))
    part = Recorder(first, stop_after=2)
    with pytest.raises(Interrupted):
        first.run(0, part)
    assert part.records == recorder.records[:2]
    tensors, skeleton = part.states[-1]
    # What was drawn from the global generator in between must not matter.
    torch.rand(7)
    second = job_of(brief("sphere"))
    second.load_state_dict(unflatten(from_bytes(tensors), json.loads(skeleton)))
    rest = Recorder(second)
    second.run(2, rest)
    assert rest.records == recorder.records[2:]
    assert rest.states == recorder.states[2:]
    assert second.results() == expected.results()
    assert second.checksums == expected.checksums


def test_results_are_plain_json_and_what_the_metrics_read(
    sphere: tuple[CodingJob, Recorder],
) -> None:
    job, recorder = sphere
    results = job.results()
    assert json.loads(canonical_json(results, "results")) == results
    accuracy = results["accuracy"]
    assert accuracy["tasks"] == ["text", "choices"]
    assert accuracy["counts"] == [3, 3]
    assert len(accuracy["initial"]) == 2
    # Every checkpoint has every stage, also the one still to come.
    assert not TaskMatrix.from_dict(accuracy).values.isnan().any()
    assert measure(TaskMatrix.from_dict(accuracy)).keys() >= {
        *("final_accuracy", "old_accuracy", "worst_task", "mean_forgetting", "bwt"),
        "checkpoint_average",
    }
    assert results["task_ends"] == [2, 4]
    assert len(recorder.records) == len(job) == 4


def test_costs_and_rewards_are_what_happened(sphere: tuple[CodingJob, Recorder]) -> None:
    results = sphere[0].results()
    # 4 updates of 4 problems x 4 programs; candidates from the second update on, 3 x 4.
    assert results["costs"]["stream_programs"] == 64
    assert results["costs"]["candidate_programs"] == 36
    assert results["costs"]["scoring_forwards"] % 2 == 0
    reward = results["reward"]
    assert len(reward["visible"]) == 4
    assert sum(reward["rewarded"]) == pytest.approx(16 * sum(reward["visible"]))
    assert sum(reward["rewarded"]) > 0
    assert all(h <= r for h, r in zip(reward["hollow"], reward["rewarded"], strict=True))
    assert results["replay"]["mixed_share"] > 0


def test_the_log_says_how_the_model_was_asked(sphere: tuple[CodingJob, Recorder]) -> None:
    job, recorder = sphere
    first = recorder.records[0]
    assert first is not None
    assert first["notes"] == ["the model has no chat template: prompts are plain text"]
    assert job.results()["prompts"] == {"chat_template": False, "too_long": 0}


def test_without_replay_nothing_is_sampled_twice_and_the_stream_is_the_same(
    sphere: tuple[CodingJob, Recorder],
) -> None:
    job, recorder = whole(brief(host="none"))
    results = job.results()
    assert results["costs"]["candidate_programs"] == 0
    assert results["replay"]["mean_mass"] is None
    # The first update comes before any replay, so both runs have sampled the same programs.
    ours, theirs = recorder.records[0], sphere[1].records[0]
    assert ours is not None
    assert theirs is not None
    assert ours["reward"] == theirs["reward"]
    assert job.checksums == sphere[0].checksums


def test_a_run_leaves_the_generator_of_torch_alone() -> None:
    job = job_of(brief(host="none", stages="text"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        state = torch.get_rng_state()
        job.run(0, Recorder(job))
        assert torch.equal(state, torch.get_rng_state())


def test_a_run_that_diverges_says_so() -> None:
    job = job_of(brief(host="none", stages="choices", lr=1e30, clip=1e30))
    with pytest.raises(DivergenceError, match=r"the run has diverged: .*try a lower lr"):
        job.run(0, Recorder(job))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(UsageError, match="no GPU here: choose --device cpu"):
        make_job(resolve("coding-qwen"), None, Path("nowhere"))


def test_run_and_resume_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after a checkpoint, the same call goes on and ends with the same bytes."""
    monkeypatch.setattr(CodingJob, "checkpoint_every", 1)
    config = brief("mir", stages="text")

    def run(folder: Path, report: Any = None) -> bytes:
        run_job(
            lambda: job_of(config),
            RunFolder(folder),
            config.to_dict(),
            seed=config.seed,
            report=report,
        )
        return (folder / "results.json").read_bytes()

    class KilledError(Exception):
        pass

    def kill(done: int, of: int, status: str) -> None:
        if (tmp_path / "killed" / "checkpoint.json").exists():
            raise KilledError

    expected = run(tmp_path / "whole")
    with pytest.raises(KilledError):
        run(tmp_path / "killed", kill)
    assert load_latest(tmp_path / "killed") is not None
    assert run(tmp_path / "killed") == expected
    logs = [read_log(tmp_path / name / "log.jsonl", times=False) for name in ("whole", "killed")]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 2
    assert (home() / "verdicts").is_dir()
