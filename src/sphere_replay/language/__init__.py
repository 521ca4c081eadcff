"""Replay for language models: tokenized examples of any length, scored and replayed.

Needs torch alone; models are those of transformers, bare or wrapped by PEFT, and others like them.
"""

from sphere_replay.language.batching import padding_waste, token_batches
from sphere_replay.language.examples import Examples, TokenExamples
from sphere_replay.language.forward import (
    check_model,
    features_and_losses,
    is_encoder_decoder,
    longest_input,
)
from sphere_replay.language.memory import TokenMemory
from sphere_replay.language.ranks import Ranks
from sphere_replay.language.replay import LanguageReplay, Replayed
from sphere_replay.language.rows import (
    Row,
    check_length,
    class_numbers,
    pad_rows,
    row_length,
    rows_of,
    target_count,
)
from sphere_replay.language.settings import LanguageReplaySettings

__all__ = [
    "Examples",
    "LanguageReplay",
    "LanguageReplaySettings",
    "Ranks",
    "Replayed",
    "Row",
    "TokenExamples",
    "TokenMemory",
    "check_length",
    "check_model",
    "class_numbers",
    "features_and_losses",
    "is_encoder_decoder",
    "longest_input",
    "pad_rows",
    "padding_waste",
    "row_length",
    "rows_of",
    "target_count",
    "token_batches",
]
