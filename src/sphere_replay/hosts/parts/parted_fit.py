"""A fit to the memory at a task's end that trusts labels by degrees: PuriDivER's second half.

The network goes on from where the stream has left it, on the memory alone: a few epochs of plain
cross-entropy, then three parts (see `partition`) with three losses, each counted by the size of its
batch:

    clean         CE(f(x), y), CutMix
    relabelled    CE(f(strong x), t y + (1 - t) softmax f(x)), t the probability that y is right
    consistent    MSE(softmax f(x), softmax f(strong x))
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.allocation.sampling import Scheme, draw
from sphere_replay.hosts.host import HostParts
from sphere_replay.hosts.options import HostOptions, count, switch
from sphere_replay.hosts.parts.cutmix import mixed_cross_entropy
from sphere_replay.hosts.parts.memory_fit import MixedFit, MixedFitOptions
from sphere_replay.hosts.parts.mixture import (
    CONSTANTS,
    UNFINISHED,
    NoSplitError,
    Split,
    in_unit_interval,
    split_in_two,
)
from sphere_replay.numeric import as_probabilities
from sphere_replay.replay import Weigher
from sphere_replay.scoring.restoring import modules_restored
from sphere_replay.storage.trees import State

LEAST = 3
"""Examples that a part must have to be learned from."""
LARGEST_PART = 16
"""Batches of doubtful memories are at most this many times as large as a clean one: with a handful
of clean memories a step would otherwise hold views of all others."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices of clean, ambiguous and incorrect examples, rising: each is in exactly one part."""

    clean: Tensor
    ambiguous: Tensor
    incorrect: Tensor
    trust: Tensor
    """Probability `[n]` that an example's label is right: its posterior of the low-loss group."""
    converged: bool = True
    """Whether both mixtures did."""


@dataclass(frozen=True, kw_only=True)
class PartedFitOptions(MixedFitOptions):
    """Constants of a fit in parts."""

    warm_up: int = count(10)
    """Epochs of plain cross-entropy before the memory is parted."""
    strong_views: bool = switch(True)
    """Whether the second view of a doubtful image is a strong one."""
    relabel_confident: bool = switch(False)
    """Relabel the ambiguous part and keep the incorrect one consistent, not the other way round."""
    logit_consistency: bool = switch(False)
    """Compare logits, not probabilities, in the consistency loss."""
    select_fit: bool = switch(True)
    """Whether the selection draws the clean memories."""


