"""Image datasets as tensors: from scikit-learn, from a folder of Parquet files, or from the hub.

    data = load_images("cifar10", "path/to/folder")
    data.train_images      # uint8 [50000, 3, 32, 32]

A folder holds `<name>/train.parquet` and `<name>/test.parquet` (or `valid.parquet`) with the
columns of the hub's copy. Images are decoded once and kept as tensors in a cache.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.storage.trees import fingerprint
from sphere_replay.vision.cache import cache_folder, cached_tensors
from sphere_replay.vision.decoding import decode, split_from_file, split_from_hub
from sphere_replay.vision.specs import DATASETS, DatasetSpec, dataset_spec

__all__ = ["DATASETS", "DataError", "DatasetSpec", "ImageData", "dataset_spec", "load_images"]

_FIELDS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True, eq=False)
class ImageData:
    """A dataset in memory: images uint8 `[n, c, h, w]`, clean labels int64 `[n]`.

    Encoded ones are float32 `[n, d, 1, 1]` instead.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    checksum: str
    """SHA-256 of all pixels and labels: two runs with equal checksums saw the same data."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


def load_images(
    name: str,
    data: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    progress: bool = True,
) -> ImageData:
    """Load a dataset by name.

    Args:
        name: A name in `DATASETS`; `digits` needs neither files nor network. Or `hub:NAME`, see
            `vision.hub`.
        data: Folder of Parquet files; default `$SPHERE_DATA`. Without either: the hub.
        cache: Where decoded tensors are kept; default `$SPHERE_CACHE` or `~/.cache/sphere-replay`.
        progress: Show a progress bar while decoding (needs rich and a terminal).
    """
    spec = dataset_spec(name)
    folder = data or os.environ.get("SPHERE_DATA")
    if spec.hub is None:
        tensors = _loaded(spec, Path(folder) if folder else None)
        checksum = fingerprint(tensors)
    else:
        files = _local_files(spec, Path(folder)) if folder else ()
        origin = [_signature(path) for path in files] or [f"hub:{spec.hub}"]
        build = partial(_decoded, spec, files, progress)
        tensors, checksum = cached_tensors(cache_folder(cache), spec.name, origin, build)
    return ImageData(
        name=spec.name,
        num_classes=spec.num_classes,
        checksum=checksum,
        **{field: tensors[field] for field in _FIELDS},
    )


def _decoded(spec: DatasetSpec, files: Sequence[Path], progress: bool) -> dict[str, Tensor]:
    """From files of training and test, or without any from the hub."""
    # Both splits are opened, and their columns checked, before either is decoded.
    if files:
        splits = [split_from_file(path, spec) for path in files]
    else:
        splits = [split_from_hub(spec, name) for name in ("train", spec.test_split)]
    tensors: dict[str, Tensor] = {}
    for name, split in zip(("train", "test"), splits, strict=True):
        images, labels = decode(split, spec, progress=progress)
        tensors |= {f"{name}_images": images, f"{name}_labels": labels}
    return tensors


def _signature(path: Path) -> str:
    # The whole path: copies of equal size and time stamp need not be equal.
    status = path.stat()
    return f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"


def _local_files(spec: DatasetSpec, folder: Path) -> tuple[Path, Path]:
    """The training and the test file of a dataset; missing ones are an error that says which."""
    home = folder / spec.name
    train = home / "train.parquet"
    candidates = [home / f"{split}.parquet" for split in ("test", "valid")]
    if spec.test_split == "valid":
        candidates.reverse()
    test = next((path for path in candidates if path.is_file()), candidates[0])
    for path, split in ((train, "train"), (test, spec.test_split)):
        if not path.is_file():
            raise DataError(
                f"{path} does not exist. It should hold the split {split!r} of {spec.hub} with the "
                f"columns {spec.image_column!r} and {spec.label_column!r}; make it with "
                f'datasets.load_dataset("{spec.hub}", split="{split}").to_parquet("{path}"), or '
                "name no folder (no --data, no SPHERE_DATA) to download the dataset"
            )
    return train, test


def _loaded(spec: DatasetSpec, folder: Path | None) -> dict[str, Tensor]:
    """What a dataset's own function gives, if it is what it should be."""
    if spec.load is None:
        if spec.name == "digits":
            return _digits()
        raise DataError(f"nobody says where dataset {spec.name} is: give it `hub` or a function")
    given = spec.load(folder)
    if set(given) != set(_FIELDS):
        raise DataError(
            f"the function of dataset {spec.name} gives {', '.join(sorted(given))}, not "
            f"{', '.join(_FIELDS)}"
        )
    for split in ("train", "test"):
        images, labels = given[f"{split}_images"], given[f"{split}_labels"]
        expected = f"uint8 of shape {[len(labels), *spec.shape]}"
        if images.dtype != torch.uint8 or list(images.shape) != [len(labels), *spec.shape]:
            got = f"{images.dtype} of shape {list(images.shape)}"
            raise DataError(f"{split}_images of {spec.name} must be {expected}, got {got}")
        present = set(labels.tolist())
        if labels.dtype != torch.int64 or present != set(range(spec.num_classes)):
            raise DataError(
                f"{split}_labels of {spec.name} must be int64, with each of the classes 0 to "
                f"{spec.num_classes - 1} among them, got {labels.dtype} with {len(present)} classes"
            )
    return dict(given)


def _digits() -> dict[str, Tensor]:
    """The 1,797 digits of scikit-learn; of each class every fourth example is a test example."""
    bunch = require("sklearn.datasets", "vision").load_digits()
    # Grey levels 0..16 become 0..255, so that digits look like every other dataset.
    images = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    is_test = torch.zeros_like(labels, dtype=torch.bool)
    for label in range(10):
        is_test[(labels == label).nonzero()[3::4]] = True
    return {
        "train_images": images[~is_test],
        "train_labels": labels[~is_test],
        "test_images": images[is_test],
        "test_labels": labels[is_test],
    }
