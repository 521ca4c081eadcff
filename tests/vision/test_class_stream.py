from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from sphere_replay.vision import ClassStream, ImageData, SplitBy, build_stream, load_images
from sphere_replay.vision.stream import _shortened


def labelled(train: torch.Tensor, test: torch.Tensor, name: str = "digits") -> ImageData:
    classes = int(train.max()) + 1
    return ImageData(
        name=name,
        train_images=torch.zeros(len(train), 1, 1, 1, dtype=torch.uint8),
        train_labels=train,
        test_images=torch.zeros(len(test), 1, 1, 1, dtype=torch.uint8),
        test_labels=test,
        num_classes=classes,
        checksum="",
    )


DATA = labelled(torch.arange(10).repeat(120), torch.arange(10).repeat(20))


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_training_label_lies_in_the_classes_of_its_task(noise: float, seed: int) -> None:
    stream = build_stream(DATA, seed, noise=noise)
    for classes, indices in zip(stream.tasks, stream.train_indices, strict=True):
        assert set(stream.labels[indices].tolist()) == set(classes)


def test_tasks_have_consecutive_ids_and_cover_all_classes() -> None:
    assert build_stream(DATA, 0).tasks == tuple(range(i, i + 2) for i in range(0, 10, 2))
    assert build_stream(DATA, 0, tasks=2).tasks == (range(5), range(5, 10))


def test_every_example_comes_exactly_once() -> None:
    stream = build_stream(DATA, 0, noise=0.4)
    assert torch.cat(stream.train_indices).sort().values.tolist() == list(range(1200))
    assert torch.cat(stream.test_indices).sort().values.tolist() == list(range(200))
    assert len(stream) == 1200


def test_classes_are_renamed_by_their_place_in_the_order() -> None:
    stream = build_stream(DATA, 3)
    assert sorted(stream.class_order.tolist()) == list(range(10))
    assert stream.class_order.tolist() != list(range(10))
    assert torch.equal(stream.class_order[stream.clean_labels], DATA.train_labels)
    assert torch.equal(stream.class_order[stream.test_labels], DATA.test_labels)


def test_ids_increase_with_first_appearance_from_task_to_task() -> None:
    stream = build_stream(DATA, 3, noise=0.4)
    highest = -1
    for indices in stream.train_indices:
        seen = set(stream.labels[indices].tolist())
        assert min(seen) == highest + 1
        highest = max(seen)
    assert highest == 9


def test_classes_can_keep_their_order() -> None:
    stream = build_stream(DATA, 3, shuffle_classes=False)
    assert torch.equal(stream.clean_labels, DATA.train_labels)


def test_noise_counts_are_exact_per_true_class() -> None:
    stream = build_stream(DATA, 0, noise=0.2)
    changed = stream.labels != stream.clean_labels
    assert stream.clean_labels[changed].bincount().tolist() == [24] * 10


def test_test_data_stay_clean_and_follow_the_clean_label() -> None:
    stream = build_stream(DATA, 0, noise=0.6)
    for classes, indices in zip(stream.tasks, stream.test_indices, strict=True):
        assert set(stream.test_labels[indices].tolist()) == set(classes)
    assert torch.equal(stream.class_order[stream.test_labels], DATA.test_labels)


