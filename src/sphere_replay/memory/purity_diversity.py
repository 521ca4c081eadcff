"""PuriDivER's memory: of the largest class, the example that is doubtful or redundant goes.

Examples with a high loss may be mislabelled (purity); examples whose features resemble those of
their class add little (diversity). Whose turn it is to lose an example depends on the sizes of the
classes alone, so only the classes that lose any have to be judged, and each once per batch.
"""

from collections import Counter
from typing import ClassVar

import torch
from torch import Tensor

from sphere_replay.memory.admission import Judgement, Offer
from sphere_replay.memory.class_slots import offered_labels
from sphere_replay.memory.state import check_policy
from sphere_replay.storage.trees import State


class PurityDiversity:
    """Keeps classes equal in size, and of each class what is trusted and varied.

    While there is room every row is kept. Then, of stored and offered rows together, one after the
    other leaves: always from the largest class (a random one of them, if they tie), and there the
    row of the highest score, see `Judgement`. Whoever offers rows to a full memory judges them.
    """

    name: ClassVar[str] = "purity-diversity"
    draws: ClassVar[bool] = True

    def __init__(self, label: str = "y") -> None:
        self.label = label

    def place(self, offer: Offer) -> Tensor:
        """The slot of each row; stored rows that leave make room for the others."""
        labels = offered_labels(offer, offer.filled, label=self.label, policy=self.name)
        if offer.filled:
            labels = torch.cat([offer.stored[self.label], labels.to(offer.stored[self.label])])
        leaving = self._leaving(offer, labels.cpu())
        staying = torch.ones(len(labels), dtype=torch.bool, device="cpu")
        staying[leaving] = False
        free = torch.arange(offer.filled, min(len(labels), offer.capacity), device="cpu")
        slots = torch.full((offer.count,), -1, device="cpu")
        slots[staying[offer.filled :]] = torch.cat([free, leaving[leaving < offer.filled]])
        return slots

    def _leaving(self, offer: Offer, labels: Tensor) -> Tensor:
        """Which of the stored and offered rows, numbered in this order, must go."""
        excess = len(labels) - offer.capacity
        if excess <= 0:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        judge = offer.insight.judge
        if judge is None:
            raise ValueError(
                f"{self.name} admission has nobody to judge examples: offer them with "
                "memory.add(Insight(judge=...), ...), or use a host that does (puridiver)"
            )
        losers = losing_classes(labels, offer.uniforms[:excess])
        losing = torch.tensor(sorted(set(losers)), device="cpu")
        candidates = torch.isin(labels, losing).nonzero().squeeze(1)
        judgement = judge(_gathered(offer, candidates))
        return candidates[evictions(judgement, labels[candidates], losers)]

    def state_dict(self) -> State:
        """The label's name."""
        return {"label": self.label}

    def load_state_dict(self, state: State) -> None:
        """Check that the saved policy had the same label field."""
        check_policy(state, (), label=self.label, policy=self.name)


def _gathered(offer: Offer, candidates: Tensor) -> dict[str, Tensor]:
    """The rows of stored and offered candidates, numbered in this order, where the memory lives."""
    slots = candidates[candidates < offer.filled]
    rows = candidates[candidates >= offer.filled] - offer.filled
    gathered = {}
    for name, values in offer.fields.items():
        chosen = values.index_select(0, rows.to(values.device))
        if offer.filled:
            stored = offer.stored[name]
            kept = stored.index_select(0, slots.to(stored.device))
            chosen = torch.cat([kept, chosen.to(stored.device)])
        gathered[name] = chosen
    return gathered


def losing_classes(labels: Tensor, uniforms: Tensor) -> list[int]:
    """The class that loses an example, one per uniform number: the largest, ties by that number."""
    sizes = dict(sorted(Counter(labels.tolist()).items()))
    losers: list[int] = []
    for uniform in uniforms.tolist():
        most = max(sizes.values())
        largest = [label for label, size in sizes.items() if size == most]
        losers.append(largest[int(uniform * len(largest))])
        sizes[losers[-1]] -= 1
    return losers


def evictions(judgement: Judgement, labels: Tensor, losers: list[int]) -> Tensor:
    """Which candidates `[n]` leave, one per entry of `losers`, in that order."""
    groups: dict[int, _Group] = {}
    leaving = []
    for label in losers:
        if label not in groups:
            members = (labels == label).nonzero().squeeze(1)
            groups[label] = _Group(judgement, members, label)
        leaving.append(groups[label].evict())
    return torch.tensor(leaving, dtype=torch.int64, device="cpu")


class _Group:
    """The candidates of one class that have not left yet."""

    def __init__(self, judgement: Judgement, members: Tensor, label: int) -> None:
        head = judgement.head.detach().cpu()
        # Dimensions in which the class has more weight than classes have on average.
        relevant = head[label] > head.mean(dim=0)
        features = judgement.features.cpu()[members][:, relevant].double()
        units = torch.nn.functional.normalize(features, dim=1)
        self._members = members
        self._losses = judgement.losses.cpu()[members].double()
        self._cosines = units @ units.T
        self._diversity = judgement.diversity

    def evict(self) -> int:
        # The mean includes an example's cosine with itself, 1 for all: the z-score is blind to it.
        similarities = self._cosines.mean(dim=1)
        scores = (1 - self._diversity) * _standardized(self._losses)
        scores += self._diversity * _standardized(similarities)
        worst = int(scores.argmax())
        leaving = int(self._members[worst])
        rest = torch.arange(len(scores), device=scores.device) != worst
        self._members, self._losses = self._members[rest], self._losses[rest]
        self._cosines = self._cosines[rest][:, rest]
        return leaving


def _standardized(values: Tensor) -> Tensor:
    """Z-scores by the population's deviation; zeros where all values agree up to rounding."""
    centered = values - values.mean()
    deviation = centered.square().mean().sqrt()
    rounding = 1e-12 * (1 + float(values.abs().max()))
    return centered / deviation if deviation > rounding else torch.zeros_like(values)
