"""PuriDivER's three parts of a memory: clean, ambiguous and incorrect.

One mixture splits all examples by their loss: low is clean. A second one splits the others by how
unsure the network is of them, u = 1 - max softmax: low is ambiguous, high is incorrect.
"""

from dataclasses import dataclass

from torch import Tensor

from sphere_replay.hosts.parts.mixture import NoSplitError, Split, in_unit_interval, split_in_two

LEAST = 3
"""Examples that a part must have to be learned from."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices, rising: every example is in exactly one part."""

    clean: Tensor
    ambiguous: Tensor
    incorrect: Tensor
    trust: Tensor
    """Probability `[n]` that an example's label is right: its posterior of the low-loss group."""
    converged: bool = True
    """Whether both mixtures did."""


def partition(losses: Tensor, logits: Tensor) -> Partition:
    """Split examples by their losses `[n]` and logits `[n, C]`, all on the CPU afterwards.

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
