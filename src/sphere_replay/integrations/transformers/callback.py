"""Callbacks: replay's part of checkpoints and logs, and replay itself where one cannot subclass."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sphere_replay.errors import ConfigError, DataError
from sphere_replay.integrations.transformers.bookkeeping import Bookkeeping
from sphere_replay.integrations.transformers.session import (
    ReplayArguments,
    ReplayLike,
    ReplaySession,
    token_examples,
)
from sphere_replay.integrations.transformers.zero import refuse_zero
from sphere_replay.language import (
    TokenExamples,
    check_length,
    class_numbers,
    is_encoder_decoder,
    longest_input,
)
from sphere_replay.language.rows import IGNORED
from sphere_replay.numeric import spread
from sphere_replay.scoring import is_sharded

_LOOKED_AT = 256
"""Examples by which it is judged whether answers are labels: more than a task has labels."""


class ReplayBookkeeping(Bookkeeping[ReplaySession]):
    """Checks a training before it starts, and keeps its replay in checkpoints and logs."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check model and data; continue from a checkpoint if the trainer did."""
        model = kwargs["model"]
        check_sharding(args, model)
        self.session.examples.check(model)
        dataset = getattr(kwargs["train_dataloader"], "dataset", None)
        check_lengths(dataset, longest_input(model))
        check_targets(dataset, encoder_decoder=is_encoder_decoder(model))
        if self.session.asks_labels and isinstance(self.session.examples, TokenExamples):
            check_answers(kwargs["train_dataloader"], self.session.examples)
        self.session.begin()
        self.restore(args, state)


