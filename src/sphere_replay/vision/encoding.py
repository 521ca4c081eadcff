"""Images into features of a frozen encoder: computed once, part by part, and kept on disk.

    data = encode_images(load_images("cifar10"), load_encoder("efficientnet-lite0"))
    data.train_images      # float32 [50000, 1280, 1, 1]

Features stand in the place of images as d channels of a single pixel, so that whatever works on
images works on them: a crop or a cut of one pixel leaves it alone.
"""

import re
from collections.abc import Callable
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
    folder, total = cache_folder(cache), len(data.train_images) + len(data.test_images)
    title = f"Encoding {data.name} with {encoder.name}"
    with step_progress(title, hidden=not progress) as report:

        def split(name: str, images: Tensor, before: int) -> Tensor:
            def tell(done: int) -> None:
                if report is not None:
                    report(before + done, total, "")

            return _encoded(data, encoder, folder, name, images, tell)

        train = split("train", data.train_images, 0)
        test = split("test", data.test_images, len(train))
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


def _encoded(
    data: ImageData,
    encoder: Encoder,
    folder: Path,
    split: str,
    images: Tensor,
    tell: Callable[[int], None],
) -> Tensor:
    """Features float16 `[n, d]` of a split, of which every part is kept as soon as it is there."""
    readable = re.sub(r"[^\w.-]+", "-", encoder.name)
    parts = []
    for start in range(0, len(images), PART):
        part = images[start : start + PART]

        def build(part: Tensor = part, start: int = start) -> dict[str, Tensor]:
            rows = []
            for place in range(0, len(part), _CHUNK):
                rows.append(_asked(encoder, part[place : place + _CHUNK]))
                tell(start + place + len(rows[-1]))
            return {"features": torch.cat(rows)}

        origin = [encoder.digest, encoder.preparation, data.checksum, f"{start}:{len(part)}"]
        name = f"{data.name}-{readable}-{split}-{start:06}"
        entry, _ = cached_tensors(folder, name, [encoder.name, *origin], ("features",), build)
        parts.append(entry["features"])
        tell(start + len(part))
    return torch.cat(parts)


def _asked(encoder: Encoder, images: Tensor) -> Tensor:
    with torch.inference_mode():
        features = encoder.encode(images).to(torch.float16)
    if not features.isfinite().all():
        raise DataError(
            f"the encoder {encoder.name} gives features that are not numbers, or too large for "
            "float16: choose another one"
        )
    return features.clone()  # outside of inference mode: an ordinary tensor
