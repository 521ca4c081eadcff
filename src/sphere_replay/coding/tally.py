"""What a run has counted so far: rewards, hollow ones among them, and what replay did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sphere_replay.coding.judge import Judge, Sampled
from sphere_replay.numeric import ratio


@dataclass
class Tally:
    """Counts of a run, by update and by stage; plain numbers throughout."""

    rewards: list[float] = field(default_factory=list)
    """Mean visible reward of the stream's programs, update by update."""
    rewarded: list[int] = field(default_factory=list)
    """Rewarded programs of the stream, stage by stage."""
    hollow: list[int] = field(default_factory=list)
    """Of these, the ones that fail the full suite."""
    programs: int = 0
    """Programs that the stream has sampled."""
    replay: dict[str, float] = field(default_factory=dict)
    """Sums over the updates with replay, by name."""
    replays: dict[str, int] = field(default_factory=dict)
    """How many numbers are in each sum."""

    def count(self, sampled: Sequence[Sampled], stage: int, judge: Judge) -> None:
        """Count an update's programs; the full suite is asked now, after they were learned from."""
        rewarded = [(one.problem, one.program) for one in sampled if one.rewarded]
        solved = judge.solved(rewarded)
        while len(self.rewarded) <= stage:
            self.rewarded.append(0)
            self.hollow.append(0)
        self.rewards.append(len(rewarded) / len(sampled))
        self.rewarded[stage] += len(rewarded)
        self.hollow[stage] += solved.count(False)
        self.programs += len(sampled)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add what replay says of an update."""
        for name, value in metrics.items():
            self.replay[name] = self.replay.get(name, 0.0) + value
            self.replays[name] = self.replays.get(name, 0) + 1

    def mean(self, name: str) -> float | None:
        """Mean of a number of replay over the updates that have it."""
        return self.replay[name] / self.replays[name] if name in self.replays else None

    def summary(self) -> dict[str, Any]:
        """The part about rewards of a run's results."""
        return {
            "visible": list(self.rewards),
            "rewarded": list(self.rewarded),
            "hollow": list(self.hollow),
            "hollow_share": ratio(sum(self.hollow), sum(self.rewarded)),
        }
