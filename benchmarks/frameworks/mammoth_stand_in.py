"""A stand-in for the parts of Mammoth that a model file touches; written here, not Mammoth's code.

Mammoth is a repository, not a package, and its sources are not ours to ship. Where no checkout is
at hand, this imitates what `er_sphere.py` is written against: `ContinualModel`, rehearsal options,
`apply_transform`, a backbone that knows `returnt`, a dataset, and the order of calls of a training,
which makes a new optimizer for each task. It says nothing about Mammoth's own numbers.
"""

import importlib.util
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sphere_replay.integrations.mammoth import MODEL_FILE


class Backbone(nn.Module):
    """A body and a `classifier`."""

    def __init__(self, body: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.body, self.classifier = body, classifier

    def forward(self, x: Tensor, returnt: str = "out") -> Tensor:
        """Logits, or features."""
        features: Tensor = self.body(x)
        return features if returnt == "features" else self.classifier(features)


class Dataset:
    """What a model asks of a dataset."""

    def __init__(self, normalize: Callable[[Tensor], Tensor] | None = None) -> None:
        self.normalize = normalize

    def get_normalization_transform(self) -> Callable[[Tensor], Tensor] | None:
        """None where images are taken as they are."""
        return self.normalize


class ContinualModel(nn.Module):
    """The base class of models."""

    def __init__(
        self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None
    ) -> None:
        super().__init__()
        self.net, self.loss, self.args = backbone, loss, args
        self.transform, self.dataset = transform, dataset
        self.device = torch.device("cpu")
        self.opt = self.get_optimizer()

    def get_optimizer(self) -> torch.optim.Optimizer:
        """A fresh one."""
        momentum = getattr(self.args, "optim_mom", 0.0)
        return torch.optim.SGD(self.net.parameters(), lr=self.args.lr, momentum=momentum)

    def begin_task(self, dataset: Any) -> None:
        """For models to override."""

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: Any) -> float:
        """For models to override."""
        raise NotImplementedError


def apply_transform(x: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """One image after the other."""
    return torch.stack([transform(image) for image in x.cpu()]).to(x.device)


def add_rehearsal_args(parser: ArgumentParser) -> None:
    """Size and batch of the memory."""
    parser.add_argument("--buffer_size", type=int, required=True)
    parser.add_argument("--minibatch_size", type=int)


class JointEr(ContinualModel):
    """The usual ER: one forward over stream and memory together, in a reservoir of plain lists."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.rows: list[tuple[Tensor, Tensor]] = []
        self.seen = 0
        self.generator = torch.Generator().manual_seed(self.args.seed)

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> float:
        """One update."""
        self.opt.zero_grad()
        x, y = inputs, labels
        if self.rows:
            chosen = torch.randperm(len(self.rows), generator=self.generator)
            drawn = [self.rows[i] for i in chosen[: self.args.minibatch_size].tolist()]
            x = torch.cat([x, torch.stack([image for image, _ in drawn])])
            y = torch.cat([y, torch.stack([label for _, label in drawn])])
        loss = self.loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        for row in zip(not_aug_inputs, labels, strict=True):
            slot = self.seen
            if slot >= self.args.buffer_size:
                slot = int(torch.randint(self.seen + 1, (), generator=self.generator))
            if slot == len(self.rows) < self.args.buffer_size:
                self.rows.append(row)
            elif slot < self.args.buffer_size:
                self.rows[slot] = row
            self.seen += 1
        return float(loss.detach())


def train(
    model: Any,
    tasks: Iterable[Iterable[tuple[Tensor, Tensor]]],
    epochs: int = 1,
    updated: Callable[[], None] = lambda: None,
) -> None:
    """The order of calls of a training: a new optimizer for each task, then batch after batch."""
    for task in tasks:
        batches = list(task)
        model.net.train()
        model.begin_task(model.dataset)
        model.opt = model.get_optimizer()
        for epoch in range(epochs):
            for x, y in batches:
                plain = x if model.dataset.normalize is None else model.dataset.normalize(x)
                model.observe(plain, y, x, epoch=epoch)
                updated()


@contextmanager
def imported() -> Iterator[Any]:
    """The class in `er_sphere.py`, its imports answered by this module."""
    answers: dict[str, dict[str, Any]] = {
        "models": {},
        "models.utils": {},
        "models.utils.continual_model": {"ContinualModel": ContinualModel},
        "utils": {},
        "utils.args": {"add_rehearsal_args": add_rehearsal_args},
        "utils.augmentations": {"apply_transform": apply_transform},
    }
    before = {name: sys.modules.get(name) for name in answers}
    for name, content in answers.items():
        module = ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    try:
        spec = importlib.util.spec_from_file_location("er_sphere", MODEL_FILE)
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        yield found.ErSphere
    finally:
        for name, earlier in before.items():
            if earlier is None:
                del sys.modules[name]
            else:
                sys.modules[name] = earlier
