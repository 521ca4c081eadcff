"""Replay of tokenized examples: what a training loop of a language model needs, in one object.

    loss.backward()                                       # the stream gradient g_c
    if len(replay.memory):
        replay.add_gradient(model, replay.draw(model, 4))     # rescores when due
    replay.admit(rows)
    optimizer.step()

The same lines serve one process and several: each scores and replays its share.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sphere_replay.allocation import Sphere
from sphere_replay.language.batching import token_batches
from sphere_replay.language.forward import features_and_losses
from sphere_replay.language.memory import TASK, TokenMemory
from sphere_replay.language.ranks import Ranks
from sphere_replay.language.rows import Row, pad_rows, target_count
from sphere_replay.replay import Draw, Replay, selection_named
from sphere_replay.scoring import Scores, score_batches

DEFAULT_BUDGET = 4096
"""Padded tokens in a scored batch."""


class LanguageReplay:
    """A token memory, the selection that draws from it, and counters for logs.

    The defaults are the paper's for instruction tuning.

    Args:
        memory: What there is to replay.
        generator: The only source of candidates, draws and shuffles.
        pad_token_id: Fills rows up; what it is does not matter to models that honor the mask.
        encoder_decoder: Whether labels are a decoder's own, as `is_encoder_decoder(model)` tells.
        select: Name of the selection, one of `replay.SELECTIONS`.
        recipe: Recipe of the selections built on SPHERE; `Sphere.instruct()` unless given.
        top: How many increments `mir-top` keeps.
        every: Rescore at every n-th draw.
        pool: Score and draw from this many memories; None for all.
        unit_mass: The drawn mean loss counts fully, whatever the mass s_w.
        virtual_lr: η_v, length of the virtual SGD step on the trainable parameters.
        token_budget: Padded tokens in a scored batch.
        ranks: The processes that share the work; those of torch.distributed unless given.
    """

    def __init__(
        self,
        memory: TokenMemory,
        *,
        generator: torch.Generator,
        pad_token_id: int = 0,
        encoder_decoder: bool = False,
        select: str = "sphere",
        recipe: Sphere | None = None,
        top: int = 16,
        every: int = 4,
        pool: int | None = 512,
        unit_mass: bool = True,
        virtual_lr: float = 1e-2,
        token_budget: int = DEFAULT_BUDGET,
        ranks: Ranks | None = None,
    ) -> None:
        self.memory = memory
        self.encoder_decoder = encoder_decoder
        self.virtual_lr = virtual_lr
        self.replay = Replay(
            memory.slots,
            selection_named(select, recipe or Sphere.instruct(), top),
            generator=generator,
            every=every,
            pool=pool,
            unit_mass=unit_mass,
        )
        self.task = 0
        """The task of rows that are admitted without one."""
        self._pad_token_id = pad_token_id
        self.token_budget = token_budget
        self._ranks = ranks or Ranks.current()
        self._replayed: Counter[int] = Counter()
        self._losses: list[float] = []
        self._skipped = 0

    def start_task(self, task: int | None = None) -> None:
        """The next draw rescores, and rows belong to this task; to the next one unless given."""
        self.task = self.task + 1 if task is None else task
        self.replay.start_task()

    def draw(self, model: nn.Module, count: int, *, grad_scale: float = 1.0) -> Draw:
        """`count` memories, rescored when due; the model is left as it was.

        Args:
            model: The model, with the stream gradient in its parameters' `.grad`.
            count: How many; fewer if the memory holds fewer.
            grad_scale: The factor of a gradient scaler that is still in `.grad`.
        """
        chosen = self.replay.draw(
            count, lambda slots: self.score(model, slots, grad_scale=grad_scale)
        )
        self._replayed.update(chosen[TASK].tolist())
        return chosen

    def loss(self, model: nn.Module, draw: Draw) -> Tensor | None:
        """Mean loss of what was drawn, times its scale; differentiable.

        On several processes the part of this one, None if nothing is left for it: the parts add up
        to the mean.
        """
        mine = self._ranks.share(draw.indices)
        if len(mine) == 0:
            return None
        batch = pad_rows(self.memory.rows(mine), self._pad_token_id, _device(model))
        return features_and_losses(model, batch)[1].sum() * (draw.scale / len(draw))

    def add_gradient(
        self, model: nn.Module, draw: Draw, *, strength: float = 1.0, grad_scale: float = 1.0
    ) -> float:
        """Add the gradient of `strength` times the mean replay loss to `.grad`; returns the loss.

        Nothing divides it: neither the number of processes nor that of accumulated batches.
        """
        value = self._ranks.add_gradients(
            model, lambda: self._backward(model, draw, strength * grad_scale)
        )
        self._losses.append(value)
        return value

    def admit(self, rows: Sequence[Row], tasks: Sequence[int] | Tensor | None = None) -> None:
        """Offer the rows of the stream batch; those of all processes, in the order of ranks.

        Rows without a target token have no loss and are left out.
        """
        numbers = [self.task] * len(rows) if tasks is None else torch.as_tensor(tasks).tolist()
        if len(numbers) != len(rows):
            raise ValueError(f"{len(rows)} rows need one task each, got {len(numbers)}")
        labeled = [
            {**row, TASK: torch.tensor([number])} for row, number in zip(rows, numbers, strict=True)
        ]
        offered = self._ranks.gathered_rows(labeled)
        kept = [row for row in offered if target_count(row, encoder_decoder=self.encoder_decoder)]
        self._skipped += len(offered) - len(kept)
        self.memory.add(
            [{name: row[name] for name in row if name != TASK} for row in kept],
            [int(row[TASK]) for row in kept],
        )

    def metrics(self) -> dict[str, float]:
        """What a log should know, with counts since the last call.

        `mass` and `ess` of the current weights, quantiles of the increments, and whatever else the
        selection has to say; `loss`, the mean replay loss; `memory`, filled slots; `skipped`, rows
        without a target so far; `share/task_N`, the share of the replayed rows from task N.
        """
        weighting, size = self.replay.weighting, float(len(self.memory))
        values = {"memory": size, "skipped": float(self._skipped)}
        if weighting is not None:
            values |= {"mass": weighting.mass, "ess": weighting.effective_sample_size}
            values |= weighting.details
        elif size and not self.replay.selection.needs_scores:
            values |= {"mass": 1.0, "ess": size}
        if self._losses:
            values["loss"] = sum(self._losses) / len(self._losses)
        total = self._replayed.total()
        for task, count in sorted(self._replayed.items()):
            values[f"share/task_{task}"] = count / total
        self._losses.clear()
        self._replayed.clear()
        return values

    def state_dict(self) -> dict[str, Any]:
        """Everything the next draw and the next log depend on, memory included."""
        return {
            "memory": self.memory.state_dict(),
            "engine": self.replay.state_dict(),
            "counters": {
                "task": self.task,
                "replayed": dict(self._replayed),
                "losses": list(self._losses),
                "skipped": self._skipped,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        counters = state["counters"]
        self.memory.load_state_dict(state["memory"])
        self.replay.load_state_dict(state["engine"])
        self.task = counters["task"]
        self._replayed = Counter(counters["replayed"])
        self._losses = list(counters["losses"])
        self._skipped = counters["skipped"]

    def score(self, model: nn.Module, slots: Tensor, *, grad_scale: float = 1.0) -> Scores:
        """Scores of the memories in the slots `[m]`, each asked on one process."""
        lengths = self.memory.lengths(slots)
        # By length, so that processes have about as much to do and rows that fit together.
        order = lengths.sort(descending=True, stable=True).indices
        # A process for which nothing is left scores something: it must learn the features' width.
        mine = self._ranks.share(order)
        asked = mine if len(mine) else order[:1]
        parts = token_batches(lengths[asked], self.token_budget)
        device = _device(model)
        batches = [
            pad_rows(self.memory.rows(slots[asked[part]]), self._pad_token_id, device)
            for part in parts
        ]
        own = score_batches(
            model,
            batches,
            lambda batch: features_and_losses(model, batch),
            lr=self.virtual_lr / grad_scale,
        )
        places = asked[torch.cat(parts)][: len(mine)].to(device)

        def whole(values: Tensor) -> Tensor:
            everywhere = values.new_zeros(len(slots), *values.shape[1:])
            everywhere.index_copy_(0, places, values[: len(mine)])
            return self._ranks.summed(everywhere)

        return Scores(whole(own.increments), whole(own.losses), whole(own.features))

    def _backward(self, model: nn.Module, draw: Draw, factor: float) -> float:
        loss = self.loss(model, draw)
        if loss is None:
            return 0.0
        (loss * factor).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return float(loss.detach())


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
