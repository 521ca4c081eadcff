"""Whole runs of PuriDivER: they learn, they resume inside a fit, and their steps are counted."""

import random
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
import torch

from sphere_replay.errors import ConfigError, DivergenceError
from sphere_replay.hosts import Batch, PuriDivER
from sphere_replay.hosts.parts.memory_fit import appraise
from sphere_replay.vision import load_images
from sphere_replay.vision.assembly import build_host
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve
from states import read, spelled, under_two_global_seeds

DIGITS = load_images("digits")
BRIEF: dict[str, Any] = {"limit": 160, "capacity": 40, "evaluate_every": 4, "k_s": 3, "k_t": 8}
EPOCHS = 6


def brief(select: str = "uniform", **overrides: Any) -> VisionConfig:
    options = {"epochs": EPOCHS, "warm_up": 2} | overrides.pop("options", {})
    return resolve("digits", "puridiver", select, options=options, **BRIEF | overrides)


def run(config: VisionConfig) -> VisionJob:
    job = VisionJob(config, DIGITS)
    for step in range(len(job)):
        job.advance(step)
    return job


def resumed(config: VisionConfig, job: VisionJob) -> VisionJob:
    other = VisionJob(config, DIGITS)
    other.load_state_dict(read(spelled(job.state_dict())))
    return other


@pytest.mark.parametrize("select", ["uniform", "sphere"])
def test_interrupted_anywhere_a_run_ends_with_the_same_bits(select: str) -> None:
    config = brief(select)
    whole = VisionJob(config, DIGITS)
    records = [whole.advance(step) for step in range(len(whole))]
    batches = sum(
        1
        for task in range(5)
        for _ in whole.stream.batches(task, config.batch, drop_last=config.drop_last)
    )
    assert len(whole) == batches + 5 * EPOCHS
    first_fit = sum(1 for _ in whole.stream.batches(0, config.batch, drop_last=config.drop_last))
    # Before, within and after the first fit, and wherever else.
    stops = {first_fit, first_fit + 1, first_fit + 4, first_fit + EPOCHS}
    stops |= set(random.Random(select).sample(range(len(whole)), 4))
    job = VisionJob(config, DIGITS)
    for step in range(len(whole)):
        if step in stops:
            job = resumed(config, job)
        assert job.advance(step) == records[step]
    assert job.results() == whole.results()
    assert spelled(job.state_dict()) == spelled(whole.state_dict())


def test_accuracies_are_placed_in_stream_steps_and_task_ends_follow_the_fit() -> None:
    """So that a host that fits and one that does not share an axis."""
    job, plain = run(brief()), run(resolve("digits", "er", **BRIEF))
    fitted, other = job.results(), plain.results()
    assert fitted["task_ends"] == other["task_ends"]
    points = [[step for step, _ in each["accuracy"]["anytime"]] for each in (fitted, other)]
    assert points[0] == points[1]
    assert len(fitted["accuracy"]["after_task"]) == 5


def test_a_run_neither_reads_nor_moves_the_global_generator() -> None:
    first, second = under_two_global_seeds(lambda: run(brief("sphere")).results())
    assert first == second


@pytest.mark.parametrize("select", ["uniform", "sphere"])
def test_it_learns_from_a_noisy_stream_and_remembers(select: str) -> None:
    """40% of the labels are wrong, ten classes: chance is 0.1, plain replay about a half."""
    config = resolve(
        "digits", "puridiver", select, noise=0.4, evaluate_every=None, options={"epochs": 15}
    )
    job = run(config)
    accuracies = job.results()["accuracy"]["after_task"][-1]
    assert sum(accuracies) / 10 > 0.6
    assert min(accuracies) > 0.1
    memory = job.state_dict()["host"]["memory"]
    assert memory["fields"]["y"].bincount().tolist() == [10] * 10
    pure = (memory["fields"]["y"] == memory["fields"]["true"]).double().mean()
    assert float(pure) > 0.8


def test_a_fit_that_diverges_stops_the_run() -> None:
    job = VisionJob(brief(options={"high_lr": 1e30}), DIGITS)
    with pytest.raises(DivergenceError, match="lower lr"):
        deque((job.advance(step) for step in range(len(job))), maxlen=0)


def test_photographs_with_batch_norm_in_the_way() -> None:
    """The folded forward that judges and partitions sees what the network itself sees."""
    config = resolve(
        "cifar10-small", "puridiver", "sphere", width=8, capacity=20, replay_batch=8, k_t=8
    )
    host = build_host(replace(config, options={"epochs": 3, "warm_up": 1}))
    assert isinstance(host, PuriDivER)
    source = torch.Generator().manual_seed(0)
    for task in range(2):
        host.start_task()
        for _ in range(4):
            images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8, generator=source)
            labels = 2 * task + torch.randint(2, (8,), generator=source)
            host.observe(Batch(images, labels, labels))
        for step in range(host.fit_steps(last=task == 1)):
            host.fit(step)
        host.end_task(last=task == 1)
    seen = appraise(host.network, host.memory["x"], host.memory["y"], host.parts.views.prepare)
    torch.testing.assert_close(seen.logits, host.predict(host.memory["x"]), rtol=1e-4, atol=1e-4)
    assert host.memory["y"].bincount().tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("preset", ["cifar10", "cifar10-small", "cifar100", "tiny-imagenet"])
def test_the_preset_has_the_papers_constants(preset: str) -> None:
    config = resolve(preset, "puridiver")
    assert (config.lr, config.virtual_lr, config.admission) == (0.03, 0.03, "purity-diversity")
    options = resolve("digits", "puridiver").options
    assert (options["epochs"], options["high_lr"], options["cutmix"]) == (255, 0.03, 0.5)


def test_the_admission_is_puridivers_own_but_puridiver_may_have_another() -> None:
    with pytest.raises(ConfigError, match=r"er does not judge.*puridiver"):
        resolve("digits", "er", admission="purity-diversity")
    job = run(brief(admission="reservoir", options={"epochs": 3}))
    assert len(job.results()["accuracy"]["after_task"]) == 5
