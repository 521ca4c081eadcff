"""ABS: of the current task what is trusted stays, of earlier tasks what is hard."""

from typing import ClassVar

import torch
from torch import Tensor

from sphere_replay.memory.admission import Offer
from sphere_replay.memory.class_slots import offered_labels
from sphere_replay.memory.state import check_policy
from sphere_replay.storage.trees import State

LOSS = "loss"
"""The field with the losses."""


class AsymmetricBalanced:
    """Asymmetric balanced sampling (Millunzi et al. 2024): reservoir odds, victims by their loss.

    While there is room every row is kept. Afterwards the n-th row gets in with probability K / n.
    Its victim is of an earlier task (label < `Insight.first_class`) or of the current one, with
    probabilities as their shares of the slots; within the group, with losses moved to [0, 1]:

    - current task: proportional to the loss, because high losses are often wrong labels;
    - earlier tasks: proportional to 1 - loss, because what is easy needs no rehearsal.

    If all of these are zero the victim is uniform. Losses are those of the field `loss` as it is
    stored now: whoever knows better ones updates the memory.
    """

    name: ClassVar[str] = "asymmetric-balanced"
    draws: ClassVar[bool] = True

    def __init__(self, label: str = "y") -> None:
        self.label = label

    def place(self, offer: Offer) -> Tensor:
        """The slot of each row, decided one after the other."""
        offered = offered_labels(offer, offer.filled, label=self.label, policy=self.name)
        if LOSS not in offer.fields:
            raise ValueError(
                f"{self.name} admission needs the loss of every row in a field {LOSS!r}: use it "
                "with a host that stores one (abs)"
            )
        labels = torch.full((offer.capacity,), -1)
        losses = torch.zeros(offer.capacity, dtype=torch.float64)
        if offer.filled:
            labels[: offer.filled] = offer.stored[self.label].cpu()
            losses[: offer.filled] = offer.stored[LOSS].cpu()
        filled, slots = offer.filled, []
        for row, uniform in enumerate(offer.uniforms.tolist()):
            chance = offer.capacity / (offer.seen + row + 1)
            slot = -1
            if filled < offer.capacity:
                slot, filled = filled, filled + 1
            elif uniform < chance:
                slot = victim(losses, labels < offer.insight.first_class, uniform / chance)
            if slot >= 0:
                labels[slot] = offered[row].cpu()
                losses[slot] = offer.fields[LOSS][row].cpu()
            slots.append(slot)
        return torch.tensor(slots, dtype=torch.int64, device="cpu")

    def state_dict(self) -> State:
        """The label's name."""
        return {"label": self.label}

    def load_state_dict(self, state: State) -> None:
        """Check that the saved policy had the same label field."""
        own = {name: value for name, value in state.items() if name != "first_class"}  # once kept
        check_policy(own, (), label=self.label, policy=self.name)


def victim(losses: Tensor, past: Tensor, uniform: float) -> int:
    """The slot that is given up, by one number in [0, 1): losses float64 `[K]`, past bool `[K]`."""
    share = float(past.double().mean())
    # What is left of the number after each decision is uniform again.
    if uniform < share:
        group, uniform = past.nonzero().squeeze(1), uniform / share
    else:
        group, uniform = (~past).nonzero().squeeze(1), (uniform - share) / (1 - share)
    values = losses[group]
    low, high = values.aminmax()
    weights = torch.ones_like(values)
    if high > low:
        weights = (high - values if bool(past[group[0]]) else values - low) / (high - low)
    reached = weights.cumsum(0)
    index = torch.searchsorted(reached, uniform * reached[-1], right=True)
    return int(group[min(int(index), len(group) - 1)])
