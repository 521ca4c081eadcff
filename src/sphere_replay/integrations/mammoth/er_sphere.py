"""ER whose replayed examples are chosen by SPHERE: a model for `models/` of a Mammoth checkout.

    python main.py --model er_sphere --dataset seq-mnist --buffer_size 200 --lr 0.03

Like Mammoth's `er`: reservoir, and the mean loss over stream and replayed examples together. Unlike
it, stream and replayed examples pass the network one after the other (batch norm sees two batches),
and an example is offered to the memory in the first epoch only.
"""

from argparse import ArgumentParser
from types import SimpleNamespace
from typing import Any

import torch
from models.utils.continual_model import ContinualModel
from torch import Tensor
from utils.args import add_rehearsal_args
from utils.augmentations import apply_transform

from sphere_replay.integrations.embedded import EmbeddedReplay
from sphere_replay.replay import SELECTIONS


class ErSphere(ContinualModel):  # type: ignore[misc]  # Mammoth is not here when this is checked
    """Experience replay by a selection of sphere-replay."""

    NAME = "er_sphere"
    COMPATIBILITY = ("class-il", "domain-il", "task-il", "general-continual")

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        """Mammoth's rehearsal options, and those of replay."""
        add_rehearsal_args(parser)
        group = parser.add_argument_group("SPHERE", "How replayed examples are chosen.")
        group.add_argument("--select", default="sphere-calibrated", choices=list(SELECTIONS))
        group.add_argument("--rescore_every", type=int, default=4, help="Replays per rescoring.")
        group.add_argument("--pool", type=int, help="Candidates scored; the whole buffer if left.")
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        if getattr(args, "savecheck", None) and (
            getattr(args, "save_checkpoint_mode", "old_pickle") != "safe"
        ):
            raise ValueError("er_sphere is saved without pickle: --save_checkpoint_mode safe")
        self.embedded = EmbeddedReplay(
            args.buffer_size,
            batch=args.minibatch_size,
            seed=0 if args.seed is None else args.seed,
            joint_batch=True,
            select=args.select,
            every=args.rescore_every,
            pool=args.pool,
            features=self._features_and_outputs,
            prepare=self._normalized,
        )
        self.buffer = SimpleNamespace(serialize=self.embedded.state_dict)  # for Mammoth's savecheck
        self._checked = False

    def load_buffer(self, buffer: Any) -> None:
        """Continue with the memory of a checkpoint."""
        self.embedded.load_state_dict(buffer)

    def begin_task(self, dataset: Any) -> None:
        """Rescore at the first replay of each task."""
        self.embedded.start_task()

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> float:
        """One update, on the stream's batch and on replayed examples."""
        if not self._checked:
            self._check(inputs, not_aug_inputs)
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.embedded.follow(self.net, self.opt)  # Mammoth may make a new optimizer for each task
        self.embedded.add_gradient(
            lambda x, y: self.loss(self.net(x), y), len(labels), view=self._augmented
        )
        self.opt.step()
        if not epoch:
            self.embedded.remember(not_aug_inputs, labels)
        return float(loss.detach())

    def _features_and_outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.net(x, returnt="features")
        return features, self.net.classifier(features)

    def _normalized(self, x: Tensor) -> Tensor:
        """Stored images as the network takes them, without augmentation."""
        transform, x = self.dataset.get_normalization_transform(), x.to(self.device)
        return x if transform is None else transform(x)

    def _augmented(self, x: Tensor) -> Tensor:
        """Stored images as training takes them."""
        x = x if self.transform is None else apply_transform(x, self.transform)
        return x.to(self.device)

    @torch.no_grad()
    def _check(self, inputs: Tensor, not_aug_inputs: Tensor) -> None:
        """The network and the dataset are such as scoring takes them for."""
        plain = self._normalized(not_aug_inputs)
        if plain.shape != inputs.shape:
            raise ValueError(
                f"stored images are {list(plain.shape[1:])}, but the network takes "
                f"{list(inputs.shape[1:])}: datasets whose transform resizes are not supported"
            )
        training = self.net.training
        self.net.eval()
        _, outputs = self._features_and_outputs(inputs)
        same = torch.allclose(outputs, self.net(inputs), rtol=1e-3, atol=1e-4)
        self.net.train(training)
        if not same:
            raise ValueError(
                f"{type(self.net).__name__} is more than a classifier on its features: change "
                "_features_and_outputs of er_sphere.py to what gives both"
            )
        self._checked = True
