"""The paper's setting of code generation, two that fit a small machine, and what differs."""

from typing import Any

from sphere_replay.coding.config import CodingConfig
from sphere_replay.config import one_of

Settings = dict[str, Any]

PRESETS: dict[str, Settings] = {
    "coding-qwen": {
        "model": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "problems": "kodcode",
        "sampler": "vllm",
        "device": "cuda",
        "workers": 8,
    },
    "coding-smollm2": {
        "model": "smollm2",
        "problems": "small",
        "stages": "mbpp,humaneval,Prefill",
        "train": 12,
        "evaluation": 8,
        "passes": 1,
        "batch": 4,
        "generations": 4,
        "max_prompt": 256,
        "max_completion": 96,
        "capacity": 36,
        "pool": 4,
        "replay_batch": 4,
        "micro_batch": 4,
        "threads": 2,
    },
    "coding-micro": {
        "model": "micro",
        "problems": "micro",
        "rank": 0,
        "lr": 6e-4,
        "virtual_lr": 6e-4,
        "train": 40,
        "evaluation": 40,
        "max_prompt": 64,
        "max_completion": 32,
        "capacity": 160,
        "pool": 16,
        "wall": 5.0,
        "warm_up": 300,
        "micro_batch": 64,
    },
}
"""Values by preset; whatever is not here is the paper's, and the default of `CodingConfig`."""

_OPEN = "left open by the paper"
NOTES: Settings = {
    "temperature": f"{_OPEN}; the default of TRL",
    "clip": f"{_OPEN}; the default of TRL",
    "weight_decay": _OPEN,
    "epsilon": f"{_OPEN}; the default of TRL",
    "favor": f"{_OPEN}: it favors mixed groups without saying how much",
    "wall": f"{_OPEN}: it limits programs without saying how much",
}
"""Settings that the paper does not give, whatever the preset."""

_NOT_OF_THE_METHOD = (
    *("host", "select", "stages", "seed", "evaluate_on", "workers", "unsafe", "warm_up"),
    *("micro_batch", "device", "threads"),
)


def resolve(
    preset: str, host: str = "er", select: str = "uniform", seed: int = 0, **overrides: Any
) -> CodingConfig:
    """The full configuration of a preset, with every default filled in."""
    one_of("preset", preset, PRESETS)
    CodingConfig.check_names(overrides)
    return CodingConfig(
        **PRESETS[preset] | {"host": host, "select": select, "seed": seed} | overrides
    )


def names() -> list[str]:
    """Every preset."""
    return list(PRESETS)


def provenance(config: CodingConfig, setting: str) -> str:
    """Where a setting's value comes from, if not from the paper."""
    if setting in _NOT_OF_THE_METHOD:
        return ""
    ours, theirs = getattr(config, setting), getattr(resolve("coding-qwen"), setting)
    if ours != theirs:
        return f"chosen here; the paper's is {theirs}" if setting not in NOTES else "chosen here"
    return str(NOTES.get(setting, ""))
