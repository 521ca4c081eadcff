"""Domain-incremental, blurred, imbalanced and task-free streams: by exact counts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sphere_replay.errors import ConfigError
from sphere_replay.runs.folder import identity
from sphere_replay.runs.launch import run_config
from sphere_replay.vision import ClassStream, ImageData, build_stream, load_images
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve

PER_CLASS = 120
PLAIN = "a6ffeb5d26ecf6d5"
DATA = ImageData(
    name="digits",
    train_images=torch.zeros(10 * PER_CLASS, 1, 1, 1, dtype=torch.uint8),
    train_labels=torch.arange(10).repeat(PER_CLASS),
    test_images=torch.zeros(200, 1, 1, 1, dtype=torch.uint8),
    test_labels=torch.arange(10).repeat(20),
    num_classes=10,
    checksum="",
)


def counts(stream: ClassStream, task: int) -> list[int]:
    return stream.labels[stream.train_indices[task]].bincount(minlength=10).tolist()


def test_the_plain_stream_is_what_it_was() -> None:
    # Digests of the version before there were other kinds.
    assert build_stream(DATA, 3, noise=0.4).digest.startswith(PLAIN)
    explicit = build_stream(DATA, 3, noise=0.4, scenario="class", blur=0.0, imbalance=1.0)
    assert explicit.digest.startswith(PLAIN)


def test_a_share_of_each_class_comes_in_all_other_tasks_alike() -> None:
    stream = build_stream(DATA, 0, blur=0.2)
    for task in range(5):
        own = {2 * task, 2 * task + 1}
        # 24 of 120 leave, 6 to each of the four other tasks.
        assert counts(stream, task) == [96 if label in own else 6 for label in range(10)]
    assert sorted(torch.cat(stream.train_indices).tolist()) == list(range(1200))
    assert stream.digest == build_stream(DATA, 0, blur=0.2).digest
    assert stream.digest != build_stream(DATA, 1, blur=0.2).digest
    assert torch.equal(stream.labels, build_stream(DATA, 0).labels)


def test_visitors_come_at_any_time_of_a_task() -> None:
    stream = build_stream(DATA, 0, blur=0.2)
    places = torch.cat(
        [
            (stream.labels[indices] // 2 != task).nonzero().flatten() / len(indices)
            for task, indices in enumerate(stream.train_indices)
        ]
    )
    assert 0.4 < float(places.mean()) < 0.6


def test_blur_moves_the_share_of_noisy_labels() -> None:
    stream = build_stream(DATA, 0, noise=0.4, blur=0.25)
    for label in range(10):
        size = int((stream.labels == label).sum())
        inside = counts(stream, label // 2)[label]
        assert inside == size - round(0.25 * size)


def test_sizes_of_classes_fall_geometrically_and_noise_is_a_share_of_each() -> None:
    stream = build_stream(DATA, 0, noise=0.25, imbalance=10)
    kept = torch.cat(stream.train_indices)
    true = stream.class_order[stream.clean_labels[kept]]
    expected = [round(PER_CLASS * 10 ** (-label / 9)) for label in range(10)]
    assert expected[0] == 120
    assert expected[-1] == 12
    assert true.bincount().tolist() == expected
    wrong = stream.labels[kept] != stream.clean_labels[kept]
    assert true[wrong].bincount().tolist() == [round(0.25 * size) for size in expected]
    assert stream.digest == build_stream(DATA, 0, noise=0.25, imbalance=10).digest


def test_small_classes_come_at_any_time_of_a_task() -> None:
    places = []
    for seed in range(6):
        stream = build_stream(DATA, seed, imbalance=10)
        for indices in stream.train_indices:
            small = stream.class_order[stream.labels[indices]] >= 5
            places.append(small.nonzero().flatten() / len(indices))
    assert 0.45 < float(torch.cat(places).mean()) < 0.55


def test_domains_share_labels_and_noise_stays_in_them() -> None:
    stream = build_stream(DATA, 2, noise=0.25, scenario="domain")
    for task, indices in enumerate(stream.train_indices):
        classes = stream.class_order[2 * task : 2 * task + 2]
        assert torch.equal(classes[stream.clean_labels[indices]], DATA.train_labels[indices])
        assert len(indices) == 240
        assert set(stream.labels[indices].tolist()) == {0, 1}
    assert int((stream.labels != stream.clean_labels).sum()) == 2 * round(0.25 * 600)
    assert stream.test_labels.bincount().tolist() == [20] * 10
    again = ClassStream.from_tensors(stream.to_tensors())
    assert again.domains
    assert not again.blurred
    assert again.digest == stream.digest


@pytest.mark.parametrize(
    "kind",
    [{"scenario": "domain"}, {"blur": 0.2}, {"imbalance": 5.0}, {"task_free": True}],
    ids=lambda kind: next(iter(kind)),
)
def test_runs_of_every_kind(tmp_path: Path, kind: dict[str, Any]) -> None:
    plain = resolve("digits", "er", "sphere", seed=1, limit=300)
    config = resolve("digits", "er", "sphere", seed=1, limit=300, **kind)
    assert not set(kind) & set(plain.to_dict())
    assert kind.items() <= config.to_dict().items()
    assert identity(config.to_dict()) != identity(plain.to_dict())
    assert type(config).from_dict(config.to_dict()) == config
    results = run_config(config, tmp_path, record=2)
    assert len(results["accuracy"]["after_task"]) == 5
    if "scenario" in kind:  # two labels: all classes are judged alike with and without the task
        assert results["accuracy"]["after_task"] == results["accuracy"]["task_il"]
        assert results["metrics"]["class_il"] > 0.5


def test_a_task_free_learner_is_told_of_the_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve("digits", "gdumb", limit=100, task_free=True, options={"epochs": 2})
    job = VisionJob(config, load_images("digits"))
    told: list[str] = []
    monkeypatch.setattr(job._host, "start_task", lambda: told.append("start"))
    monkeypatch.setattr(job._host, "end_task", lambda last: told.append(f"end, last: {last}"))
    fits = [turn.task for turn in job._turns if turn.indices is None]
    for step in range(len(job)):
        job.advance(step)
    assert told == ["end, last: True"]
    assert fits == [4, 4]


@pytest.mark.parametrize(
    ("host", "settings", "words"),
    [
        ("er", {"scenario": "domains"}, "domain"),
        ("er", {"blur": 1.5}, "blur is a share"),
        ("er", {"imbalance": 0.1}, "at least 1"),
        ("xder", {"blur": 0.1}, "xder takes classes for those of a task"),
        ("abs", {"scenario": "domain"}, "abs takes classes"),
        ("puridiver", {"task_free": True}, "puridiver must be told of tasks"),
        ("er", {"scenario": "domain", "split_by": "clean"}, "leave split_by"),
    ],
)
def test_what_cannot_be_is_refused(host: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve("digits", host, **settings)
