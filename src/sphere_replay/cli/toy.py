"""The paper's Figure 1, live: one isolated spike, one coherent region, and who gets replayed."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sphere_replay.allocation import Allocation, Sphere, allocate
from sphere_replay.geometry import Precomputed

_GROUPS = (("quiet", (-1.6, -0.9)), ("around the spike", (1.5, -0.8)), ("region", (0.0, 1.2)))
_MEMBERS = 20
_SPREAD = 0.3
_SPIKE = _MEMBERS


@dataclass(frozen=True)
class Scene:
    """A memory small enough to look at: positions `[m, 2]`, increments `[m]`, group names."""

    positions: Tensor
    increments: Tensor
    groups: tuple[str, ...]
    allocation: Allocation

    def ranks(self, values: Tensor) -> list[int]:
        """1 for the largest value."""
        return (values.argsort(descending=True).argsort() + 1).tolist()


def spike_and_region(seed: int = 0) -> Scene:
    """Three groups of memories: one whose losses rise together, one with a single large rise."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.tensor([center for _, center in _GROUPS]).repeat_interleave(_MEMBERS, dim=0)
    positions = centers + _SPREAD * torch.randn(centers.shape, generator=generator)
    increments = 0.06 * torch.randn(len(centers), generator=generator)
    increments += torch.tensor([-0.1, -0.1, 0.45]).repeat_interleave(_MEMBERS)
    increments[_SPIKE] = 1.0
    positions[_SPIKE] = torch.tensor(_GROUPS[1][1])
    groups = [name for name, _ in _GROUPS for _ in range(_MEMBERS)]
    groups[_SPIKE] = "spike"
    cost = torch.cdist(positions, positions).square().fill_diagonal_(0)
    recipe = Sphere(eps_s=0.3, eps_t=1.0, tau=0.06, distance=Precomputed())
    return Scene(positions, increments, tuple(groups), allocate(increments, cost, recipe))


def draw_scene(scene: Scene, path: Path) -> None:
    """A picture in three steps: what the losses say, what the neighbours say, what is replayed."""
    from matplotlib.figure import Figure

    allocation = scene.allocation
    relative = allocation.weights * len(allocation)
    figure = Figure(figsize=(12, 5.0), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    labels = ("loss increment", "consensus of the neighbours", "weight over uniform, minus 1")
    for axes, values, title, label in zip(
        panels,
        (scene.increments, allocation.consensus, relative - 1),
        (
            "1. Each memory alone: the spike's\nloss would rise the most",
            "2. Asking the neighbours: nobody\naround the spike agrees",
            "3. Replay: the region is rehearsed,\nthe spike is not",
        ),
        labels,
        strict=True,
    ):
        limit = float(values.abs().max())
        dots = axes.scatter(
            *scene.positions.T,
            c=values,
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            s=40 + 260 * values.clamp(min=0) / limit,
            edgecolors="0.35",
            linewidths=0.6,
        )
        spike = scene.positions[_SPIKE]
        axes.annotate(
            "spike", spike, spike + torch.tensor([0.5, -0.75]), arrowprops={"arrowstyle": "->"}
        )
        axes.annotate("coherent region", (0.0, 2.2), ha="center")
        axes.set(
            title=title, xticks=[], yticks=[], aspect="equal", xlim=(-2.7, 2.7), ylim=(-2.0, 2.6)
        )
        figure.colorbar(dots, ax=axes, orientation="horizontal", shrink=0.8, label=label)
    figure.savefig(path, dpi=120)
