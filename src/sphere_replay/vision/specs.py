"""What is known about each image dataset before a byte of it is read: one record per dataset."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from sphere_replay.errors import DataError, unknown

HUB = "hub:"
"""What names of datasets that have no record here begin with, see `vision.hub`; likewise those of
encoders that are models of the hub, or folders written by `save_pretrained`."""

Load = Callable[[Path | None], Mapping[str, Tensor]]
"""From the folder of data, if one is named, to `train_images` and `test_images`, uint8
`[n, c, h, w]`, and `train_labels` and `test_labels`, int64 `[n]`."""


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset's shape, its place on the hub, its split into tasks and its constants."""

    name: str
    num_classes: int
    tasks: int
    """Tasks of the class-incremental stream; each has `num_classes / tasks` classes."""
    shape: tuple[int, int, int]
    """Channels, height, width."""
    hub: str | None = None
    """Repository on the Hugging Face hub; None for what has a function to load it."""
    image_column: str = "image"
    label_column: str = "label"
    test_split: str = "test"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """Normalization after scaling to [0, 1]; None leaves the scaled pixels alone."""
    augmented: bool = False
    """Whether training views are randomly cropped and flipped."""
    load: Load | None = None
    """Loads it, where it is neither on the hub nor in Parquet files."""

    def __post_init__(self) -> None:
        if self.num_classes < 1 or self.tasks < 1 or self.num_classes % self.tasks:
            raise ValueError(
                f"dataset {self.name}: {self.num_classes} classes cannot be split into "
                f"{self.tasks} tasks of equal size"
            )


_ALL = (
    DatasetSpec("digits", 10, 5, (1, 8, 8)),
    DatasetSpec("mnist", 10, 5, (1, 28, 28), "ylecun/mnist"),
    DatasetSpec("fashion-mnist", 10, 5, (1, 28, 28), "zalando-datasets/fashion_mnist"),
    DatasetSpec(
        "cifar10",
        10,
        5,
        (3, 32, 32),
        "uoft-cs/cifar10",
        image_column="img",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2615),
        augmented=True,
    ),
    DatasetSpec(
        "cifar100",
        100,
        10,
        (3, 32, 32),
        "uoft-cs/cifar100",
        image_column="img",
        label_column="fine_label",
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        augmented=True,
    ),
    DatasetSpec(
        "tiny-imagenet",
        200,
        10,
        (3, 64, 64),
        "zh-plus/tiny-imagenet",
        # The labels of the official test split were never published.
        test_split="valid",
        mean=(0.4802, 0.4480, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        augmented=True,
    ),
)

DATASETS: dict[str, DatasetSpec] = {spec.name: spec for spec in _ALL}
"""Every known dataset by name."""


def dataset_spec(name: str) -> DatasetSpec:
    """The record of a dataset; an unknown name is answered with the closest known ones."""
    if name in DATASETS:
        return DATASETS[name]
    if name.startswith(HUB):
        from sphere_replay.vision.hub import hub_spec  # which knows of these records

        return hub_spec(name)
    raise DataError(unknown("dataset", name, DATASETS))