class PartedFit(MixedFit):
    """A host that fits its memory in parts. How it learns from the stream is for subclasses."""

    OPTIONS: ClassVar[type[HostOptions]] = PartedFitOptions
    options: PartedFitOptions
    NESTEROV: ClassVar[bool] = True

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        selection = self.replay.selection
        self._selects_fit = selection.needs_scores and self.options.select_fit
        self._weigher = Weigher(selection, parts.augmentation)

    @classmethod
    def constants(cls) -> dict[str, Any]:
        """Those of a fit, and of how the memory is parted."""
        parts = {"smallest_part": LEAST, "largest_part": LARGEST_PART}
        return super().constants() | CONSTANTS | parts

    def _begin_fit(self) -> None:
        super()._begin_fit()
        self._weigher.forget()

    def _epoch(self, step: int) -> list[float]:
        """The network goes on from where the stream has left it."""
        parts = self._parts() if step >= self.options.warm_up else None
        return super()._epoch(step) if parts is None else self._parted_epoch(parts)

    def _parts(self) -> Partition | None:
        """The memory as the network sees it now; None, with a note, if it has no three parts."""
        seen = self._appraise(self.memory["x"], self.memory["y"])
        try:
            parts = partition(seen.losses, seen.logits)
        except NoSplitError as error:
            self.note(f"an epoch of the memory fit was plain cross-entropy: {error}")
            return None
        if not parts.converged:
            self.note(UNFINISHED)
        return parts

    def _parted_epoch(self, parts: Partition) -> list[float]:
        relabelled, consistent = parts.incorrect, parts.ambiguous
        if self.options.relabel_confident:
            relabelled, consistent = consistent, relabelled
        clean = self._batches(self._clean_order(parts.clean))
        others = (
            self._cycled(part, len(clean), self._part_size(part, parts.clean))
            for part in (relabelled, consistent)
        )
        losses = []
        for rows, doubted, unlabelled in zip(clean, *others, strict=True):
            loss = self._parted_loss(rows, doubted, unlabelled, parts.trust[doubted])
            views = len(rows) + 2 * (len(doubted) + len(unlabelled))
            losses.append(self._update(loss, views))
        return losses

    def _parted_loss(
        self, clean: Tensor, relabelled: Tensor, consistent: Tensor, trust: Tensor
    ) -> Tensor:
        """Mean over the examples of the three batches; all views share one forward."""
        trusted, doubted = self.memory.take(clean), self.memory.take(relabelled)
        unlabelled = self.memory.take(consistent)["x"]
        mixed = self._mix(self.view(trusted["x"]), trusted["y"])
        doubtful = torch.cat([doubted["x"], unlabelled])
        views = [mixed.images, self.view(doubtful)]
        if self.options.strong_views:
            views.append(self.parts.views.strengthen(doubtful, self.parts.augmentation))
        else:
            views.append(self.view(doubtful))
        sizes = [len(clean), *[len(relabelled), len(consistent)] * 2]
        outputs = torch.split(self.run(torch.cat(views)), sizes)
        logits, weak, steady, strong, moved = outputs
        targets = relabel(doubted["y"], trust.to(weak), weak.detach().softmax(dim=1))
        total = len(clean) * mixed_cross_entropy(logits, mixed)
        total = total + len(relabelled) * F.cross_entropy(strong, targets)
        total = total + len(consistent) * consistency(
            steady, moved, on_logits=self.options.logit_consistency
        )
        return total / (len(clean) + len(relabelled) + len(consistent))

    def _part_size(self, part: Tensor, clean: Tensor) -> int:
        """Of a doubtful batch, as large in proportion to its part as a clean one."""
        batch = self.options.fit_batch
        return min(len(part), max(2, len(part) * batch // len(clean)), LARGEST_PART * batch)

    def _clean_order(self, clean: Tensor) -> Tensor:
        """Clean memories for one epoch: each once, or as many draws by the selection's weights."""
        if not self._selects_fit:
            return self._shuffled(clean)
        # There is no stream now: the update that may interfere is that of a clean batch.
        chosen = self.memory.take(self._shuffled(clean)[: self.options.fit_batch])
        self.network.zero_grad()
        with modules_restored(self.network):
            logits = self.run(self.parts.views.prepare(chosen["x"]))
            self.backward(F.cross_entropy(logits, chosen["y"]), len(logits))
        weighting = self._weigher.weigh(len(clean), lambda: self.score(clean))
        self.spend_on_scoring(weighting.cost)
        chances = as_probabilities(weighting.weights.cpu())
        return clean[draw(chances, len(clean), Scheme.REPLACEMENT, self.parts.augmentation)]

    def state_dict(self) -> State:
        """The state of a host that fits, and what its clean memories were weighed by."""
        return super().state_dict() | {"weigher": self._weigher.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._weigher.load_state_dict(state["weigher"])


def partition(losses: Tensor, logits: Tensor) -> Partition:
    """Split examples by their losses `[n]` and logits `[n, C]`, all on the CPU afterwards.

    One mixture splits all examples by their loss: low is clean. A second one splits the others by
    how unsure the network is of them, u = 1 - max softmax: low is ambiguous, high is incorrect.

    Raises:
        NoSplitError: if there are no groups to be found, or one of them has fewer than three
            examples.
    """
    by_loss = _split(in_unit_interval(losses), "losses")
    clean = by_loss.is_low.nonzero().squeeze(1)
    doubtful = (~by_loss.is_low).nonzero().squeeze(1)
    if len(clean) < LEAST:
        raise NoSplitError("fewer than 3 clean memories")
    if len(doubtful) < LEAST:
        raise NoSplitError("fewer than 3 memories of high loss")
    uncertainties = 1 - logits.double().softmax(dim=1).amax(dim=1).cpu()
    by_doubt = _split(uncertainties[doubtful], "uncertainties")
    ambiguous, incorrect = doubtful[by_doubt.is_low], doubtful[~by_doubt.is_low]
    for name, part in (("ambiguous", ambiguous), ("incorrect", incorrect)):
        if len(part) < LEAST:
            raise NoSplitError(f"fewer than 3 {name} memories")
    converged = by_loss.converged and by_doubt.converged
    return Partition(clean, ambiguous, incorrect, by_loss.low, converged)


def _split(values: Tensor, what: str) -> Split:
    try:
        return split_in_two(values)
    except NoSplitError as error:
        raise NoSplitError(f"no two groups of {what}") from error


def relabel(labels: Tensor, trust: Tensor, predicted: Tensor) -> Tensor:
    """Targets t onehot(y) + (1 - t) p: a label `[n]` counts as far as it is trusted `[n]`."""
    given = F.one_hot(labels, predicted.shape[1]).to(predicted)
    return torch.lerp(predicted, given, trust[:, None])


def consistency(weak: Tensor, strong: Tensor, *, on_logits: bool = False) -> Tensor:
    """Mean squared difference, over batch and classes, of two views' probabilities (or logits)."""
    if not on_logits:
        weak, strong = weak.softmax(dim=1), strong.softmax(dim=1)
    return F.mse_loss(strong, weak)
