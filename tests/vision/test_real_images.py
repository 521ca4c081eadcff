"""Checks on the real datasets; they run where `SPHERE_DATA` names a folder that has them.

They read what runs on this machine read: images are decoded once, into the cache of all.
"""

import os
from pathlib import Path

import pytest
import torch

from sphere_replay.vision import ImageData, build_stream, load_images
from sphere_replay.vision.cache import cache_folder

FOLDER = os.environ.get("SPHERE_DATA")
CACHE = cache_folder()
"""That of the machine; while tests run they have one of their own."""
pytestmark = pytest.mark.skipif(not FOLDER, reason="SPHERE_DATA is not set")


def load(name: str) -> ImageData:
    assert FOLDER is not None
    if not (Path(FOLDER) / name).is_dir():
        pytest.skip(f"{name} is not in SPHERE_DATA")
    return load_images(name, FOLDER, cache=CACHE)


def test_mnist_is_complete() -> None:
    data = load("mnist")
    assert data.train_images.shape == (60_000, 1, 28, 28)
    assert data.test_images.shape == (10_000, 1, 28, 28)
    assert data.train_labels.bincount().tolist()[:3] == [5923, 6742, 5958]
    assert float(data.train_images.double().mean()) / 255 == pytest.approx(0.1307, abs=1e-4)
    assert load("mnist").checksum == data.checksum


def test_cifar10_is_complete_and_in_color() -> None:
    data = load("cifar10")
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_labels.bincount().tolist() == [1000] * 10
    means = data.train_images.double().mean(dim=(0, 2, 3)) / 255
    assert torch.allclose(means, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=1e-4)
    stream = build_stream(data, 0, noise=0.4)
    assert (stream.labels != stream.clean_labels).sum() == 20_000
