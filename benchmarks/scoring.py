"""What makes a forward over the memory cheap: each measure on top of those before it.

Scoring runs the network twice over all stored images and needs no gradient. So it can leave out
what training cannot: the graph, then the reordering of channels, then the batch norms. All ways
give the same logits up to rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import TWO_DIGITS, Benchmark, Cell, at_most, column, named, option, whole
from benchmarks.rendering import Progress
from benchmarks.timing import milliseconds
from sphere_replay.randomness import generator_for
from sphere_replay.scoring.folding import FOLDED_CHUNK, FoldedForward
from sphere_replay.vision.models import Classifier, build_model
from sphere_replay.vision.specs import dataset_spec

DATASET = "cifar10"
REPLAY_BATCH = 32
IN_USE = f"chunks of {FOLDED_CHUNK}"


@dataclass(frozen=True)
class Plan(harness.Plan):
    """How large the memory and the network are."""

    images: int = option(500, "stored", type=whole(1, 100_000), metavar="N")
    width: int = option(20, "of the ResNet", type=whole(1, 1024), metavar="N")
    least_rounds: int = 10
    least_seconds: float = 2.0


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """All ways on the same random images."""
    shape = (plan.images, *dataset_spec(DATASET).shape)
    images = torch.randn(shape, generator=generator_for(0, "stored images"))
    timing = plan.race(ways(images, plan.width))
    names, seconds = list(timing.seconds), list(timing.seconds.values())
    return [
        {
            "figure": name,
            "rounds": timing.rounds,
            "seconds": taken,
            "gain": before / taken,
            "in_all": seconds[0] / taken,
            "over_fastest": taken / min(seconds),
        }
        for name, taken, before in zip(names, seconds, [seconds[0], *seconds[:-1]], strict=True)
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


def _network(width: int) -> Classifier:
    return build_model(DATASET, generator_for(0, "network"), width=width).eval()


BENCHMARK = Benchmark(
    title="A forward over the memory",
    plan=Plan(),
    quick=Plan(least_rounds=1, least_seconds=0.1),
    measure=measure,
    columns={
        "forward": column("figure"),
        "ms": column("seconds", by=milliseconds),
        "gain": column("gain", by=TWO_DIGITS),
        "in all": column("in_all", by=TWO_DIGITS),
    },
    targets=(
        at_most(
            1.1,
            "times the fastest way, for the one in use",
            "over_fastest",
            where=named(IN_USE),
        ),
    ),
    setting=lambda plan: f"{plan.images} images, width {plan.width}.",
    legend=f"""
        A forward of a ResNet-18 in evaluation mode over stored images of CIFAR-10's shape, on
        one thread. It starts as a host would forward a replay batch, with a graph, and each row
        adds a measure to the row above; the last two differ in chunks alone, and scoring uses
        {IN_USE}. `gain` is the time of the row above over this one's, `in all` that of the
        first row.
    """,
    notes="""
        Convolutions dominate all rows. Without a graph no activation is kept, so memory is used
        again while it is in the cache; a folded batch norm is a pass over the activations less.
        Larger chunks start fewer operations, until their activations leave the cache.
    """,
)
