"""A vision run: resumed anywhere it ends alike, and its results are what happened."""

import json
import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from sphere_replay.errors import DivergenceError
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.records import record_of
from sphere_replay.storage.files import canonical_json
from sphere_replay.vision import job as job_module
from sphere_replay.vision import load_images
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.evaluation import evaluate
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve
from states import Spelled, read, spelled, under_two_global_seeds

DIGITS = load_images("digits")
BRIEF: dict[str, Any] = {"limit": 160, "capacity": 40, "evaluate_every": 7, "k_s": 3, "k_t": 8}

RUNS = [
    ("er", "sphere", {}),
    ("er", "sphere-calibrated", {"schedule": "economical", "landmarks": 10, "longest": 8}),
    ("er-ace", "mir", {"pool": 20, "every": 3}),
    ("der-pp", "sphere", {"every": 3}),
    ("gdumb", "uniform", {"options": {"epochs": 2}}),
    ("none", "uniform", {}),
]


def brief(host: str = "er", select: str = "uniform", **overrides: Any) -> VisionConfig:
    return resolve("digits", host, select, **BRIEF | overrides)


def run(config: VisionConfig) -> VisionJob:
    job = VisionJob(config, DIGITS)
    for step in range(len(job)):
        job.advance(step)
    return job


def saved(job: VisionJob) -> Spelled:
    return spelled(job.state_dict())


def resumed(config: VisionConfig, state: Spelled) -> VisionJob:
    job = VisionJob(config, DIGITS)
    job.load_state_dict(read(state))
    return job


@pytest.mark.parametrize(("host", "select", "overrides"), RUNS)
def test_interrupted_anywhere_a_run_ends_with_the_same_bits(
    host: str, select: str, overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "LOG_EVERY", 1)
    config = brief(host, select, **overrides)
    whole = VisionJob(config, DIGITS)
    records = [whole.advance(step) for step in range(len(whole))]
    assert len(whole) > 15
    choose = random.Random(f"{host} {select}")
    for _ in range(2):
        stops = set(choose.sample(range(len(whole)), 4))
        job = VisionJob(config, DIGITS)
        for step in range(len(whole)):
            if step in stops:
                job = resumed(config, saved(job))
            assert job.advance(step) == records[step]
        assert job.results() == whole.results()
        assert saved(job) == saved(whole)


def test_a_state_can_be_taken_before_the_first_and_after_the_last_step() -> None:
    config = brief()
    whole = run(config)
    job = resumed(config, saved(VisionJob(config, DIGITS)))
    for step in range(len(job)):
        job.advance(step)
    assert job.results() == whole.results()
    assert resumed(config, saved(job)).results() == whole.results()


def test_a_run_neither_reads_nor_moves_the_global_generator() -> None:
    first, second = under_two_global_seeds(lambda: run(brief("er", "sphere")).results())
    assert first == second


@pytest.mark.parametrize(("host", "select", "overrides"), RUNS)
def test_results_are_plain_json_and_equal_for_equal_configurations(
    host: str, select: str, overrides: dict[str, Any]
) -> None:
    first, again = (run(brief(host, select, **overrides)).results() for _ in range(2))
    text = canonical_json(first, "results")
    assert text == canonical_json(again, "results")
    assert json.loads(text) == first
    other = run(brief(host, select, seed=1, **overrides)).results()
    assert canonical_json(other, "results") != text


# Pairing.


def histories(select: str, host: str = "er") -> tuple[list[Any], VisionJob]:
    """Versions, labels and images of the memory after every step."""
    job = VisionJob(brief(host, select), DIGITS)
    result = []
    for step in range(len(job)):
        job.advance(step)
        memory = job.state_dict()["host"]["memory"]
        result.append((memory["versions"].tolist(), memory["fields"]["y"].tolist()))
    return result, job


@pytest.mark.parametrize("host", ["er", "er-ace", "der-pp"])
def test_selections_of_a_host_share_stream_and_memory_and_differ_in_what_they_replay(
    host: str,
) -> None:
    slots, uniform = histories("uniform", host)
    for select in ("sphere", "mir"):
        others, job = histories(select, host)
        assert others == slots
        assert job.checksums == uniform.checksums
        assert job.stream.digest == uniform.stream.digest
        images = job.state_dict()["host"]["memory"]["fields"]["x"]
        assert torch.equal(images, uniform.state_dict()["host"]["memory"]["fields"]["x"])
        assert job.results() != uniform.results()


