"""The paper's setting of instruction tuning, two that fit a small machine, and what differs."""

from typing import Any

from sphere_replay.config import one_of
from sphere_replay.instruct.config import InstructConfig

Settings = dict[str, Any]

PRESETS: dict[str, Settings] = {
    "instruct-t5-large": {"model": "google-t5/t5-large", "corpus": "classification"},
    # The learning rate and the batch were chosen by ER's accuracy on development examples.
    "instruct-smollm2": {
        "model": "smollm2",
        "corpus": "classification",
        "texts": 160,
        "cap": 96,
        "tests_per_task": 60,
        "tail": 3,
        "instructions": False,
        "max_source": 40,
        "answer_tokens": 1,
        "trained_blocks": 2,
        "window": 16,
        "rank": 0,
        "lr": 5e-4,
        "batch": 4,
        "capacity": 48,
        "pool": None,
    },
    "instruct-tiny": {
        "model": "tiny",
        "corpus": "generated",
        "rank": 0,
        "lr": 3e-3,
        "beta2": 0.99,
        "cap": 640,
        "tests_per_task": 100,
        "max_source": 64,
        "capacity": 64,
        "warm_up": 600,
    },
}
"""Values by preset; whatever is not here is the paper's, and the default of `InstructConfig`."""

ON_CORPUS: dict[tuple[str, str], Settings] = {
    # The learning rate was chosen by ER's new-task accuracy on development examples.
    ("instruct-tiny", "classification"): {
        "lr": 2e-3,
        "cap": 1000,
        "capacity": 300,
        "warm_up": 4000,
    },
}
"""Values of a preset on a corpus that is not its own."""

_OPEN = "left open by the paper"
NOTES: Settings = {
    "lora_alpha": f"{_OPEN}; O-LoRA's",
    "lora_dropout": f"{_OPEN}; O-LoRA's",
    "max_source": f"{_OPEN}; O-LoRA's",
    "beta2": f"{_OPEN}; torch's",
    "clip": f"{_OPEN}; the default of transformers",
    "weight_decay": _OPEN,
    "tests_per_task": _OPEN,
}
"""Settings that the paper does not give, whatever the preset."""

_NOT_OF_THE_METHOD = ("host", "select", "order", "seed", "warm_up", "token_budget", "threads")


def resolve(
    preset: str,
    host: str = "er",
    select: str = "uniform",
    order: str | int = "0",
    seed: int = 0,
    **overrides: Any,
) -> InstructConfig:
    """The full configuration of a preset, with every default filled in."""
    one_of("preset", preset, PRESETS)
    InstructConfig.check_names(overrides)
    settings = {**PRESETS[preset], **ON_CORPUS.get((preset, overrides.get("corpus", "")), {})}
    # All at once: an order is checked against the corpus that is asked for.
    asked = {"host": host, "select": select, "order": str(order), "seed": seed}
    return InstructConfig(**settings | asked | overrides)


def names() -> list[str]:
    """Every preset."""
    return list(PRESETS)


def provenance(config: InstructConfig, setting: str) -> str:
    """Where a setting's value comes from, if not from the paper."""
    if setting in _NOT_OF_THE_METHOD:
        return ""
    paper = resolve("instruct-t5-large")
    ours, theirs = getattr(config, setting), getattr(paper, setting)
    if setting == "capacity":
        return "" if ours in (300, 3000) else "the paper's are 300 and 3000"
    if ours != theirs:
        return f"chosen here; the paper's is {theirs}" if setting not in NOTES else "chosen here"
    return str(NOTES.get(setting, ""))
