"""Replay of tokenized examples: what the training of a language model needs, in one object.

    replay.keep(batch)                # as often as batches are accumulated
    loss.backward()                   # the stream gradient g_c
    replay.step(model)                # adds the replay gradient, then admits what was kept
    optimizer.step()

The same lines serve one process and several: each scores and replays its share.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sphere_replay.allocation import Sphere
from sphere_replay.errors import DataError, caution
from sphere_replay.language.batching import token_batches
from sphere_replay.language.examples import Examples, TokenExamples
from sphere_replay.language.memory import TASK, TokenMemory
from sphere_replay.language.ranks import Ranks
from sphere_replay.language.rows import Row, check_length, row_length
from sphere_replay.language.settings import LanguageReplaySettings
from sphere_replay.replay import Draw, alike_in_training
from sphere_replay.replay.selections import asks_labels
from sphere_replay.scoring import Scores, is_sharded, score_batches
from sphere_replay.scoring.restoring import finite_gradients
from sphere_replay.storage.trees import State

_PATIENCE = 100
"""So many examples without a target, and none with one, are no accident."""


@dataclass(frozen=True)
class Replayed:
    """What a step replayed, and its mean loss without strength and mass."""

    draw: Draw
    loss: float


class LanguageReplay:
    """A token memory, the engine that draws from it, and the stream that waits to enter it.

    Hand it from one training to the next, and the next one replays what the first has seen.

    Args:
        memory: What there is to replay.
        settings: How.
        generator: The only source of candidates, draws and shuffles.
        examples: What there is in a batch, and its loss; tokens with labels unless given.
        longest: Tokens that the model can read, if it has a limit.
        ranks: The processes that share the work; those of torch.distributed unless given.
    """

    def __init__(
        self,
        memory: TokenMemory,
        settings: LanguageReplaySettings,
        *,
        generator: torch.Generator,
        examples: Examples | None = None,
        longest: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.memory = memory
        self.settings = settings
        self.engine = settings.engine(
            memory.slots, Sphere.instruct(alpha=settings.alpha), generator
        )
        self.task = 0
        """The task of rows that are kept without one."""
        self.task_names: dict[int, str] = {}
        """Names of numbered tasks, for those that have one."""
        self.examples = examples or TokenExamples()
        """What the rows are."""
        self._longest = longest
        self._ranks = ranks or Ranks.current()
        self._window: list[list[Row]] = []
        self._replayed: Counter[int] = Counter()
        self._losses: list[float] = []
        self._skipped = 0
        self._warned = False
        self._alike: bool | None = None
        """Whether passes of training are those of scoring; looked at once in a task."""

    @property
    def asks_labels(self) -> bool:
        """Whether neighbours vote on answers, which must then be labels, not free text."""
        return asks_labels(self.engine.selection)

    def start_task(self, task: int | None = None) -> None:
        """The next draw rescores, and rows belong to this task; to the next one unless given."""
        self.task = self.task + 1 if task is None else task
        self._alike = None
        self.engine.start_task()

    def numbered(self, names: Iterable[str]) -> dict[str, int]:
        """The number of each named task: the one it has, or the next that is free."""
        numbers = {name: number for number, name in self.task_names.items()}
        for name in names:
            if name not in numbers:
                taken = [-1, *self.task_names, *self.memory.tasks.tolist()]
                numbers[name] = max(taken) + 1
                self.task_names[numbers[name]] = name
        return numbers

    def begin(self) -> None:
        """A training starts: forget batches of one that was cut short, and another one's passes."""
        self._window, self._alike = [], None
        self.engine.forget_passes()
        if len(self.memory):
            self.start_task()

    def keep(
        self, batch: Mapping[str, object], tasks: Sequence[int] | Tensor | None = None
    ) -> None:
        """Note a padded stream batch; its rows are offered to the memory at the next step."""
        self.keep_rows(self.examples.rows(batch), tasks)

    def keep_rows(self, rows: Sequence[Row], tasks: Sequence[int] | Tensor | None = None) -> None:
        """Note rows of the stream, each with its task; the present one unless given."""
        for row in rows:
            check_length(row_length(row), self._longest)
        numbers = torch.as_tensor([self.task] * len(rows) if tasks is None else tasks).view(-1, 1)
        if len(numbers) != len(rows):
            raise ValueError(f"{len(rows)} rows need one task each, got {len(numbers)}")
        pairs = zip(rows, numbers.long().cpu(), strict=True)
        self._window.append([{**row, TASK: task} for row, task in pairs])

    def step(
        self, model: nn.Module, scaler: Any = None, *, unscaled: bool = False
    ) -> Replayed | None:
        """The window's gradient stands in `.grad`: add that of replay, then admit its rows.

        Args:
            model: The model, not its distributed wrapper.
            scaler: The gradient scaler of half-precision training, if there is one. The virtual
                step follows the gradient without its factor, the replay gradient gets it. A window
                whose gradient overflowed is going to be skipped, so nothing is drawn.
            unscaled: The factor has already been taken out of `.grad`.
        """
        scales = scaler is not None and scaler.is_enabled()
        factor = float(scaler.get_scale()) if scales and not unscaled else 1.0
        replayed = None
        if len(self.memory) and (not scales or finite_gradients(model)):
            draw = self.draw(model, self.settings.replay_batch, grad_scale=factor)
            strength = self.settings.strength
            loss = self.add_gradient(model, draw, strength=strength, grad_scale=factor)
            replayed = Replayed(draw, loss)
        self.admit()
        return replayed

    def admit(self) -> None:
        """Offer what was kept to the memory: rows of all processes, in the order of ranks.

        Rows without a target token have no loss and are left out.
        """
        # Batch by batch: on several processes the stream then has the order it has on one.
        for rows in self._window:
            offered = self._ranks.gathered_rows(rows)
            kept = [row for row in offered if self.examples.counts(row)]
            self._skipped += len(offered) - len(kept)
            self.memory.add(
                [{name: row[name] for name in row if name != TASK} for row in kept],
                [int(row[TASK]) for row in kept],
            )
        self._window = []
        if self._skipped and not len(self.memory):
            self._warn_of_no_targets()

    def draw(self, model: nn.Module, count: int, *, grad_scale: float = 1.0) -> Draw:
        """`count` memories, rescored when due; the model is left as it was.

        Args:
            model: The model, with the stream gradient in its parameters' `.grad`.
            count: How many; fewer if the memory holds fewer.
            grad_scale: The factor of a gradient scaler that is still in `.grad`.
        """
        score = partial(self.score, model, grad_scale=grad_scale)
        chosen = self.engine.draw(count, score, self.memory.answers)
        self._replayed.update(chosen[TASK].tolist())
        return chosen

    def score(
        self, model: nn.Module, slots: Tensor, grad_scale: float = 1.0, *, increments: bool = True
    ) -> Scores:
        """Scores of the memories in the slots `[m]`, each asked on one process and known on all.

        Args:
            model: The model, with the stream gradient in its parameters' `.grad`.
            slots: Which memories, int64 `[m]`.
            grad_scale: The factor of a gradient scaler that is still in `.grad`.
            increments: False for losses and features alone, of one forward.
        """
        lengths, ranks = self.memory.lengths(slots), self._ranks
        # By length, so that processes have about as much to do and rows that fit together.
        order = lengths.sort(descending=True, stable=True).indices
        # A process for which nothing is left scores something: it must learn the features' width.
        mine = ranks.share(order)
        asked = mine if len(mine) else order[:1]
        parts = token_batches(lengths[asked], self.settings.token_budget)
        device = next(model.parameters()).device
        chosen = [self.memory.rows(slots[asked[part]]) for part in parts]
        batches = [self.examples.batch(rows, device) for rows in chosen]
        if is_sharded(model):
            # A forward gathers parameters from all processes, so they need as many: some for
            # company.
            batches += batches[-1:] * (ranks.largest(len(parts)) - len(parts))
        own = score_batches(
            model,
            batches,
            lambda batch: self.examples.evaluate(model, batch),
            lr=self.settings.virtual_lr,
            grad_scale=grad_scale,
            increments=increments,
        )
        places = asked[torch.cat(parts)][: len(mine)]

        def whole(values: Tensor) -> Tensor:
            return ranks.spread(values[: len(mine)], places, len(slots))

        assert own.features is not None  # examples are evaluated to both
        return replace(
            own,
            increments=whole(own.increments),
            losses=whole(own.losses),
            features=whole(own.features),
            labels=self.memory.answers(slots),
        )

    def loss(self, model: nn.Module, draw: Draw) -> Tensor | None:
        """Mean loss of what was drawn, times its scale; differentiable.

        On several processes the part of this one, None if nothing is left for it: the parts add up
        to the mean.
        """
        mine = self._ranks.share(draw.indices)
        factor = draw.scale / len(draw)
        if len(mine) == 0:
            if not is_sharded(model):
                return None
            mine, factor = draw.indices[:1], 0.0  # the others need this process to run the model
        device = next(model.parameters()).device
        batch = self.examples.batch(self.memory.rows(mine), device)
        features, losses = self.examples.evaluate(model, batch)
        if self.engine.reuses and self._ranks.world == 1:  # others would have to be told of it
            if self._alike is None:
                self._alike = alike_in_training(model)
            if self._alike:
                self.engine.passed(draw, features, losses)
        return losses.sum() * factor

    def add_gradient(
        self, model: nn.Module, draw: Draw, *, strength: float = 1.0, grad_scale: float = 1.0
    ) -> float:
        """Add the gradient of `strength` times the mean replay loss to `.grad`; returns the loss.

        Nothing divides it: neither the number of processes nor that of accumulated batches.
        """

        def backward(factor: float) -> float:
            loss = self.loss(model, draw)
            if loss is None:
                return 0.0
            torch.autograd.backward(loss * (strength * grad_scale * factor))
            return float(loss.detach())

        value = self._ranks.add_gradients(model, backward)
        self._losses.append(value)
        return value

    def metrics(self) -> dict[str, float]:
        """What a log should know, with counts since the last call.

        `mass` and `ess` of the current weights, quantiles of the increments, and whatever else the
        selection has to say; `loss`, the mean replay loss; `memory`, filled slots; `skipped`, rows
        without a target so far; `share/task_N`, or `share/NAME`, the task's share of the replay.
        """
        weighting, size = self.engine.weighting, float(len(self.memory))
        values = {"memory": size, "skipped": float(self._skipped)}
        if weighting is not None:
            values |= {"mass": weighting.mass, "ess": weighting.effective_sample_size}
            values |= weighting.details
        elif size and not self.engine.selection.needs_scores:
            values |= {"mass": 1.0, "ess": size}
        if self._losses:
            values["loss"] = sum(self._losses) / len(self._losses)
        total = self._replayed.total()
        for task, count in sorted(self._replayed.items()):
            values[f"share/{self.task_names.get(task, f'task_{task}')}"] = count / total
        self._losses.clear()
        self._replayed.clear()
        return values

    def state_dict(self) -> State:
        """Everything the next draw and the next log depend on, memory included."""
        return {
            "memory": self.memory.state_dict(),
            "engine": self.engine.state_dict(),
            "task": self.task,
            "task_names": dict(self.task_names),
            "replayed": dict(self._replayed),
            "losses": list(self._losses),
            "skipped": self._skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.memory.load_state_dict(state["memory"])
        self.engine.load_state_dict(state["engine"])
        self.task = state["task"]
        self.task_names = dict(state.get("task_names", {}))
        self._replayed = Counter(state["replayed"])
        self._losses = list(state["losses"])
        self._skipped = state["skipped"]

    def _warn_of_no_targets(self) -> None:
        message = (
            f"none of the first {self._skipped} examples has a target token: all their labels are "
            "-100, so there is nothing to remember or replay; was the answer cut off by truncation "
            "or masked by the collator?"
        )
        if self._skipped >= _PATIENCE:
            raise DataError(message)
        if not self._warned:
            caution(message)
            self._warned = True
