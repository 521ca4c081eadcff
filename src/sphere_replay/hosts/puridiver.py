"""PuriDivER: a pure and diverse memory, and a fit to it that trusts labels by degrees.

Online, L = CE(stream) + s_w CE(replay) with CutMix; what a full memory keeps is decided by
`memory.PurityDiversity`, judged by the network right after each update. The fit that follows each
task is `parted_fit`. A selection such as SPHERE enters at two places: the replay of the stream, and
the draw of clean memories in the fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sphere_replay.hosts.host import Batch, HostParts, Step, mislabelled
from sphere_replay.hosts.options import HostOptions, share, switch
from sphere_replay.hosts.parts.parted_fit import PartedFit, PartedFitOptions
from sphere_replay.memory import Insight, Judgement
from sphere_replay.replay import Draw
from sphere_replay.storage.trees import State


@dataclass(frozen=True, kw_only=True)
class PuriDivEROptions(PartedFitOptions):
    """Constants of PuriDivER's stream and admission, beside those of its fit."""

    diversity: float = share(0.5)
    """Largest share of similarity in what a full memory gives up."""
    replay_first_task: bool = switch(False)
    """Replay as soon as there is a memory, not from the second task on."""
    plain_stream: bool = switch(False)
    """Learn from stream images without augmentation."""
    joint_batch: bool = switch(False)
    """One forward over both batches, and the mean over all. Uniform draws only."""
    select_stream: bool = switch(True)
    """Whether the selection draws what is replayed."""


class PuriDivER(PartedFit):
    """PuriDivER (Bang et al. 2022); pair it with purity-diversity admission."""

    OPTIONS: ClassVar[type[HostOptions]] = PuriDivEROptions
    TOLD_TASKS = True
    options: PuriDivEROptions

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        scored = self.replay.selection.needs_scores
        self._uniform_stream = scored and not self.options.select_stream
        if self.options.joint_batch and scored and not self._uniform_stream:
            raise ValueError("joint_batch needs uniform draws: leave it off, or select_stream too")
        self._tasks = 0
        self._diversity = self.options.diversity
        self._head()  # a network without one is refused now, not when the memory is full

    def start_task(self) -> None:
        """A new task begins."""
        super().start_task()
        self._tasks += 1

    def observe(self, batch: Batch) -> Step:
        """One update on the stream batch and, from the second task on, a replayed one."""
        self.optimizer.zero_grad()
        replays = self._tasks > 1 or self.options.replay_first_task
        if not replays or len(self.memory) == 0:
            step = self._learn(batch)
        elif self.options.joint_batch:
            step = self._learn_jointly(batch)
        else:
            step = self._learn_in_turn(batch)
        self.optimizer.step()
        # A network that is still far from its data should judge by loss first.
        loss = _mean_loss(step, len(batch))
        self._diversity = self.options.diversity * min(1.0, 1 / max(loss, 1e-12))
        self.remember(batch)
        return step

    def insight(self) -> Insight:
        """Its network judges what a full memory keeps."""
        return Insight(judge=self._judge)

    def draw(self) -> Draw:
        """Memories to replay; uniformly, if the selection is for the fit alone."""
        if self._uniform_stream:
            return self.replay.draw_uniformly(self.parts.replay_batch)
        return super().draw()

    def _learn(self, batch: Batch) -> Step:
        loss = self._cross_entropy(self._mix(self._stream_view(batch.images), batch.labels))
        self.backward(loss, len(batch))
        return Step(loss.item())

    def _learn_in_turn(self, batch: Batch) -> Step:
        step = self._learn(batch)
        draw = self.draw()
        replayed = self._cross_entropy(self._mix(self.view(draw["x"]), draw["y"]))
        self.backward(draw.scale * replayed, len(draw))
        return Step(step.loss, replayed.item(), draw.scale, len(draw), mislabelled(draw))

    def _learn_jointly(self, batch: Batch) -> Step:
        draw = self.draw()
        views = torch.cat([self._stream_view(batch.images), self.view(draw["x"])])
        loss = self._cross_entropy(self._mix(views, torch.cat([batch.labels, draw["y"]])))
        self.backward(loss, len(views))
        return Step(loss.item(), None, draw.scale, len(draw), mislabelled(draw))

    def _stream_view(self, images: Tensor) -> Tensor:
        plain = self.options.plain_stream
        return self.parts.views.prepare(images) if plain else self.view(images)

    def _judge(self, candidates: Mapping[str, Tensor]) -> Judgement:
        seen = self._appraise(candidates["x"], candidates["y"])
        return Judgement(seen.losses, seen.features, self._head(), self._diversity)

    def _head(self) -> Tensor:
        """The classifier's weights `[C, d]`."""
        weight = getattr(getattr(self.network, "head", None), "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            raise ValueError(
                f"{type(self.network).__name__} has no head.weight of shape [classes, features], "
                "by which purity-diversity admission tells the features that matter to a class"
            )
        return weight.detach()

    def state_dict(self) -> State:
        """The state of a host that fits, and how many tasks have begun."""
        return super().state_dict() | {"tasks": self._tasks}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._tasks = state["tasks"]


def _mean_loss(step: Step, batch: int) -> float:
    """Over stream and replay, each example alike."""
    if step.replay_loss is None:
        return step.loss
    return (batch * step.loss + step.drawn * step.replay_loss) / (batch + step.drawn)
