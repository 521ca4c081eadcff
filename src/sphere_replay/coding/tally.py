"""What a run has counted so far: rewards, hollow ones among them, and what replay did."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sphere_replay.coding.grading import Grader, Sampled
from sphere_replay.runs.job import ReplayTally, ratio


@dataclass
class Tally(ReplayTally):
    """Counts of a run, by update and by stage; plain numbers throughout."""

    rewards: list[float] = field(default_factory=list)
    """Mean visible reward of the stream's programs, update by update."""
    rewarded: list[int] = field(default_factory=list)
    """Rewarded programs of the stream, stage by stage."""
    hollow: list[int] = field(default_factory=list)
    """Of these, the ones that fail the full suite."""
    programs: int = 0
    """Programs that the stream has sampled."""

    def count(self, sampled: Sequence[Sampled], stage: int, grader: Grader) -> None:
        """Count an update's programs; the full suite is asked now, after they were learned from."""
        rewarded = [(one.problem, one.program) for one in sampled if one.rewarded]
        solved = grader.solved(rewarded)
        while len(self.rewarded) <= stage:
            self.rewarded.append(0)
            self.hollow.append(0)
        self.rewards.append(len(rewarded) / len(sampled))
        self.rewarded[stage] += len(rewarded)
        self.hollow[stage] += solved.count(False)
        self.programs += len(sampled)

    def summary(self) -> dict[str, Any]:
        """The part about rewards of a run's results."""
        return {
            "visible": list(self.rewards),
            "rewarded": list(self.rewarded),
            "hollow": list(self.hollow),
            "hollow_share": ratio(sum(self.hollow), sum(self.rewarded)),
        }