def test_hosts_share_the_stream_and_other_seeds_do_not() -> None:
    streams = {
        VisionJob(brief(host, seed=seed), DIGITS).stream.digest
        for host in ("none", "er", "gdumb")
        for seed in (0, 1)
    }
    assert len(streams) == 2


# Divergence.


def diverge(config: VisionConfig) -> tuple[int, str]:
    """The step at which the run stopped, and what it said."""
    job = VisionJob(config, DIGITS)
    for step in range(len(job)):
        try:
            job.advance(step)
        except DivergenceError as error:
            return step, str(error)
    raise AssertionError("the run did not diverge")


@pytest.mark.parametrize("host", ["none", "er", "er-ace", "der-pp"])
def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step(host: str) -> None:
    step, message = diverge(brief(host, lr=1e30, head="linear"))
    assert f"step {step}:" in message
    assert "lower lr" in message
    assert step <= 3


def test_so_it_does_where_memories_are_scored() -> None:
    step, message = diverge(brief("er", "sphere", lr=1e30, virtual_lr=0.1, every=1))
    assert f"step {step}:" in message


def test_so_does_a_memory_fit_that_diverges() -> None:
    """Otherwise a network of NaN is evaluated as if it were a result."""
    diverge(brief("gdumb", options={"epochs": 2, "high_lr": 1e30, "clip": 1e30}))


# Accuracy.