def test_split_by_noisy_label_mixes_foreign_images_in_at_the_known_share() -> None:
    # Of a task, a share rho (C-k)/(C-1) truly belongs to other tasks: 0.356 for 0.4, C=10, k=2.
    data = labelled(torch.arange(10).repeat(2000), torch.arange(10))
    stream = build_stream(data, 0, noise=0.4)
    tasks = stream.labels // 2
    foreign = float((stream.clean_labels // 2 != tasks).float().mean())
    assert foreign == pytest.approx(0.4 * 8 / 9, abs=0.01)


def test_split_by_clean_label_keeps_images_with_their_class() -> None:
    stream = build_stream(DATA, 0, noise=0.4, split_by=SplitBy.CLEAN)
    for classes, indices in zip(stream.tasks, stream.train_indices, strict=True):
        assert set(stream.clean_labels[indices].tolist()) == set(classes)
        assert not set(stream.labels[indices].tolist()) <= set(classes)


def test_the_same_seed_gives_the_same_digest_and_nothing_else_does() -> None:
    base = build_stream(DATA, 0, noise=0.2)
    assert build_stream(DATA, 0, noise=0.2).digest == base.digest
    others = [
        build_stream(DATA, 1, noise=0.2),
        build_stream(DATA, 0, noise=0.4),
        build_stream(DATA, 0, noise=0.2, noise_kind="symmetric-bernoulli"),
        build_stream(DATA, 0, noise=0.2, noise_kind="asymmetric"),
        build_stream(DATA, 0, noise=0.2, split_by="clean"),
        build_stream(DATA, 0, noise=0.2, tasks=2),
        build_stream(DATA, 0, noise=0.2, shuffle_classes=False),
        build_stream(DATA, 0, noise=0.2, limit=1199),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == len(others) + 1


def test_noise_moves_neither_the_class_order_nor_the_order_of_examples() -> None:
    clean, noisy = build_stream(DATA, 0), build_stream(DATA, 0, noise=0.4)
    assert torch.equal(clean.class_order, noisy.class_order)
    kept = noisy.labels == noisy.clean_labels
    for before, after in zip(clean.train_indices, noisy.train_indices, strict=True):
        assert torch.equal(before[kept[before]], after[kept[after]])


def test_the_order_inside_a_task_is_shuffled() -> None:
    first = build_stream(DATA, 0).train_indices[0]
    assert not torch.equal(first, first.sort().values)


def test_batches_keep_the_last_partial_one() -> None:
    stream = build_stream(DATA, 0)
    batches = list(stream.batches(1, 32))
    assert [len(batch) for batch in batches] == [32] * 7 + [16]
    assert torch.equal(torch.cat(batches), stream.train_indices[1])
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        list(stream.batches(0, 0))


def test_a_limit_keeps_the_beginning_of_every_task() -> None:
    whole, short = build_stream(DATA, 0, noise=0.2), build_stream(DATA, 0, noise=0.2, limit=100)
    assert len(short) == 100
    for all_of_it, beginning in zip(whole.train_indices, short.train_indices, strict=True):
        assert abs(len(beginning) - 100 * len(all_of_it) / 1200) <= 2
        assert torch.equal(beginning, all_of_it[: len(beginning)])
    assert len(build_stream(DATA, 0, limit=10_000)) == 1200


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.data())
def test_shortened_lengths_add_up(lengths: list[int], draw: st.DataObject) -> None:
    limit = draw.draw(st.integers(len(lengths), sum(lengths)))
    short = _shortened(lengths, limit)
    assert sum(short) == limit
    assert all(1 <= kept <= length for kept, length in zip(short, lengths, strict=True))


def test_a_saved_stream_is_the_stream(tmp_path: Path) -> None:
    stream = build_stream(DATA, 0, noise=0.4, limit=300)
    save_file(stream.to_tensors(), tmp_path / "stream.safetensors")
    again = ClassStream.from_tensors(load_file(tmp_path / "stream.safetensors"))
    assert again.digest == stream.digest
    assert again.tasks == stream.tasks
    for saved, loaded in zip(stream.train_indices, again.train_indices, strict=True):
        assert torch.equal(saved, loaded)


def test_foreign_tensors_are_not_a_stream() -> None:
    with pytest.raises(ValueError, match="not a saved stream: class_order, labels"):
        ClassStream.from_tensors({"weights": torch.zeros(1)})


@pytest.mark.parametrize(
    ("name", "classes", "tasks"),
    [("mnist", 10, 5), ("cifar10", 10, 5), ("cifar100", 100, 10), ("tiny-imagenet", 200, 10)],
)
def test_each_dataset_has_its_own_split(name: str, classes: int, tasks: int) -> None:
    data = labelled(torch.arange(classes).repeat(3), torch.arange(classes), name)
    stream = build_stream(data, 0)
    assert len(stream.tasks) == tasks
    assert {len(task) for task in stream.tasks} == {classes // tasks}


def test_bad_requests_are_refused_with_what_is_possible() -> None:
    with pytest.raises(ValueError, match="into 3 equal tasks; possible: 1, 2, 5, 10"):
        build_stream(DATA, 0, tasks=3)
    with pytest.raises(ValueError, match="at least 5, got 4"):
        build_stream(DATA, 0, limit=4)
    with pytest.raises(ValueError, match=r"noise must lie in \[0, 1\)"):
        build_stream(DATA, 0, noise=1.0)
    lopsided = labelled(torch.tensor([0, 0, 3]), torch.tensor([0]))
    with pytest.raises(ValueError, match="task 1 has no training examples"):
        build_stream(lopsided, 0, tasks=4, shuffle_classes=False)


def test_digits_make_a_stream_without_any_download() -> None:
    data = load_images("digits")
    stream = build_stream(data, 0, noise=0.2)
    assert len(stream) == len(data.train_labels)
    assert len(stream.tasks) == 5
