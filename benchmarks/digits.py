"""Images for the steps that a benchmark trains: MNIST where it is at hand, else noise."""

import os
from pathlib import Path

import torch

from sphere_replay.errors import DataError, UsageError
from sphere_replay.randomness import generator_for
from sphere_replay.vision.datasets import ImageData, load_images
from sphere_replay.vision.specs import dataset_spec


def random_images(count: int) -> ImageData:
    """Noise in the shape of MNIST, with random labels."""
    spec, source = dataset_spec("mnist"), generator_for(0, "random images")
    images = torch.randint(256, (count, *spec.shape), generator=source, dtype=torch.uint8)
    labels = torch.randint(spec.num_classes, (count,), generator=source)
    # Nothing is evaluated, but every class needs a test image.
    few = torch.arange(spec.num_classes)
    return ImageData("mnist", images, labels, images[few], few, spec.num_classes, "random")


def stored_mnist(folder: Path | None) -> ImageData | None:
    """MNIST from the folder given, or from $SPHERE_DATA if it is there; None for random images."""
    place = folder or Path(os.environ.get("SPHERE_DATA", ""))
    if not (place / "mnist" / "train.parquet").is_file():
        if folder is not None:
            raise UsageError(
                f"--data {folder}: there is no mnist/train.parquet in it; give the folder that "
                "holds mnist/, or leave --data out for random images of the same shape"
            )
        return None
    try:
        return load_images("mnist", place)
    except DataError as error:
        raise UsageError(str(error)) from error
