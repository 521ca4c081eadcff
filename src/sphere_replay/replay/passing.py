"""What training computes of memories in passing: features and losses, with their age.

A replayed example goes through the model anyway, and so does one of the stream before it is
admitted. At a rescoring soon after, what came out stands for a forward pass of its own, if that
would compute the same: in training mode batch norm sees the batch, and dropout draws.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from sphere_replay.memory import Memory
from sphere_replay.storage.trees import State

_PER_DRAW = 8
"""Batches for each draw from which on the latest rows alone are kept: more come where nothing is
drawn yet."""
_RATES = ("drop", "noise", "jitter")
"""In names of numbers that make training random."""


class Known(NamedTuple):
    """What was computed of some of the memories that were asked for."""

    places: Tensor
    """Which of them, int64 `[n]`, ascending."""
    features: Tensor
    """h `[n, d]`."""
    losses: Tensor
    """`[n]`."""


def alike_in_training(model: nn.Module) -> bool:
    """Whether a model computes the same in training as in evaluation: no batch norm, no dropout.

    Modules of language models may read their rates from a configuration. What a module does by its
    own `if self.training`, with no such number, cannot be seen.
    """
    return not any(map(_differs, model.modules()))


def _differs(module: nn.Module) -> bool:
    if isinstance(module, _NormBase | nn.RReLU):
        return True
    # Dropout calls its rate p; attention, recurrent layers and residual paths have names for it.
    config = getattr(getattr(module, "config", None), "__dict__", {})
    rates = (
        value
        for name, value in (vars(module) | config).items()
        if name == "p" or any(part in name for part in _RATES)
    )
    return any(isinstance(rate, int | float) and rate is not True and rate > 0 for rate in rates)


class _Batch(NamedTuple):
    draws: Tensor
    """How many draws there had been, int64 `[n]`."""
    slots: Tensor
    versions: Tensor
    features: Tensor
    losses: Tensor

    def of(self, rows: Tensor) -> "_Batch":
        """Some of the rows; what is not on the CPU stays where it is."""
        return _Batch(*(values[rows.to(values.device)] for values in self))


class Passing:
    """Features and losses of the examples that training passed lately.

    Args:
        memory: Whose slots these examples are in.
        longest: Draws after which they are forgotten.
    """

    def __init__(self, memory: Memory, longest: int) -> None:
        self._memory = memory
        self._longest = longest
        self._draws = 0
        self._batches: list[_Batch] = []
        self._loaded = memory.loaded

    def note(
        self, slots: Tensor, features: Tensor, losses: Tensor, versions: Tensor | None = None
    ) -> None:
        """Features `[n, d]` and losses `[n]` of the examples in these slots; -1 is in none.

        They are in the slots now, or were when these had the given versions.
        """
        for name, values in {"slots": slots, "features": features, "losses": losses}.items():
            if not isinstance(values, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(values).__name__}")
        whole = not (slots.is_floating_point() or slots.dtype is torch.bool)
        right = whole and slots.ndim == losses.ndim == 1 and features.ndim == 2
        if not right or not len(slots) == len(features) == len(losses):
            raise ValueError(
                "slots [n] of whole numbers need a row of features [n, d] and a loss [n] each, "
                f"with reduction='none'; got slots {list(slots.shape)} of {slots.dtype}, features "
                f"{list(features.shape)} and losses {list(losses.shape)}"
            )
        if len(slots) == 0:
            return
        slots = slots.to("cpu", torch.int64, copy=True)
        least, most = map(int, slots.aminmax())
        if not -1 <= least <= most < len(self._memory):
            raise ValueError(
                f"slots are those of {len(self._memory)} memories, or -1 for none; got {least} to "
                f"{most}"
            )
        if most < 0:
            return
        if versions is None:
            versions = self._memory.versions_of(slots)
        self._forget_another_memory()
        if self._batches and self._batches[-1].features.shape[1] != features.shape[1]:
            self.forget()  # another model's
        draws = torch.full_like(slots, self._draws)
        # Copies: a caller may go on writing, and a view would hold on to all that it is of.
        features, losses = features.detach().clone(), losses.detach().to(features.device, copy=True)
        batch = _Batch(draws, slots, versions, features, losses)
        self._batches.append(batch if least >= 0 else batch.of((slots >= 0).nonzero()[:, 0]))
        if len(self._batches) > _PER_DRAW * self._longest:
            self._keep(self._latest())

    def count(self) -> None:
        """A draw was made."""
        self._draws += 1
        while self._batches and self._batches[0].draws[0] <= self._draws - self._longest:
            del self._batches[0]

    def forget(self) -> None:
        """The model is another one, or the memory."""
        self._batches, self._loaded = [], self._memory.loaded

    def _forget_another_memory(self) -> None:
        """Versions of the stream before tell nothing once another state was loaded."""
        if self._loaded != self._memory.loaded:
            self.forget()

    def known(self, slots: Tensor) -> Known | None:
        """The latest of what is known of the memories in these slots `[m]`; None: nothing is."""
        latest = self._latest()
        if latest is None:
            return None
        slots = slots.cpu()
        rows = torch.searchsorted(latest.slots, slots).clamp_(max=len(latest.slots) - 1)
        places = (latest.slots[rows] == slots).nonzero()[:, 0]
        if len(places) == 0:
            return None
        found = latest.of(rows[places])
        return Known(places, found.features, found.losses)

    def _latest(self) -> _Batch | None:
        """What is known of each slot, by slots; None: of none."""
        self._forget_another_memory()
        if not self._batches:
            return None
        newest, columns = self._batches[-1], zip(*self._batches, strict=True)
        rows = _Batch(
            *(
                torch.cat([part.to(like.device) for part in parts])
                for like, parts in zip(newest, columns, strict=True)
            )
        )
        gone = self._memory.changed(rows.versions, rows.slots)
        slots, order = rows.slots.masked_fill(gone, -1).sort(stable=True)
        last = (slots >= 0).index_fill_(0, (slots.diff() == 0).nonzero()[:, 0], False)
        latest = rows.of(order[last])
        # What is not finite is left to a pass of its own, which says so; a sum tells it soonest.
        sound = (latest.features.float().sum(dim=1) + latest.losses).isfinite()
        if not sound.all():
            latest = latest.of(sound.nonzero()[:, 0])
        return latest if len(latest.slots) else None

    def state_dict(self) -> State:
        """All that is known."""
        latest = self._latest()
        return {"draws": self._draws, "known": None if latest is None else latest._asdict()}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken, on the memory of that moment."""
        self._draws = state["draws"]
        self._keep(None if state["known"] is None else _Batch(**state["known"]))

    def _keep(self, rows: _Batch | None) -> None:
        """These alone, by their age."""
        self.forget()
        if rows is not None:
            ages = [rows.draws == draws for draws in sorted(set(rows.draws.tolist()))]
            self._batches = [rows.of(age.nonzero()[:, 0]) for age in ages]
