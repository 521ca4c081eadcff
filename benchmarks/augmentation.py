"""Strong views of a whole batch at once against one image after the other.

X-DER makes 384 strong views per step: (64 memories + 32 new images) x 4. The batched ones are
compared with the same function called per image, and, where Pillow is installed, with the loop
over Pillow images that other code bases run.
"""

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from benchmarks import Progress, Report, Target
from benchmarks.stopwatch import fair_clock, threads
from benchmarks.timing import describe_machine, interleave, milliseconds
from sphere_replay.randomness import generator_for
from sphere_replay.vision.strong_views import HUE, STRENGTH, boxes, strong_views

SUMMARY = "strong views of a batch against a loop over images"
REQUIRED = 10.0
"""Times that the loop must take longer."""

LEGEND = (
    "Views are resized crops, flips, jittered colors and greyscale of random images, on one "
    "thread. `per image` calls the same function for one image at a time; `Pillow` converts each "
    "image, changes it and converts it back. Ratios say how many times longer than the batched "
    "call each takes.",
)
NOTES = (
    "A call for one image spends its time on starting some sixty small operations. Batched, the "
    "turn of the hue is the largest part, then the interpolation of the crops; images pass in "
    "groups that stay in the processor's cache.",
)


@dataclass(frozen=True)
class Cell:
    """One way to make the views of a batch."""

    way: str
    images: int
    size: int
    rounds: int
    seconds: float
    ratio: float
    """To the seconds of the batched call."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How many images of what size."""
    parser.add_argument(
        "--images", type=int, default=384, choices=range(1, 100_001), metavar="N", help="per batch"
    )
    parser.add_argument(
        "--size", type=int, default=32, choices=range(2, 1025), metavar="N", help="pixels a side"
    )


def measure(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Time the ways in turns."""
    images, size = arguments.images, arguments.size
    progress(0, 1, "strong views")
    with threads(1):
        machine = describe_machine()
        rounds, seconds = (3, 0.1) if arguments.quick else (10, 2.0)
        cells = measure_cells(images, size, least_rounds=rounds, least_seconds=seconds)
    progress(1, 1, "done")
    command = ["sphere", "bench", "augmentation"]
    command += ["--quick"] if arguments.quick else []
    command += [] if images == 384 else ["--images", str(images)]
    command += [] if size == 32 else ["--size", str(size)]
    return Report(
        benchmark="augmentation",
        title="Strong views",
        command=tuple(command),
        machine=machine,
        cells=tuple(asdict(cell) for cell in cells),
        columns=("views", "images", "pixels", "ms", "times batched"),
        rows=tuple(
            (
                cell.way,
                str(cell.images),
                f"{cell.size} x {cell.size}",
                milliseconds(cell.seconds),
                f"{cell.ratio:.1f}",
            )
            for cell in cells
        ),
        legend=LEGEND,
        notes=NOTES,
        targets=targets(cells),
    )


def measure_cells(
    images: int, size: int, *, least_rounds: int = 10, least_seconds: float = 2.0
) -> list[Cell]:
    """Batched views and their rivals on the same random images."""
    source = generator_for(0, "strong views")
    stored = torch.randint(256, (images, 3, size, size), generator=source, dtype=torch.uint8)
    scaled = stored.float() / 255
    ways: dict[str, Callable[[], object]] = {
        "batched": lambda: strong_views(scaled, source, mirror=True),
        "per image": lambda: per_image(scaled, source),
    }
    if importlib.util.find_spec("PIL") is not None:
        ways["Pillow"] = lambda: by_pillow(stored, source)
    timing = interleave(
        ways, least_rounds=least_rounds, least_seconds=least_seconds, clock=fair_clock()
    )
    batched = timing.seconds["batched"]
    return [
        Cell(way, images, size, timing.rounds, seconds, seconds / batched)
        for way, seconds in timing.seconds.items()
    ]


def targets(cells: list[Cell]) -> tuple[Target, ...]:
    """What X-DER relies on."""
    ratio = next((cell.ratio for cell in cells if cell.way == "per image"), None)
    return (Target("times faster in a batch than per image", "at least", REQUIRED, ratio),)


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
