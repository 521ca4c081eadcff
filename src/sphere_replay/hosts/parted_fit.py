"""A fit to the memory at a task's end that trusts labels by degrees: PuriDivER's second half.

The network goes on from where the stream has left it, on the memory alone: a few epochs of plain
cross-entropy, then three parts (see `partition`) with three losses, each counted by the size of its
batch:

    clean         CE(f(x), y), CutMix
    relabelled    CE(f(strong x), t y + (1 - t) softmax f(x)), t the probability that y is right
    consistent    MSE(softmax f(x), softmax f(strong x))

An epoch is one step of the run, so that a run can stop and go on in the middle of a fit.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.appraisal import Appraisal, appraise
from sphere_replay.hosts.cutmix import Mixed, cutmix
from sphere_replay.hosts.host import Batch, Host, HostParts, State, Step
from sphere_replay.hosts.mixture import NoSplitError
from sphere_replay.hosts.partition import Partition, partition
from sphere_replay.hosts.trust_losses import consistency, mixed_cross_entropy, relabel
from sphere_replay.hosts.warm_restarts import warm_restart_lr
from sphere_replay.scoring.restoring import modules_restored

_log = logging.getLogger(__name__)


@dataclass
class Fit:
    """A fit under way: all that its next epoch depends on beside the host."""

    optimizer: torch.optim.SGD
    running_scale: float | None = None
    plain_epochs: dict[str, int] = field(default_factory=dict)
    """Epochs that had to do without parts, by reason."""


class PartedFit(Host):
    """A host that fits its memory after a task. How it learns from the stream is for subclasses.

    Options: `cutmix` (probability, 0.5), `epochs` (255), `warm_up` (10), `fit_batch` (16),
    `high_lr` (0.03), `low_lr` (0.0003), `momentum` (0.9), `weight_decay` (1e-4), `fit_last_only`
    (0), `strong_views` (1), `relabel_confident` (0: relabel the incorrect part, 1: the ambiguous
    one), `logit_consistency` (0: between probabilities), `select_fit` (1: the selection draws the
    clean memories).
    """

    OPTIONS: ClassVar[Mapping[str, float]] = {
        "cutmix": 0.5,
        "epochs": 255,
        "warm_up": 10,
        "fit_batch": 16,
        "high_lr": 0.03,
        "low_lr": 0.0003,
        "momentum": 0.9,
        "weight_decay": 0.0001,
        "fit_last_only": 0,
        "strong_views": 1,
        "relabel_confident": 0,
        "logit_consistency": 0,
        "select_fit": 1,
    }
    SWITCHES: ClassVar[tuple[str, ...]] = (
        *("fit_last_only", "strong_views", "relabel_confident", "logit_consistency"),
        "select_fit",
    )
    """Options that are 0 or 1."""

    @classmethod
    def check_options(cls, options: Mapping[str, float]) -> None:
        """Refuse unknown constants, and values that make no sense."""
        super().check_options(options)
        for name, value in options.items():
            if name in cls.SWITCHES and value not in (0, 1):
                raise ValueError(f"option {name} is a switch, 0 or 1, got {value}")
        if options.get("cutmix", 0) > 1:
            raise ValueError(f"option cutmix is a probability, got {options['cutmix']}")
        for name, least in (("epochs", 1), ("fit_batch", 2)):
            if options.get(name, least) < least:
                raise ValueError(f"option {name} must be at least {least}, got {options[name]}")

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        scored = self.replay.selection.needs_scores
        self._selects_fit = scored and bool(self.options["select_fit"])
        self._met = torch.zeros(parts.num_classes, dtype=torch.bool)
        self._fit: Fit | None = None

    def fit_steps(self, *, last: bool) -> int:
        """One step for each epoch, after every task or only after the last one."""
        return int(self.options["epochs"]) if last or not self.options["fit_last_only"] else 0

    def fit(self, step: int) -> Step:
        """An epoch on the memory; the network goes on from where the stream has left it."""
        if step == 0:
            self._fit = Fit(self._fit_optimizer())
            self._report_gaps()
        if self._fit is None:
            raise ValueError(f"a fit begins with step 0, not with {step}")
        rate = warm_restart_lr(step + 1, self.options["high_lr"], self.options["low_lr"])
        self._fit.optimizer.param_groups[0]["lr"] = rate
        self.network.train()
        if len(self.memory) < 2:
            return Step(0.0)
        parts = self._parts(self._fit) if step >= self.options["warm_up"] else None
        if parts is None:
            return self._plain_epoch(self._fit)
        return self._parted_epoch(self._fit, parts)

    def end_task(self, *, last: bool) -> None:
        """Say why epochs of the fit were plain; a warning, if all after warm-up were."""
        if self._fit is not None and self._fit.plain_epochs:
            counts = self._fit.plain_epochs
            plain, parted = sum(counts.values()), self.options["epochs"] - self.options["warm_up"]
            _log.log(
                logging.WARNING if plain >= parted else logging.INFO,
                "%d of %d epochs of the memory fit after warm-up were plain cross-entropy: %s",
                plain,
                parted,
                ", ".join(f"{reason} ({count})" for reason, count in counts.items()),
            )
        self._fit = None

    def remember(self, batch: Batch, **fields: Tensor) -> None:
        """Offer a batch to the memory, and note its classes."""
        super().remember(batch, **fields)
        self._met[batch.labels.cpu()] = True

    def _parts(self, fit: Fit) -> Partition | None:
        """The memory as the network sees it now; None, with a note, if it has no three parts."""
        seen = self._appraise(self.memory["x"], self.memory["y"])
        try:
            return partition(seen.losses, seen.logits)
        except NoSplitError as error:
            fit.plain_epochs[str(error)] = fit.plain_epochs.get(str(error), 0) + 1
            return None

    def _plain_epoch(self, fit: Fit) -> Step:
        losses = []
        for rows in self._batches(self._shuffled(torch.arange(len(self.memory)))):
            chosen = self.memory.take(rows)
            loss = self._cross_entropy(self._mix(self._view(chosen["x"]), chosen["y"]))
            losses.append(self._update(fit, loss, len(rows)))
        return Step(sum(losses) / len(losses))

    def _parted_epoch(self, fit: Fit, parts: Partition) -> Step:
        relabelled, consistent = parts.incorrect, parts.ambiguous
        if self.options["relabel_confident"]:
            relabelled, consistent = consistent, relabelled
        clean = self._batches(self._clean_order(fit, parts.clean))
        others = (
            self._cycled(part, len(clean), len(parts.clean)) for part in (relabelled, consistent)
        )
        losses = []
        for rows, doubted, unlabelled in zip(clean, *others, strict=True):
            loss = self._parted_loss(rows, doubted, unlabelled, parts.trust[doubted])
            views = len(rows) + 2 * (len(doubted) + len(unlabelled))
            losses.append(self._update(fit, loss, views))
        return Step(sum(losses) / len(losses))

    def _parted_loss(
        self, clean: Tensor, relabelled: Tensor, consistent: Tensor, trust: Tensor
    ) -> Tensor:
        """Mean over the examples of the three batches; all views share one forward."""
        trusted, doubted = self.memory.take(clean), self.memory.take(relabelled)
        unlabelled = self.memory.take(consistent)["x"]
        mixed = self._mix(self._view(trusted["x"]), trusted["y"])
        doubtful = torch.cat([doubted["x"], unlabelled])
        views = [mixed.images, self._view(doubtful), self._strong_view(doubtful)]
        sizes = [len(clean), *[len(relabelled), len(consistent)] * 2]
        outputs = torch.split(self._forward(torch.cat(views)), sizes)
        logits, weak, steady, strong, moved = outputs
        targets = relabel(doubted["y"], trust.to(weak), weak.detach().softmax(dim=1))
        on_logits = bool(self.options["logit_consistency"])
        total = len(clean) * mixed_cross_entropy(logits, mixed)
        total = total + len(relabelled) * F.cross_entropy(strong, targets)
        total = total + len(consistent) * consistency(steady, moved, on_logits=on_logits)
        return total / (len(clean) + len(relabelled) + len(consistent))

    def _update(self, fit: Fit, loss: Tensor, examples: int) -> float:
        fit.optimizer.zero_grad()
        self.backward(loss, examples)
        fit.optimizer.step()
        return loss.item()

    def _clean_order(self, fit: Fit, clean: Tensor) -> Tensor:
        """Clean memories for one epoch: each once, or as many draws by the selection's weights."""
        if not self._selects_fit:
            return self._shuffled(clean)
        # There is no stream now: the update that may interfere is that of a clean batch.
        chosen = self.memory.take(self._shuffled(clean)[: int(self.options["fit_batch"])])
        fit.optimizer.zero_grad()
        with modules_restored(self.network):
            logits = self._forward(self.parts.views.prepare(chosen["x"]))
            self.backward(F.cross_entropy(logits, chosen["y"]), len(logits))
        weighting = self.replay.selection.weigh(
            self._score(clean), fit.running_scale, self.parts.augmentation
        )
        fit.running_scale = weighting.running_scale
        weights = weighting.weights.cpu()
        if not weights.sum() > 0:
            weights = torch.ones_like(weights)
        drawn = torch.multinomial(weights, len(clean), True, generator=self.parts.augmentation)
        return clean[drawn]

    def _cycled(self, part: Tensor, steps: int, clean: int) -> tuple[Tensor, ...]:
        """Batches of a part: as many as the clean part has, and as large in proportion."""
        size = min(len(part), max(2, len(part) * int(self.options["fit_batch"]) // clean))
        rounds = math.ceil(steps * size / len(part))
        order = torch.cat([self._shuffled(part) for _ in range(rounds)])
        return torch.split(order[: steps * size], size)

    def _batches(self, order: Tensor) -> list[Tensor]:
        batches = list(torch.split(order, int(self.options["fit_batch"])))
        if len(batches) > 1 and len(batches[-1]) == 1:
            # One example has no batch statistics.
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def _shuffled(self, slots: Tensor) -> Tensor:
        return slots[torch.randperm(len(slots), generator=self.parts.augmentation)]

    def _fit_optimizer(self) -> torch.optim.SGD:
        momentum = self.options["momentum"]
        return torch.optim.SGD(
            self.network.parameters(),
            lr=self.options["high_lr"],
            momentum=momentum,
            weight_decay=self.options["weight_decay"],
            nesterov=momentum > 0,
        )

    def _report_gaps(self) -> None:
        if len(self.memory) < 2:
            # One example has no batch statistics.
            _log.warning("nothing will be fitted: the memory holds %d examples", len(self.memory))
        stored = self.memory["y"].cpu() if len(self.memory) else torch.empty(0).long()
        absent = self._met & (stored.bincount(minlength=len(self._met)) == 0)
        if absent.any():
            names = ", ".join(str(label) for label in absent.nonzero().flatten().tolist())
            _log.warning("the memory fit cannot teach classes without a memory: %s", names)

    def _appraise(self, images: Tensor, labels: Tensor) -> Appraisal:
        self.costs.forward += len(images)
        self.costs.scored += len(images)
        return appraise(self.network, images, labels, self.parts.views.prepare)

    def _view(self, images: Tensor) -> Tensor:
        return self.parts.views.augment(images, self.parts.augmentation)

    def _strong_view(self, images: Tensor) -> Tensor:
        if not self.options["strong_views"]:
            return self._view(images)
        return self.parts.views.strengthen(images, self.parts.augmentation)

    def _mix(self, views: Tensor, labels: Tensor) -> Mixed:
        coin = torch.rand((), generator=self.parts.augmentation)
        if coin < self.options["cutmix"]:
            return cutmix(views, labels, self.parts.augmentation)
        return Mixed(views, labels, labels, 1.0)

    def _cross_entropy(self, mixed: Mixed) -> Tensor:
        return mixed_cross_entropy(self._forward(mixed.images), mixed)

    def _forward(self, views: Tensor) -> Tensor:
        self.costs.forward += len(views)
        logits: Tensor = self.network(views)
        return logits

    def state_dict(self) -> State:
        """The host's state, the classes it has met, and the fit it is in."""
        fit = self._fit and {
            "optimizer": self._fit.optimizer.state_dict(),
            "running_scale": self._fit.running_scale,
            "plain_epochs": dict(self._fit.plain_epochs),
        }
        return super().state_dict() | {"met": self._met, "fit": fit}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._met = state["met"].clone()
        self._fit = None
        if (fit := state["fit"]) is not None:
            optimizer = self._fit_optimizer()
            optimizer.load_state_dict(fit["optimizer"])
            self._fit = Fit(optimizer, fit["running_scale"], dict(fit["plain_epochs"]))
