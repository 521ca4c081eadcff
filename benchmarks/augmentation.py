"""Strong views of a whole batch at once against one image after the other.

X-DER makes 384 strong views per step: (64 memories + 32 new images) x 4. The batched ones are
compared with the same function called per image, and, where Pillow is installed, with the loop
over Pillow images that other code bases run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import Benchmark, Cell, at_least, column, named, option, whole
from benchmarks.rendering import Progress
from benchmarks.timing import milliseconds
from sphere_replay.randomness import generator_for
from sphere_replay.vision.strong_views import HUE, STRENGTH, boxes, strong_views


@dataclass(frozen=True)
class Plan(harness.Plan):
    """How many images of what size."""

    images: int = option(384, "per batch", type=whole(1, 100_000), metavar="N")
    size: int = option(32, "pixels a side", type=whole(2, 1024), metavar="N")
    least_rounds: int = 10
    least_seconds: float = 2.0


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Batched views and their rivals on the same random images."""
    source = generator_for(0, "strong views")
    shape = (plan.images, 3, plan.size, plan.size)
    stored = torch.randint(256, shape, generator=source, dtype=torch.uint8)
    scaled = stored.float() / 255
    ways: dict[str, Callable[[], object]] = {
        "batched": lambda: strong_views(scaled, source, mirror=True),
        "per image": lambda: per_image(scaled, source),
    }
    if find_spec("PIL") is not None:
        ways["Pillow"] = lambda: by_pillow(stored, source)
    timing = plan.race(ways)
    return [timing.cell(way, "batched", images=plan.images, size=plan.size) for way in ways]


def per_image(images: Tensor, generator: torch.Generator) -> Tensor:
    """The same views, one call per image."""
    return torch.cat([strong_views(image[None], generator, mirror=True) for image in images])


def by_pillow(images: Tensor, generator: torch.Generator) -> Tensor:
    """The same changes to uint8 images `[n, 3, h, w]`, by Pillow; no image goes without jitter."""
    import numpy as np
    from PIL import Image, ImageEnhance

    height, width = images.shape[-2:]
    numbers = torch.rand(11, len(images), generator=generator)
    shown = boxes(numbers[:4], height, width).tolist()
    views = []
    for index, image in enumerate(images):
        top, left, tall, wide = shown[index]
        factors = (1 + STRENGTH * (2 * numbers[7:10, index] - 1)).tolist()
        view = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(
            (width, height), Image.Resampling.BILINEAR, (left, top, left + wide, top + tall)
        )
        if numbers[4, index] < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        changes = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for change, factor in zip(changes, factors, strict=True):
            view = change(view).enhance(factor)
        channels = list(view.convert("HSV").split())
        turn = round(255 * HUE * (2 * float(numbers[10, index]) - 1))
        hue = (np.asarray(channels[0], dtype=np.int16) + turn) % 256
        channels[0] = Image.fromarray(hue.astype(np.uint8))
        view = Image.merge("HSV", channels).convert("RGB")
        if numbers[6, index] < 0.2:
            view = view.convert("L").convert("RGB")
        views.append(torch.from_numpy(np.array(view)).permute(2, 0, 1).float() / 255)
    return torch.stack(views)


BENCHMARK = Benchmark(
    title="Strong views",
    plan=Plan(),
    quick=Plan(least_rounds=3, least_seconds=0.1),
    measure=measure,
    columns={
        "views": column("figure"),
        "images": column("images"),
        "pixels": column("size", by="{0} x {0}".format),
        "ms": column("seconds", by=milliseconds),
        "times batched": column("ratio", by="{:.1f}".format),
    },
    targets=(
        at_least(
            10.0,
            "times faster in a batch than per image",
            "ratio",
            where=named("per image"),
        ),
    ),
    legend="""
        Views are resized crops, flips, jittered colors and greyscale of random images, on one
        thread. `per image` calls the same function for one image at a time; `Pillow` converts
        each image, changes it and converts it back. Ratios say how many times longer than the
        batched call each takes.
    """,
    notes="""
        A call for one image spends its time on starting some sixty small operations. Batched,
        the turn of the hue is the largest part, then the interpolation of the crops; images
        pass in groups that stay in the processor's cache.
    """,
)
