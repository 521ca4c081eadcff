"""ER-ACE: the stream may not push down classes that are absent from its batch.

The stream's cross-entropy sees a part of the columns only; the replayed batch sees all. The cosine
head that goes with it is part of the network, not of the host.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.er import ExperienceReplay
from sphere_replay.hosts.host import HostParts, State

MASKED = -1e9


def present_and_newest(labels: Tensor, newest: int, num_classes: int) -> Tensor:
    """Classes of the batch, the newest class seen so far and everything after it (the authors')."""
    columns = torch.arange(num_classes, device=labels.device) >= newest
    columns[labels] = True
    return columns


def present_only(labels: Tensor, newest: int, num_classes: int) -> Tensor:
    """Classes of the batch alone."""
    columns = torch.zeros(num_classes, dtype=torch.bool, device=labels.device)
    columns[labels] = True
    return columns


def present_and_unseen(labels: Tensor, newest: int, num_classes: int) -> Tensor:
    """Classes of the batch and those no batch has shown yet."""
    columns = torch.arange(num_classes, device=labels.device) > newest
    columns[labels] = True
    return columns


MaskRule = Callable[[Tensor, int, int], Tensor]
MASK_RULES: tuple[MaskRule, ...] = (present_and_newest, present_only, present_and_unseen)
"""Which columns the stream loss keeps; the host's option `mask_rule` is an index into these."""


class AsymmetricReplay(ExperienceReplay):
    """ER with the asymmetric stream loss. Class ids grow with their first appearance.

    Options: `strength` (λ, 1) and `mask_rule` (0, the authors').
    """

    OPTIONS: ClassVar[Mapping[str, float]] = {"strength": 1.0, "joint_batch": 0, "mask_rule": 0}

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        self._rule = MASK_RULES[int(self.options["mask_rule"])]
        self._newest = -1

    @classmethod
    def check_options(cls, options: Mapping[str, float]) -> None:
        """Refuse unknown constants, and a joint batch, which knows no asymmetry."""
        super().check_options(options)
        if options.get("joint_batch", 0):
            raise ValueError("joint_batch has one loss for both batches: use it with er only")
        if options.get("mask_rule", 0) not in range(len(MASK_RULES)):
            raise ValueError(f"mask_rule must be one of 0 to {len(MASK_RULES) - 1}")

    def stream_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over the columns that the mask rule keeps."""
        self._newest = max(self._newest, int(labels.max()))
        kept = self._rule(labels, self._newest, logits.shape[1])
        return F.cross_entropy(logits.masked_fill(~kept, MASKED), labels)

    def state_dict(self) -> State:
        """ER's state and the newest class."""
        return super().state_dict() | {"newest": self._newest}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._newest = state["newest"]
