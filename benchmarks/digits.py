"""Images for the steps that a benchmark trains: MNIST where it is at hand, else noise."""

import os
from pathlib import Path

import torch

from sphere_replay.errors import UsageError
from sphere_replay.randomness import generator_for
from sphere_replay.vision.datasets import ImageData
from sphere_replay.vision.specs import dataset_spec


def random_images(count: int, dataset: str = "mnist") -> ImageData:
    """Noise in the shape of a dataset, with random labels."""
    spec, source = dataset_spec(dataset), generator_for(0, "random images")
    images = torch.randint(256, (count, *spec.shape), generator=source, dtype=torch.uint8)
    labels = torch.randint(spec.num_classes, (count,), generator=source)
    # Nothing is evaluated, but every class needs a test image.
    few = torch.arange(spec.num_classes)
    return ImageData(dataset, images, labels, images[few], few, spec.num_classes, "random")


def mnist_folder(given: Path | None) -> Path | None:
    """The folder given, or $SPHERE_DATA if MNIST is there; None for random images."""
    place = given or Path(os.environ.get("SPHERE_DATA", ""))
    if (place / "mnist" / "train.parquet").is_file():
        return place
    if given is not None:
        raise UsageError(
            f"--data {given}: there is no mnist/train.parquet in it; give the folder that "
            "holds mnist/, or leave --data out for random images of the same shape"
        )
    return None
