"""A callback of transformers that calls back into a run."""

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Steps(TrainerCallback):
    """Tells when training begins, and after each update which one it was and how long it took.

    Args:
        begin: Called once the optimizer exists.
        step: Called with the update's number, from 0, and its seconds.
    """

    def __init__(self, begin: Callable[[], None], step: Callable[[int, float], None]) -> None:
        self._begin = begin
        self._step = step
        self._since = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before the first update."""
        self._begin()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before each update."""
        self._since = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After each."""
        self._step(state.global_step - 1, time.perf_counter() - self._since)
