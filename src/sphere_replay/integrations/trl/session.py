"""Replay over the updates of GRPO: what happens between the stream's gradient and the step."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sphere_replay.allocation import Sphere
from sphere_replay.allocation.sampling import Scheme, draw
from sphere_replay.geometry import center_embeddings, neighbor_distance_scale
from sphere_replay.integrations.trl.arguments import NO_REPLAY, GroupReplayArguments
from sphere_replay.integrations.trl.embeddings import prompt_embeddings
from sphere_replay.integrations.trl.gradients import replay_gradient, score_groups
from sphere_replay.integrations.trl.groups import (
    SampledGroups,
    books_aside,
    differs,
    sample_candidates,
)
from sphere_replay.integrations.trl.problems import ProblemMemory, Problems
from sphere_replay.language import Ranks
from sphere_replay.numeric import as_probabilities
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.replay import Weigher, Weighting
from sphere_replay.scoring import Scores, resharded

LOGGER = logging.getLogger(__name__)


class GroupReplay:
    """The memory of problems, and the replay of their groups; `trainer.replay`.

    Args:
        trainer: The trainer whose updates it completes.
        arguments: The settings.
        problems: The problems of the training set.
        embeddings: Raw prompt embeddings `[problems, d]`, in order of first appearance; those of
            the base model unless given. Either are normalized, centered and normalized again.
    """

    def __init__(
        self,
        trainer: Any,
        arguments: GroupReplayArguments,
        problems: Problems,
        embeddings: Tensor | None = None,
    ) -> None:
        self.arguments = arguments
        self.problems = problems
        self.memory = ProblemMemory(len(problems), arguments.capacity, arguments.replay_seed)
        self.embeddings: Tensor | None = None
        """Unit rows `[problems, d]`, fixed before training."""
        self.costs = {"programs": 0, "forwards": 0, "backwards": 0}
        """Programs sampled for candidates, groups evaluated to score them, groups
        differentiated; over all processes."""
        self.seconds = dict.fromkeys(("generate", "score", "allocate", "replay"), 0.0)
        """Spent so far by this process: on candidates and their rewards, on their increments, on
        weights and draws, and on the replay gradient."""
        self.sampling = False
        """True while candidates, not problems of the stream, are sampled and rewarded."""
        self.watch: Callable[[SampledGroups, Tensor, Weighting], None] | None = None
        """Told of each weighing: the candidates, the places of the weighed, their weights. Whoever
        looks on must change nothing."""
        self._trainer = trainer
        self._ranks = Ranks.current()
        self._window: list[int] = []
        self._noted: dict[str, list[float]] = defaultdict(list)
        self._warned = False
        self._generators = {
            purpose: generator_for(arguments.replay_seed, purpose)
            for purpose in ("candidates", "programs", "replay")
        }
        self._weigher: Weigher | None = None
        if embeddings is not None:
            self._fix(_checked(embeddings, len(problems)))

    def begin(self) -> None:
        """A training starts: embed the prompts, and forget a window that was cut short."""
        self._window = []
        if self.arguments.select == NO_REPLAY or self.embeddings is not None:
            return
        if self.arguments.selection_on(Sphere.coding()).needs_features:
            self._fix(prompt_embeddings(self._trainer, self.problems, self._ranks))

    def note(self, rows: Sequence[Mapping[str, Any]], advantages: Tensor) -> None:
        """Programs were sampled for these rows of the stream `[n]`; all processes take part."""
        names = [row[self.arguments.id_field] for row in rows]
        local = torch.tensor([self.problems.numbers[name] for name in names])
        problems = torch.cat(self._ranks.gathered(local))
        outcomes = torch.cat(self._ranks.gathered(differs(advantages).long().cpu()))
        mixed = torch.zeros(len(self.problems), dtype=torch.bool)
        mixed[problems[outcomes > 0]] = True
        # From now on, before candidates are chosen: the stream's group is the latest.
        self.memory.record(problems, mixed[problems])
        self._window += problems.tolist()

    def step(self) -> None:
        """The stream's gradient stands in `.grad`: add that of replay, then admit the window."""
        if self.arguments.select != NO_REPLAY and len(self.memory):
            with (
                books_aside(self._trainer),
                self._own_random_numbers(),
                # Sampling may leave gathered parameters behind, which the next step would not move.
                resharded(self._trainer.model),
            ):
                self._replay()
        self.memory.offer(self._window)
        self._window = []

    def metrics(self) -> dict[str, float]:
        """For the trainer's log: means over the updates since the last call.

        `mass`, `ess`, increments' quantiles and whatever else the selection has to say; `mixed`
        and `empty`, shares of the candidates; `reward`, their mean reward; `draws`, groups
        replayed, `distinct` ones among them, and their mean `loss`; `fallback`, the share of
        updates without a mixed candidate; `memory`, problems held.
        """
        values = {name: sum(each) / len(each) for name, each in self._noted.items()}
        self._noted.clear()
        values["memory"] = float(len(self.memory))
        return values

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update and the next log depend on, embeddings included."""
        return {
            "memory": self.memory.state_dict(),
            "generators": {
                purpose: generator.get_state() for purpose, generator in self._generators.items()
            },
            "embeddings": None if self.embeddings is None else self.embeddings.clone(),
            "problems": self.problems.digest,
            "costs": dict(self.costs),
            "noted": {name: list(each) for name, each in self._noted.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, on the same problems."""
        if state["problems"] != self.problems.digest:
            raise ValueError(
                "the saved replay belongs to another training set: its problems, or their order, "
                "are different; resume with the training set it was saved with"
            )
        self.memory.load_state_dict(state["memory"])
        for purpose, generator in self._generators.items():
            generator.set_state(state["generators"][purpose])
        if state["embeddings"] is not None:
            self.embeddings, self._weigher = state["embeddings"].clone(), None
        self.costs = dict(state["costs"])
        self._noted = defaultdict(list, {name: list(v) for name, v in state["noted"].items()})

    @property
    def weigher(self) -> Weigher:
        """Weighs groups; recipes of SPHERE have the training prompts' own d0."""
        if self._weigher is None:
            points, arguments = self.embeddings, self.arguments
            d0 = None if points is None else neighbor_distance_scale(points)
            recipe = Sphere.coding(d0, alpha=arguments.alpha)
            selection = arguments.selection_on(recipe)
            self._weigher = Weigher(selection, self._generators["replay"])
        return self._weigher

    def _fix(self, embeddings: Tensor) -> None:
        self.embeddings, self._weigher = center_embeddings(embeddings), None

    def _replay(self) -> None:
        with self._timed("generate"):
            candidates = self._sample()
        kept = candidates.mixed.nonzero()[:, 0]
        if len(kept) == 0:
            self._fall_back(len(candidates.problems))
            return
        weighting = self._weigh(candidates, kept)
        if self.watch is not None:
            self.watch(candidates, kept, weighting)
        with self._timed("allocate"):
            counts = self._draw(weighting)
        drawn = counts.nonzero()[:, 0]
        with self._timed("replay"):
            loss = replay_gradient(
                self._trainer,
                self._ranks,
                candidates,
                kept[drawn],
                counts[drawn] / self.arguments.replay_batch,
                strength=self.arguments.strength,
            )
        self.costs["backwards"] += len(drawn)
        self._note(
            **weighting.details,
            mass=weighting.mass,
            ess=weighting.effective_sample_size,
            draws=float(counts.sum()),
            distinct=float(len(drawn)),
            fallback=0.0,
            loss=loss,
        )

    def _sample(self) -> SampledGroups:
        """New programs for some remembered problems."""
        chosen = self.memory.candidates(
            self.arguments.pool or len(self.memory),
            self.arguments.favor,
            self._generators["candidates"],
        )
        self.sampling = True
        try:
            candidates = sample_candidates(self._trainer, self._ranks, self.problems, chosen)
        finally:
            self.sampling = False
        self.memory.record(chosen, candidates.mixed)
        self.costs["programs"] += len(chosen) * self._trainer.num_generations
        self._note(
            reward=candidates.reward,
            mixed=float(candidates.mixed.double().mean()),
            empty=float(candidates.empty.double().mean()),
        )
        return candidates

    def _weigh(self, candidates: SampledGroups, kept: Tensor) -> Weighting:
        """Weights `[m]` of the mixed groups at the places `kept` `[m]`."""
        before = self.seconds["score"]
        with self._timed("allocate"):
            weighting = self.weigher.weigh(len(kept), lambda: self._score(candidates, kept))
        self.seconds["allocate"] -= self.seconds["score"] - before
        self.costs["forwards"] += weighting.cost
        return weighting

    def _score(self, candidates: SampledGroups, kept: Tensor) -> Scores:
        with self._timed("score"):
            increments, losses = score_groups(
                self._trainer, self._ranks, candidates, kept, lr=self.arguments.virtual_lr
            )
        places = candidates.problems[kept]
        features = None if self.embeddings is None else self.embeddings[places]
        return Scores(increments, losses, features)

    def _draw(self, weighting: Weighting) -> Tensor:
        """How often each of the weighed groups is replayed; `[m]`, the sum is `replay_batch`."""
        chances, count = as_probabilities(weighting.weights.cpu()), self.arguments.replay_batch
        drawn = draw(chances, count, Scheme.REPLACEMENT, self._generators["replay"])
        return torch.bincount(drawn, minlength=len(chances))

    def _fall_back(self, candidates: int) -> None:
        """Uniform replay of groups whose advantages are all zero: no gradient to add."""
        self._note(mass=1.0, ess=float(candidates), draws=0.0, distinct=0.0, fallback=1.0)
        if not self._warned and self._ranks.rank == 0:
            LOGGER.warning(
                "none of the %d candidates has programs with different rewards: replay falls back "
                "to uniform, whose gradient is zero; the log counts such updates as "
                "replay/fallback",
                candidates,
            )
        self._warned = True

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Inside, sampling and dropout draw from a stream of ours; the trainer's is left alone.

        Processes work on different groups, so each has numbers of its own.
        """
        seed = int(torch.randint(2**62, (), generator=self._generators["programs"]))
        own = generator_for(seed, f"process {self._ranks.rank}")
        with globally_seeded(own, self._trainer.accelerator.device):
            yield

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def _note(self, **values: float) -> None:
        for name, value in values.items():
            if math.isfinite(value):  # a reward is not where no program could be judged
                self._noted[name].append(value)


def _checked(embeddings: Tensor, problems: int) -> Tensor:
    if embeddings.ndim != 2 or len(embeddings) != problems:
        raise ValueError(
            f"embeddings must have one row for each of the {problems} problems, in order of first "
            f"appearance, got {list(embeddings.shape)}"
        )
    if not bool(embeddings.isfinite().all()):
        raise ValueError("embeddings must be finite: check the model they come from")
    return embeddings.detach().float().cpu()
