"""ER-ACE: the stream may not push down classes that are absent from its batch.

The stream's cross-entropy sees a part of the columns only; the replayed batch sees all. The cosine
head that goes with it is part of the network, not of the host.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.er import ExperienceOptions, ExperienceReplay
from sphere_replay.hosts.host import HostParts
from sphere_replay.hosts.options import HostOptions, rule
from sphere_replay.storage.trees import State

MASKED = -1e9


class MaskRule(StrEnum):
    """Which columns the stream loss keeps, beside those of classes in the batch."""

    PRESENT_AND_NEWEST = "present_and_newest"
    """The newest class seen so far and everything after it (the authors')."""
    PRESENT_ONLY = "present_only"
    """None."""
    PRESENT_AND_UNSEEN = "present_and_unseen"
    """Those no batch has shown yet."""

    def columns(self, labels: Tensor, newest: int, num_classes: int) -> Tensor:
        """Which columns are kept, bool `[num_classes]`, of a batch with these labels."""
        first = {self.PRESENT_AND_NEWEST: newest, self.PRESENT_AND_UNSEEN: newest + 1}
        columns = torch.arange(num_classes, device=labels.device) >= first.get(self, num_classes)
        columns[labels] = True
        return columns


@dataclass(frozen=True, kw_only=True)
class AsymmetricOptions(ExperienceOptions):
    """Constants of ER-ACE."""

    mask_rule: MaskRule = rule(MaskRule.PRESENT_AND_NEWEST)  # noqa: RUF009  # declares a field
    """Which columns the stream loss keeps."""


class AsymmetricReplay(ExperienceReplay):
    """ER with the asymmetric stream loss. Class ids grow with their first appearance."""

    OPTIONS: ClassVar[type[HostOptions]] = AsymmetricOptions
    options: AsymmetricOptions

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        self._newest = -1

    @classmethod
    def constants(cls) -> dict[str, Any]:
        """ER's, and the logit of a masked column."""
        return super().constants() | {"masked": MASKED}

    def stream_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over the columns that the mask rule keeps."""
        self._newest = max(self._newest, int(labels.max()))
        return F.cross_entropy(self._masked(logits, labels), labels)

    def _masked(self, logits: Tensor, labels: Tensor) -> Tensor:
        kept = self.options.mask_rule.columns(labels, self._newest, logits.shape[1])
        return logits.masked_fill(~kept, MASKED)

    def state_dict(self) -> State:
        """ER's state and the newest class."""
        return super().state_dict() | {"newest": self._newest}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._newest = state["newest"]