class FakeHost:
    """Predicts what the test says, by image number."""

    def __init__(self, logits: Tensor, images: Tensor) -> None:
        self._answers = {
            image.numpy().tobytes(): row for image, row in zip(images, logits, strict=True)
        }
        self.asked = 0

    def predict(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return torch.stack([self._answers[image.numpy().tobytes()] for image in images])


def accuracies_by_hand(
    logits: list[list[float]], labels: list[int], columns: Callable[[int], list[int]], task: int
) -> list[float]:
    hits, counts = [0] * 10, [0] * 10
    for row, label in zip(logits, labels, strict=True):
        if label // 2 <= task:
            guess = max(columns(label), key=lambda column: row[column])
            hits[label] += guess == label
            counts[label] += 1
    return [hit / count if count else math.nan for hit, count in zip(hits, counts, strict=True)]


@pytest.mark.parametrize("task", [0, 2, 4])
def test_accuracy_by_hand(task: int) -> None:
    stream = VisionJob(brief(), DIGITS).stream
    logits = torch.randn(len(DIGITS.test_labels), 10, generator=torch.Generator().manual_seed(5))
    # Right about half of the time, so that both kinds of accuracy say something.
    logits[torch.arange(len(logits)), stream.test_labels] += 1.5
    host = FakeHost(logits, DIGITS.test_images)
    found = evaluate(host, DIGITS, stream, task)  # type: ignore[arg-type]  # a host that predicts
    rows, labels = logits.tolist(), stream.test_labels.tolist()
    seen = list(range(2 * (task + 1)))
    class_il = accuracies_by_hand(rows, labels, lambda label: seen, task)
    task_il = accuracies_by_hand(
        rows, labels, lambda label: [label // 2 * 2, label // 2 * 2 + 1], task
    )
    assert found.class_il.tolist() == pytest.approx(class_il, nan_ok=True)
    assert found.task_il.tolist() == pytest.approx(task_il, nan_ok=True)
    assert host.asked == sum(label in seen for label in labels)
    assert int(found.class_il.isnan().sum()) == 10 - len(seen)


def test_a_network_that_answers_nan_is_never_right() -> None:
    stream = VisionJob(brief(), DIGITS).stream
    logits = torch.full((len(DIGITS.test_labels), 10), torch.nan)
    host = FakeHost(logits, DIGITS.test_images)
    found = evaluate(host, DIGITS, stream, 4)  # type: ignore[arg-type]  # a host that predicts
    assert found.class_il.tolist() == [0.0] * 10
    assert found.task_il.tolist() == [0.0] * 10


def test_accuracies_are_stored_per_class_after_each_task_and_along_the_way() -> None:
    job = run(brief("er", batch=8))
    accuracy = job.results()["accuracy"]
    assert accuracy["task_of_class"] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    counts = accuracy["counts"]
    assert counts == job.stream.test_labels.bincount().tolist()
    ends = [
        sum(math.ceil(len(task) / 8) for task in job.stream.train_indices[: number + 1])
        for number in range(5)
    ]
    assert ends[-1] == len(job)
    steps = [step for step, _ in accuracy["anytime"]]
    assert steps == sorted(set(ends) | set(range(7, len(job) + 1, 7)))
    anytime = dict(accuracy["anytime"])
    for kind in ("after_task", "task_il"):
        assert len(accuracy[kind]) == 5
        for task, row in enumerate(accuracy[kind]):
            assert [value is None for value in row] == [label // 2 > task for label in range(10)]
    for task, row in enumerate(accuracy["after_task"]):
        seen = range(2 * (task + 1))
        overall = sum(row[label] * counts[label] for label in seen) / sum(counts[: len(seen)])
        assert anytime[ends[task]] == pytest.approx(overall, rel=1e-12)
    for class_il, task_il in zip(accuracy["after_task"], accuracy["task_il"], strict=True):
        pairs = [(a, b) for a, b in zip(class_il, task_il, strict=True) if a is not None]
        assert all(a <= b for a, b in pairs)  # knowing the task can only help


def test_replay_helps_against_forgetting() -> None:
    def final(host: str) -> float:
        config = resolve("digits", host, noise=0.0)
        accuracies: list[float] = run(config).results()["accuracy"]["after_task"][-1]
        return sum(accuracies) / 10

    assert final("er") > final("none") + 0.3


# What was replayed, and at what cost.


def test_tallies_are_the_sums_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "LOG_EVERY", 1)
    job = VisionJob(brief("er", "sphere", every=2), DIGITS)
    drawn, wrong, fair, masses = 0, 0, 0.0, []
    for step in range(len(job)):
        memory = job.state_dict()["host"]["memory"]
        record = job.advance(step)
        assert record is not None
        if step > 0:
            wrong_now = memory["fields"]["y"] != memory["fields"]["true"]
            share = int(wrong_now.sum()) / len(memory["versions"])
            fair += record["drawn"] * share
            masses.append(record["mass"])
        drawn += record["drawn"]
        wrong += record["drawn_mislabelled"]
        replay = job.results()["replay"]
        if step > 0:  # after every step: at the end, errors might cancel
            assert replay["drawn_mislabelled_share"] == pytest.approx(wrong / drawn)
            assert replay["noisy_lift"] == pytest.approx(wrong / fair)
            assert replay["mean_mass"] == pytest.approx(sum(masses) / len(masses))
    assert len(masses) == len(job) - 1
    assert 0.5 <= replay["mean_mass"] < 1
    assert 1 <= replay["mean_effective_sample_size"] <= 40


def test_uniform_replay_draws_as_much_noise_as_there_is() -> None:
    lifts = [
        run(resolve("digits", seed=seed, evaluate_every=None)).results()["replay"]["noisy_lift"]
        for seed in range(3)
    ]
    # About 4000 draws, 40% of them mislabelled: a standard deviation of 0.02.
    assert sum(lifts) / 3 == pytest.approx(1.0, abs=0.07)


def test_without_noise_or_replay_there_is_no_lift() -> None:
    clean = run(brief(noise=0.0)).results()["replay"]
    assert (clean["noisy_lift"], clean["drawn_mislabelled_share"]) == (None, 0.0)
    assert clean["mean_mass"] == 1.0
    alone = run(brief("none")).results()["replay"]
    assert set(alone.pop("share_of_tasks")[0]) == {None}
    assert set(alone.values()) == {None}


@pytest.mark.parametrize("scenario", ["class", "domain"])
@pytest.mark.parametrize("host", ["er", "der-pp"])
def test_replayed_tasks_are_those_that_were_learned(host: str, scenario: str) -> None:
    job = run(brief(host, "sphere", scenario=scenario, capacity=40))
    drawn = job.state_dict()["tally"]
    assert sum(map(sum, drawn["tasks"])) == drawn["drawn"]
    for task, row in enumerate(job.results()["replay"]["share_of_tasks"]):
        assert sum(row) == pytest.approx(1.0)
        assert row[task] > 0
        assert set(row[task + 1 :]) <= {0.0}  # nothing of what is still to come
    assert job.results()["replay"]["share_of_tasks"][-1][0] > 0


@pytest.mark.parametrize(("host", "per_step"), [("none", 0), ("er", 1), ("er-ace", 1)])
def test_costs_are_counted_in_examples(host: str, per_step: int) -> None:
    job = run(brief(host))
    costs = job.results()["costs"]
    sizes = [len(part) for task in range(5) for part in job.stream.batches(task, 10)]
    replayed = per_step * sum(min(10, sum(sizes[:step])) for step in range(1, len(sizes)))
    assert costs["stream_examples"] == sum(sizes) == 160
    assert costs["forward_per_example"] == (160 + replayed) / 160
    assert costs["backward_per_example"] == (160 + replayed) / 160
    assert costs["scored_per_example"] == 0


def test_scoring_is_part_of_the_cost() -> None:
    uniform, sphere = (run(brief("er", select)).results()["costs"] for select in ("loss", "sphere"))
    assert uniform == sphere
    assert sphere["scored_per_example"] > 0
    plain = run(brief("er")).results()["costs"]
    difference = sphere["forward_per_example"] - plain["forward_per_example"]
    assert difference == pytest.approx(sphere["scored_per_example"])
    assert sphere["backward_per_example"] == plain["backward_per_example"]


def test_a_record_is_made_now_and_then_and_at_the_end_of_each_task() -> None:
    job = VisionJob(resolve("digits"), DIGITS)
    lengths = [math.ceil(len(task) / 10) for task in job.stream.train_indices]
    ends = [sum(lengths[: number + 1]) - 1 for number in range(5)]
    recorded = []
    assert job.status == "no accuracy yet"
    for step in range(len(job)):
        record = job.advance(step)
        if record is not None:
            assert record["step"] == step
            assert record["task"] == sum(step > end for end in ends)
            json.dumps(record, allow_nan=False)
            recorded.append(step)
    assert recorded == sorted(set(ends) | set(range(0, len(job), 50)))
    assert job.status.startswith("accuracy ")


def test_checksums_tell_data_and_streams_apart() -> None:
    one, other = (VisionJob(brief(seed=seed), DIGITS).checksums for seed in (0, 1))
    assert one["images"] == other["images"] == DIGITS.checksum
    assert one["stream"] != other["stream"]


def test_the_tail_is_measured_at_ten_steps_of_the_last_quarter() -> None:
    job = VisionJob(brief(limit=1000, batch=5, drop_last=True), DIGITS)
    last = [step for step, turn in enumerate(job._turns) if turn.task == 4]
    seen: list[tuple[int, float]] = []
    for step in range(len(job)):
        before = len(job.results()["accuracy"]["tail"])
        job.advance(step)
        tail = job.results()["accuracy"]["tail"]
        seen += [(step, value) for value in tail[before:]]
    steps = [step for step, _ in seen]
    assert len(steps) == len(set(steps)) == 10
    assert steps[-1] == last[-1]
    assert steps[0] >= last[0] + 3 * len(last) // 4
    gaps = {after - before for before, after in pairwise(steps)}
    assert max(gaps) - min(gaps) <= 1
    # The last of them is the accuracy after the task, as the table's metric has it.
    metrics = measure(record_of(job.results()))
    assert seen[-1][1] == pytest.approx(metrics["class_il"], rel=1e-12)
    assert metrics["tail_accuracy"] == pytest.approx(sum(value for _, value in seen) / 10)


def test_a_host_that_fits_at_the_end_has_no_tail() -> None:
    job = run(brief("gdumb", options={"epochs": 1}))
    assert job.results()["accuracy"]["tail"] == []
    assert "tail_accuracy" not in measure(record_of(job.results()))


def test_a_part_of_the_test_set_stands_for_all_of_it_in_the_tail() -> None:
    whole, part = (run(brief(tail_limit=limit)) for limit in (None, 60))
    assert saved(whole)[0] == saved(part)[0]
    tails = [job.results()["accuracy"]["tail"] for job in (whole, part)]
    assert tails[0] != tails[1]
    assert tails[0] == pytest.approx(tails[1], abs=0.25)


def test_small_last_batches_can_be_dropped() -> None:
    kept, dropped = (VisionJob(brief(batch=9, drop_last=on), DIGITS) for on in (False, True))
    sizes = [
        [len(turn.indices) for turn in job._turns if turn.indices is not None]
        for job in (kept, dropped)
    ]
    assert min(sizes[0]) < 9
    assert set(sizes[1]) == {9}
    assert sizes[0].count(9) == len(sizes[1])
