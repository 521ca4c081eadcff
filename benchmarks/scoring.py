"""What makes a forward over the memory cheap: each measure on top of those before it.

Scoring runs the network twice over all stored images and needs no gradient. So it can leave out
what training cannot: the graph, then the reordering of channels, then the batch norms. All ways
give the same logits up to rounding.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from benchmarks import Progress, Report, Target
from benchmarks.stopwatch import fair_clock, threads
from benchmarks.timing import describe_machine, interleave, milliseconds
from sphere_replay.randomness import generator_for
from sphere_replay.scoring.folding import FOLDED_CHUNK, FoldedForward
from sphere_replay.vision.models import Classifier, build_model
from sphere_replay.vision.specs import dataset_spec

SUMMARY = "what each measure saves in a forward over the memory"
DATASET = "cifar10"
REPLAY_BATCH = 32
IN_USE = f"chunks of {FOLDED_CHUNK}"

LEGEND = (
    "A forward of a ResNet-18 in evaluation mode over stored images of CIFAR-10's shape, on one "
    "thread. It starts as a host would forward a replay batch, with a graph, and each row adds a "
    f"measure to the row above; the last two differ in chunks alone, and scoring uses {IN_USE}. "
    "`gain` is the time of the row above over this one's, `in all` that of the first row.",
)
NOTES = (
    "Convolutions dominate all rows. Without a graph no activation is kept, so memory is used "
    "again while it is in the cache; a folded batch norm is a pass over the activations less. "
    "Larger chunks start fewer operations, until their activations leave the cache.",
)


@dataclass(frozen=True)
class Cell:
    """One way to run the memory through the network."""

    way: str
    rounds: int
    seconds: float
    gain: float
    """Seconds of the way before, over these."""
    in_all: float
    """Seconds of the first way, over these."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How large the memory and the network are."""
    parser.add_argument(
        "--images", type=int, default=500, choices=range(1, 100_001), metavar="N", help="stored"
    )
    parser.add_argument(
        "--width", type=int, default=20, choices=range(1, 1025), metavar="N", help="of the ResNet"
    )


def measure(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Time the ways in turns."""
    images, width = arguments.images, arguments.width
    progress(0, 1, "forwards over the memory")
    with threads(1):
        machine = describe_machine()
        rounds, seconds = (1, 0.1) if arguments.quick else (10, 2.0)
        cells = measure_cells(images, width, least_rounds=rounds, least_seconds=seconds)
    progress(1, 1, "done")
    command = ["sphere", "bench", "scoring"]
    command += ["--quick"] if arguments.quick else []
    command += [] if images == 500 else ["--images", str(images)]
    command += [] if width == 20 else ["--width", str(width)]
    setting = f"{images} images, width {width}."
    return Report(
        benchmark="scoring",
        title="A forward over the memory",
        command=tuple(command),
        machine=machine,
        cells=tuple(asdict(cell) for cell in cells),
        columns=("forward", "ms", "gain", "in all"),
        rows=tuple(
            (cell.way, milliseconds(cell.seconds), f"{cell.gain:.2f}", f"{cell.in_all:.2f}")
            for cell in cells
        ),
        legend=(setting, *LEGEND),
        notes=NOTES,
        targets=targets(cells),
    )


def measure_cells(
    images: int, width: int, *, least_rounds: int = 10, least_seconds: float = 2.0
) -> list[Cell]:
    """All ways on the same random images."""
    shape = (images, *dataset_spec(DATASET).shape)
    timing = interleave(
        ways(torch.randn(shape, generator=generator_for(0, "stored images")), width),
        least_rounds=least_rounds,
        least_seconds=least_seconds,
        clock=fair_clock(),
    )
    seconds = list(timing.seconds.values())
    return [
        Cell(way, timing.rounds, taken, before / taken, seconds[0] / taken)
        for (way, taken), before in zip(
            timing.seconds.items(), [seconds[0], *seconds], strict=False
        )
    ]


def ways(images: Tensor, width: int) -> dict[str, Callable[[], Tensor]]:
    """Logits of the images by name, each with one measure more than the one before."""
    network, ordered = _network(width), _network(width)
    ordered.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # untyped in torch
    folded = {
        chunk: FoldedForward(network, chunk=chunk)
        for chunk in (REPLAY_BATCH, FOLDED_CHUNK, len(images))
    }

    def forward(model: Classifier) -> Tensor:
        return torch.cat([model(chunk) for chunk in torch.split(images, REPLAY_BATCH)])

    def without_graph(model: Classifier) -> Tensor:
        with torch.inference_mode():
            return forward(model)

    def in_chunks(size: int) -> Tensor:
        folded[size].refresh()  # parameters move between forwards
        return folded[size](images)[1]

    return {
        f"with a graph, chunks of {REPLAY_BATCH}": lambda: forward(network),
        "no graph": lambda: without_graph(network),
        "channels last": lambda: without_graph(ordered),
        "batch norms folded": lambda: in_chunks(REPLAY_BATCH),
        IN_USE: lambda: in_chunks(FOLDED_CHUNK),
        "all in one chunk": lambda: in_chunks(len(images)),
    }


def targets(cells: list[Cell]) -> tuple[Target, ...]:
    """Scoring takes the best of these ways, or nearly."""
    times = {cell.way: cell.seconds for cell in cells}
    ratio = times[IN_USE] / min(times.values()) if IN_USE in times else None
    return (Target("times the fastest way, for the one in use", "at most", 1.1, ratio),)


def _network(width: int) -> Classifier:
    return build_model(DATASET, generator_for(0, "network"), width=width).eval()