class SphereCallback(TrainerCallback):
    """Replay for trainers one cannot subclass.

        Trainer(..., callbacks=[SphereCallback(ReplayArguments(capacity=3000))])

    A hook on the model notes the stream batches as they are trained on. A callback hears of an
    update only after its gradient was clipped. So here the clipped stream gradient is what the
    virtual step follows, and the sum of it and the replay gradient is clipped again; where clipping
    is rare, or `max_grad_norm=0`, this is what the trainers of this package do.

    Args:
        replay: The settings, as `ReplayArguments`, a mapping or a YAML file, or the session of an
            earlier training to go on from.
        resume_from: Checkpoint folder, if training resumes from one outside `output_dir`.
    """

    def __init__(
        self,
        replay: ReplayLike = None,
        *,
        resume_from: str | None = None,
    ) -> None:
        session = None
        if isinstance(replay, ReplaySession):
            session, replay = replay, replay.arguments
        arguments = ReplayArguments.of(replay)
        if arguments.task_field is not None:
            raise ValueError(
                f"task_field={arguments.task_field!r} needs a trainer of this package: a callback "
                "sees only what the model is given; leave it out, tasks are then counted by train()"
            )
        self.arguments = arguments
        self.session = session
        self._resume_from = resume_from
        self._books: ReplayBookkeeping | None = None
        self._hook: RemovableHandle | None = None
        self._replaying = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch the model's batches from here on."""
        check_trainer(args)
        refuse_zero(
            "SphereCallback",
            "whose step is made before a callback hears of it: use a trainer of this package",
        )
        model: nn.Module = kwargs["model"]
        if self.session is None:
            pad = getattr(kwargs["processing_class"], "pad_token_id", None)
            self.session = ReplaySession(self.arguments, model, token_examples(model, pad))
        self._books = ReplayBookkeeping(self.session)
        self._books.resume_from = self._resume_from
        self._books.on_train_begin(args, state, control, **kwargs)
        self._stop_watching()
        self._hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Replay on top of the clipped stream gradient, and clip the sum."""
        assert self.session is not None
        model: nn.Module = kwargs["model"]
        clips = bool(args.max_grad_norm and args.max_grad_norm > 0)
        scaler = getattr(kwargs["optimizer"], "scaler", None)
        self._replaying = True
        try:
            # Clipping has already taken the scaler's factor out.
            self.session.step(model, scaler, unscaled=clips)
        finally:
            self._replaying = False
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put replay into the checkpoint."""
        assert self._books is not None
        self._books.on_save(args, state, control)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add what replay did to a log of training."""
        if self._books is not None:
            self._books.on_log(args, state, control, **kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the model without a hook."""
        self._stop_watching()

    def _note(self, module: nn.Module, arguments: Any, inputs: Mapping[str, object]) -> None:
        if module.training and torch.is_grad_enabled() and not self._replaying:
            assert self.session is not None
            if "labels" not in inputs:
                raise ValueError(
                    f"the model was called with {', '.join(inputs) or 'no named inputs'}, without "
                    "labels: SphereCallback cannot see the targets (label smoothing takes them "
                    "out); use a trainer of this package"
                )
            self.session.keep(inputs)

    def _stop_watching(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def check_trainer(args: TrainingArguments) -> None:
    """Refuse what replay cannot work with."""
    for option in ("packing", "padding_free"):
        if getattr(args, option, False):
            raise ValueError(
                f"{option}=True joins examples into one sequence, but replay stores and weighs "
                f"each by itself: set {option}=False"
            )


def check_sharding(args: TrainingArguments, model: nn.Module) -> None:
    """A model that is spread over processes is so by FSDP2, over all of them."""
    names = {type(module).__name__ for module in model.modules()}
    if "FullyShardedDataParallel" in names:
        raise ValueError(
            "FSDP1 flattens parameters, so that replay cannot tell them apart: set "
            "fsdp_config={'version': 2} (fsdp_version: 2 in the configuration of accelerate)"
        )
    if not is_sharded(model):
        return
    if args.fp16:
        raise ValueError(
            "fp16=True scales gradients, and whether they overflowed is not known on every process "
            "of a sharded model: use bf16=True, or neither"
        )
    meshes = {getattr(parameter, "device_mesh", None) for parameter in model.parameters()}
    if {mesh.size() for mesh in meshes if mesh is not None} != {args.world_size}:
        raise ValueError(
            "the model is sharded over some of the processes only, as in tensor parallelism: "
            "replay needs all processes to train on examples of their own"
        )


def check_lengths(dataset: Any, longest: int | None) -> None:
    """No example of a tokenized training set is longer than the model's limit."""
    if longest is not None:
        check_length(max(map(len, column_of(dataset, "input_ids")), default=0), longest)


def check_targets(dataset: Any, *, encoder_decoder: bool) -> None:
    """Some example of a tokenized training set has a label that counts."""
    rows = column_of(dataset, "labels")
    given = 0 if encoder_decoder else 1  # a decoder is given its first token
    if rows and not any(label != IGNORED for row in rows for label in row[given:]):
        raise DataError(
            f"all labels of the training set are {IGNORED}: there is nothing to learn, remember or "
            "replay; were the answers cut off by truncation, or masked?"
        )


def check_answers(loader: Any, examples: TokenExamples) -> None:
    """Answers of the training set are labels, on which neighbours can vote.

    Some of it is collated, because masks of prompts may come from the collator; no random number is
    used up. What comes as a stream is judged by the first memories.
    """
    dataset: Any = getattr(loader, "dataset", None)
    collate = getattr(loader, "collate_fn", None)
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if collate is None or not sized or isinstance(dataset, IterableDataset):
        return
    places = spread(len(dataset), _LOOKED_AT).tolist()
    with torch.random.fork_rng(devices=[]):
        rows = examples.rows(collate([dataset[place] for place in places])) if places else []
    rows = [row for row in rows if examples.counts(row)]
    if class_numbers(rows, [0] * len(rows)) is None:
        raise ConfigError(
            "the selection lets neighbours vote on answers, and those of the training set are free "
            f"text: most of the {len(rows)} that were looked at occur once. Take select='sphere', "
            "or a recipe with agreement=0"
        )


def column_of(dataset: Any, name: str) -> Sequence[Any]:
    """A column of a tokenized training set; empty if it is tokenized on the fly."""
    if name in (getattr(dataset, "column_names", None) or ()) and hasattr(dataset, "__len__"):
        column: Sequence[Any] = dataset[name]
        return column
    if isinstance(dataset, list):
        return [example[name] for example in dataset if name in example]
    return ()
