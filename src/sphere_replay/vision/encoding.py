"""Images into features of a frozen encoder: computed once, part by part, and kept on disk.

    data = encode_images(load_images("cifar10"), load_encoder("efficientnet-lite0"))
    data.train_images      # float32 [50000, 1280, 1, 1]

Features stand in the place of images as d channels of a single pixel, so that whatever works on
images works on them: a crop or a cut of one pixel leaves it alone.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from sphere_replay.errors import DataError
from sphere_replay.runs.progress import step_progress
from sphere_replay.storage.trees import fingerprint
from sphere_replay.vision.cache import cache_folder, cached_tensors
from sphere_replay.vision.datasets import ImageData
from sphere_replay.vision.encoders import Encoder
from sphere_replay.vision.transforms import FEATURE_NORM

PART = 5000
"""Images in an entry of the cache: what an interruption costs at most."""
_CHUNK = 64


def encode_images(
    data: ImageData,
    encoder: Encoder,
    *,
    cache: str | Path | None = None,
    progress: bool = True,
) -> ImageData:
    """The dataset with features in the place of images.

    Features are rounded to float16 on disk and used in float32. All are multiplied by one number,
    which gives those of training examples the mean norm `FEATURE_NORM`; no label is looked at.

    Args:
        data: Images as they were loaded.
        encoder: What they are shown to.
        cache: Where features are kept; default `$SPHERE_CACHE` or `~/.cache/sphere-replay`.
        progress: Show a progress bar (needs rich and a terminal).
    """
    total, done = len(data.train_images) + len(data.test_images), 0
    rows: dict[str, list[Tensor]] = {"train": [], "test": []}
    with step_progress(f"Encoding {data.name}", hidden=not progress) as report:

        def tell(before: int, more: int) -> None:
            if report is not None:
                report(before + more, total, encoder.name)

        for split, start, images in _parts(data):
            place = f"{start}:{len(images)}"
            entry, _ = cached_tensors(
                cache_folder(cache),
                f"{data.name}-{_readable(encoder.name)}-{split}-{start:06}",
                [encoder.name, encoder.digest, encoder.preparation, data.checksum, place],
                partial(_features, encoder, images, partial(tell, done)),
            )
            rows[split].append(entry["features"])
            done += len(images)
            tell(done, 0)
    train, test = torch.cat(rows["train"]), torch.cat(rows["test"])
    labels = {"train_labels": data.train_labels, "test_labels": data.test_labels}
    checksum = fingerprint({"train_images": train, "test_images": test, **labels})
    train, test = train.float(), test.float()
    scale = FEATURE_NORM / torch.linalg.vector_norm(train, dim=1).mean()
    return ImageData(
        name=data.name,
        train_images=train.mul_(scale)[:, :, None, None],
        test_images=test.mul_(scale)[:, :, None, None],
        num_classes=data.num_classes,
        checksum=checksum,
        **labels,
    )


def _parts(data: ImageData) -> Iterator[tuple[str, int, Tensor]]:
    """Images in parts, each with its split and its place in it."""
    for split, images in (("train", data.train_images), ("test", data.test_images)):
        for start in range(0, len(images), PART):
            yield split, start, images[start : start + PART]


def _features(encoder: Encoder, images: Tensor, tell: Callable[[int], None]) -> dict[str, Tensor]:
    """Features float16 `[n, d]` of a part."""
    rows: list[Tensor] = []
    for chunk in torch.split(images, _CHUNK):
        with torch.inference_mode():
            rows.append(encoder.encode(chunk).to(torch.float16))
        tell(sum(map(len, rows)))
    features = torch.cat(rows)  # outside of inference mode: an ordinary tensor
    if not features.isfinite().all():
        raise DataError(
            f"the encoder {encoder.name} gives features that are not numbers, or too large for "
            "float16: choose another one"
        )
    return {"features": features}


def _readable(name: str) -> str:
    """Fit to be part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", name)
