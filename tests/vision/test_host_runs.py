"""Whole runs of the hosts: they learn, in color and grey, and resume bit for bit."""

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from sphere_replay.errors import ConfigError
from sphere_replay.storage.trees import flatten, from_bytes, to_bytes, unflatten
from sphere_replay.vision import ImageData, load_images
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import provenance, resolve
from states import spelled
from tensors import seeded

DIGITS = load_images("digits")
CHANCE = 0.1
BRIEF: dict[str, Any] = {"limit": 160, "capacity": 40, "k_s": 3, "k_t": 8, "evaluate_every": 7}
SHORT = {"xder": {"views": 2, "contrast_batch": 8}, "abs": {"epochs": 3, "warm_up": 1}}


def colored_shapes(per_class: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes of 32 x 32 images: one of five colors, in the upper or the lower half."""
    source = seeded(seed)
    labels = torch.arange(10).repeat(per_class)
    palette = torch.tensor(
        [[1.0, 0.1, 0.1], [0.1, 1.0, 0.1], [0.1, 0.1, 1.0], [1.0, 1.0, 0.1], [0.9, 0.9, 0.9]]
    )
    images = torch.rand(len(labels), 3, 32, 32, generator=source) * 90
    for image, label in zip(images, labels.tolist(), strict=True):
        top = 18 * (label % 2) + int(torch.randint(5, (), generator=source))
        left = int(torch.randint(16, (), generator=source))
        image[:, top : top + 10, left : left + 16] += 150 * palette[label // 2][:, None, None]
    return images.to(torch.uint8), labels


def color_data() -> ImageData:
    train, test = colored_shapes(30, 1), colored_shapes(8, 2)
    return ImageData("cifar10", *train, *test, 10, "colors")


def run(config: VisionConfig, data: ImageData = DIGITS) -> VisionJob:
    job = VisionJob(config, data)
    for step in range(len(job)):
        job.advance(step)
    return job


def final(job: VisionJob) -> list[float]:
    accuracies: list[float] = job.results()["accuracy"]["after_task"][-1]
    return accuracies


def learnt_and_kept(host: str, select: str, caplog: pytest.LogCaptureFixture) -> VisionJob:
    options = {"xder": {}, "abs": {"epochs": 20}}[host]
    with caplog.at_level(logging.WARNING):
        job = run(resolve("digits", host, select, noise=0.2, evaluate_every=None, options=options))
    accuracies = final(job)
    assert sum(accuracies) / 10 > 4 * CHANCE
    assert sum(accuracies[:2]) / 2 > 0.5  # the first task is not forgotten
    assert ("images without colors" in caplog.text) == (host == "xder")
    return job


@pytest.mark.parametrize(
    ("host", "select"), [("xder", "sphere"), ("abs", "uniform"), ("abs", "sphere")]
)
def test_digits_are_learnt_and_kept(
    host: str, select: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert learnt_and_kept(host, select, caplog)


def test_the_last_task_of_xder_is_at_a_disadvantage(caplog: pytest.LogCaptureFixture) -> None:
    """Known of the method: nothing replays the last task, and heads are trained apart."""
    job = learnt_and_kept("xder", "uniform", caplog)
    class_il, task_il = final(job), job.results()["accuracy"]["task_il"][-1]
    assert sum(task_il[8:]) / 2 > 0.7  # its head is well trained
    assert sum(class_il[8:]) / 2 < sum(class_il[:8]) / 8


@pytest.mark.parametrize("host", ["xder", "abs", "puridiver"])
def test_a_network_with_batch_norms_learns_colors(host: str) -> None:
    options = {
        "xder": {"views": 2, "contrast_batch": 8},
        "abs": {"epochs": 5, "warm_up": 3},
        "puridiver": {"epochs": 16, "warm_up": 3},
    }
    settings = resolve(
        "cifar10-small",
        host,
        "sphere",
        noise=0.0,
        width=8,
        batch=10,
        replay_batch=10,
        capacity=60,
        lr=0.1,
        options=options[host],
    )
    # Of two seeds: the last bits of a product can decide whether one of so short a run learns.
    jobs = [run(replace(settings, seed=seed), color_data()) for seed in (0, 1)]
    assert sum(sum(final(job)) / 10 for job in jobs) / 2 > 2 * CHANCE
    assert not any("without colors" in reason for reason in jobs[0].results()["notes"])


@pytest.mark.parametrize("host", ["er-ace", "der-pp", "gdumb"])
def test_digits_are_learnt(host: str) -> None:
    options = {"gdumb": {"epochs": 20, "fit_last_only": 1}}.get(host, {})
    job = run(resolve("digits", host, noise=0.2, evaluate_every=None, options=options))
    assert sum(final(job)) / 10 > 3 * CHANCE


@pytest.mark.parametrize("host", ["xder", "abs"])
def test_stopped_anywhere_a_run_ends_with_the_same_bits(host: str) -> None:
    config = resolve("digits", host, "sphere", every=3, options=SHORT[host], **BRIEF)
    whole = VisionJob(config, DIGITS)
    records = [whole.advance(step) for step in range(len(whole))]
    job = VisionJob(config, DIGITS)
    for step in range(len(whole)):
        if step % 2:
            tensors, skeleton = flatten(job.state_dict())
            content, text = to_bytes(tensors), json.dumps(skeleton)
            job = VisionJob(config, DIGITS)
            job.load_state_dict(unflatten(from_bytes(content), json.loads(text)))
        assert job.advance(step) == records[step]
    assert job.results() == whole.results()
    assert spelled(job.state_dict()) == spelled(whole.state_dict())


def test_selections_of_xder_share_stream_and_images_of_the_memory() -> None:
    states = [
        run(resolve("digits", "xder", select, options=SHORT["xder"], **BRIEF)).state_dict()
        for select in ("uniform", "sphere")
    ]
    uniform, sphere = (state["host"]["memory"] for state in states)
    assert torch.equal(uniform["fields"]["x"], sphere["fields"]["x"])
    assert torch.equal(uniform["versions"], sphere["versions"])
    assert not torch.equal(uniform["fields"]["logits"], sphere["fields"]["logits"])


# Constants of the paper.


@pytest.mark.parametrize(
    ("dataset", "alpha", "beta", "k_t", "every"),
    [("cifar10", 0.1, 0.5, 50, 8), ("cifar100", 0.1, 0.8, 25, 4)],
)
def test_presets_of_xder(dataset: str, alpha: float, beta: float, k_t: int, every: int) -> None:
    for preset in (dataset, f"{dataset}-small"):
        config = resolve(preset, "xder", "sphere")
        assert (config.options["alpha"], config.options["beta"]) == (alpha, beta)
        assert (config.lr, config.virtual_lr, config.alpha) == (0.03, 0.03, 0.5)
        assert (config.k_s, config.k_t, config.t_frac, config.every) == (5, k_t, 0.5, every)
        assert config.admission == "greedy-balanced"
    assert "left open" in provenance(config, "options")


def test_presets_of_abs() -> None:
    config = resolve("cifar10", "abs")
    assert (config.admission, config.head, config.lr) == ("asymmetric-balanced", "linear", 0.1)


def test_configurations_that_cannot_run_are_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match="xder needs every training label in its own task"):
        resolve("digits", "xder", noise=0.2, split_by="clean")
    resolve("digits", "xder", noise=0.0, split_by="clean")
    with pytest.raises(ConfigError, match=r"asymmetric-balanced.*host abs"):
        resolve("digits", "er", admission="asymmetric-balanced")
    with pytest.raises(ConfigError, match=r"reservoir.*choose class-balanced or greedy-balanced"):
        resolve("digits", "xder", admission="reservoir")


def test_lines_of_a_fit_do_not_repeat_weights_of_the_stream() -> None:
    config = resolve("digits", "puridiver", "sphere", options={"epochs": 2}, **BRIEF)
    job = VisionJob(config, DIGITS)
    records = [record for step in range(len(job)) if (record := job.advance(step))]
    ends = [record for record in records if record["accuracy"] is not None]
    assert len(ends) >= 5
    assert all(record["effective_sample_size"] is None for record in ends)


def test_gdumb_knows_nothing_of_its_labels_until_it_has_fitted() -> None:
    options = {"epochs": 20, "fit_last_only": 1}
    clean, noisy = (
        run(resolve("digits", "gdumb", noise=noise, options=options)).results()["accuracy"]
        for noise in (0.0, 0.6)
    )
    assert clean["after_task"][:-1] == noisy["after_task"][:-1]
    assert sum(clean["after_task"][-1]) > sum(noisy["after_task"][-1]) + 1
