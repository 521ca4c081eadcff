"""Recordings of groups of programs: what was sampled for a problem, and how it was weighed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sphere_replay.allocation import Sphere
from sphere_replay.coding.problems import Problem
from sphere_replay.integrations.trl.groups import Group, SampledGroups
from sphere_replay.integrations.trl.session import GroupReplay
from sphere_replay.replay import Weighting
from sphere_replay.runs.recording import Recorder, Shown


class GroupWatch:
    """Records weighings of groups, by selections that ask neighbours: others embed no prompts.

    Args:
        folder: Where the recording goes.
        steps: Its moments, in updates.
        replay: The replay that is watched.
        problems: All problems by id.
        stages: Names of the stages, in order.
        tokenizer: Of the policy.
    """

    def __init__(
        self,
        folder: Path,
        steps: Sequence[int],
        replay: GroupReplay,
        problems: Mapping[str, Problem],
        stages: Sequence[str],
        tokenizer: Any,
    ) -> None:
        self.recorder = Recorder(folder, steps, Sphere.coding(None), self._shown)
        self._problems = [problems[str(name)] for name in replay.problems.names]
        self._stages, self._tokenizer = list(stages), tokenizer
        self._groups: Mapping[int, Group] = {}
        self._numbers = torch.empty(0, dtype=torch.int64)
        replay.watch = self._take

    def _take(self, candidates: SampledGroups, kept: Tensor, weighting: Weighting) -> None:
        scores = weighting.scores
        # Places of a group among the candidates; several processes hold only a part of them.
        whole = all(place in candidates.own for place in kept.tolist())
        if scores is not None and scores.features is not None and whole:
            self._groups, self._numbers = candidates.own, candidates.problems
            self.recorder.take(kept, scores, weighting)

    def _shown(self, kept: Tensor) -> Shown:
        problems = [self._problems[number] for number in self._numbers[kept].tolist()]
        groups = [self._groups[place] for place in kept.tolist()]
        return Shown(
            keys=self._numbers[kept].tolist(),
            tasks=torch.tensor([self._stages.index(problem.stage) for problem in problems]),
            names=self._stages,
            texts=[self._text(*pair) for pair in zip(problems, groups, strict=True)],
            fleeting=True,
        )

    def _text(self, problem: Problem, group: Group) -> str:
        """The prompt, then every program with its advantage over the group's mean."""
        inputs, parts = group.inputs, [problem.prompt.strip()]
        rows = zip(
            inputs["completion_ids"], inputs["completion_mask"], inputs["advantages"], strict=True
        )
        for ids, mask, advantage in rows:
            program = self._tokenizer.decode(ids[mask.bool()], skip_special_tokens=True)
            parts.append(f"— advantage {float(advantage):+.2f}\n{program.strip()}")
        return "\n\n".join(parts)
