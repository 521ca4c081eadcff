"""`allocate` where memories lie on several ranks: each gets the weights of its own."""

import hashlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sphere_replay.allocation.allocate import allocate
from sphere_replay.allocation.backing import check_labels
from sphere_replay.allocation.recipe import Sphere
from sphere_replay.allocation.result import Allocation
from sphere_replay.geometry import ShardedGeometry
from sphere_replay.validation import check_increments, spelled


@dataclass(frozen=True, eq=False)
class ShardedAllocation:
    """One rank's part of an allocation over all ranks."""

    whole: Allocation
    """Of all memories, in the order of the ranks; the same bits on every rank. Draw from it with
    generators in the same state, and every rank has the same draw. What it computes only when asked
    (`effective_neighbors`, `radius`) all ranks must ask for."""
    own: slice
    """Which of all memories are this rank's."""

    @property
    def weights(self) -> Tensor:
        """w̄ `[m_r]` of this rank's memories."""
        return self.whole.weights[self.own]

    @property
    def probabilities(self) -> Tensor:
        """P `[m_r]` of this rank's memories, which sum to 1 over all ranks."""
        return self.whole.probabilities[self.own]

    def held(self, drawn: Tensor) -> Tensor:
        """Those of the drawn memories that are this rank's, by its own numbers, as they came."""
        ours: Tensor = drawn[(drawn >= self.own.start) & (drawn < self.own.stop)]
        return ours.sub(self.own.start)


def allocate_sharded(
    increments: Tensor,
    features: Tensor,
    recipe: Sphere | None = None,
    *,
    labels: Tensor | None = None,
    running_scale: float | None = None,
    generator: torch.Generator | None = None,
    group: "dist.ProcessGroup | None" = None,
) -> ShardedAllocation:
    """What `allocate` gives for the memories of all ranks, exactly; see there for the arguments.

    All ranks of the group call it together: with increments `[m_r]`, features `[m_r, d]` and labels
    `[m_r]` of their own memories, and the same of everything else.

    Raises:
        ValueError: on every rank, if any has values that cannot be used.
        LostRankError: if another rank ends, or does not answer within the group's timeout.
    """
    recipe = recipe or Sphere.vision()
    places = ShardedGeometry(features, recipe.distance, group=group)
    places.ring.alike("recipes", spelled(recipe))
    places.ring.alike("running scales", str(running_scale))
    state = b"none" if generator is None else bytes(generator.get_state().tolist())
    places.ring.alike("states of generators", hashlib.sha256(state).hexdigest()[:8])
    problem = None
    try:
        increments = check_increments(increments)
        if len(increments) != len(features):
            problem = f"{len(increments)} increments but {len(features)} feature rows"
        elif labels is not None:
            labels = check_labels(labels, len(increments))
    except (TypeError, ValueError) as error:
        problem = str(error)
    places.ring.agree(problem)
    given = "no labels" if labels is None else "labels"
    places.ring.alike("increments and labels", f"{increments.dtype} and {given}")
    whole = allocate(
        places.gather(increments.to(torch.promote_types(increments.dtype, torch.float32))),
        places,
        recipe,
        labels=None if labels is None else places.gather(labels),
        running_scale=running_scale,
        generator=generator,
    )
    return ShardedAllocation(whole, places.own)
