"""The paper's settings per dataset and host, and what it leaves open.

`OPEN` names values that the paper does not state; they were chosen here (see docs/reproduction.md).
"""

from dataclasses import replace
from typing import Any

from sphere_replay.usage import unknown
from sphere_replay.vision.config import ConfigError, VisionConfig

Settings = dict[str, Any]

DATASETS: dict[str, Settings] = {
    "digits": {"capacity": 100, "batch": 10, "replay_batch": 10, "evaluate_every": 20},
    "mnist": {"capacity": 500, "batch": 64, "replay_batch": 64, "evaluate_every": 50},
    "fashion-mnist": {"capacity": 500, "batch": 64, "replay_batch": 64, "evaluate_every": 50},
    "cifar10": {"capacity": 500},
    "cifar100": {"capacity": 2000},
    "tiny-imagenet": {"capacity": 4000},
}
"""Values shared by all hosts of a dataset."""

HOSTS: dict[str, Settings] = {
    "der-pp": {"lr": 0.03},
    "gdumb": {"admission": "greedy-balanced"},
    "er-ace": {"head": "cosine"},
}
"""Values of a host on every dataset."""

HOST_ON_DATASET: dict[tuple[str, str], Settings] = {
    ("mnist", "er-ace"): {"head": "linear"},
    ("mnist", "der-pp"): {"lr": 0.1, "options": {"alpha": 0.5, "beta": 1.0}},
    **{
        (dataset, "gdumb"): {"options": {"fit_last_only": 1}}
        for dataset in ("cifar10", "cifar100", "tiny-imagenet")
    },
    ("cifar10", "der-pp"): {"options": {"alpha": 0.5, "beta": 0.5}},
    ("cifar100", "der-pp"): {"options": {"alpha": 0.3, "beta": 1.0}},
}

ALLOCATION: dict[tuple[str, str], Settings] = {
    ("cifar10", "er-ace"): {"k_s": 10, "k_t": 50, "t_frac": 1.0, "every": 4},
    ("tiny-imagenet", "er-ace"): {"k_s": 5, "k_t": 50, "t_frac": 0.25, "every": 8},
}
"""The paper's table of allocation settings, where it differs from k_s 5, k_T 25, T_frac 0.5, 4."""

MIR_POOL = {"cifar10": 96, "cifar100": 160}
DEFAULT_MIR_POOL = 96

OPEN: dict[str, set[str]] = {
    "*": {"split_by", "noise_kind", "width"},
    "mnist": {"batch", "replay_batch", "head", "pool", "options"},
    "tiny-imagenet": {"pool", "options"},
}
"""Fields whose value the paper does not give, by dataset."""

NOT_IN_THE_PAPER = ("digits", "fashion-mnist")

SCORED_EVERY_STEP = ("mir", "mir-top")


def resolve(
    preset: str,
    host: str = "er",
    select: str = "uniform",
    noise: float = 0.4,
    seed: int = 0,
    **overrides: Any,
) -> VisionConfig:
    """The full configuration of a preset, with every default filled in."""
    small = preset.endswith("-small")
    dataset = preset.removesuffix("-small")
    if dataset not in DATASETS or (small and not dataset.startswith(("cifar", "tiny"))):
        raise ConfigError(unknown("preset", preset, names()))
    settings: Settings = {
        **DATASETS[dataset],
        **HOSTS.get(host, {}),
        **HOST_ON_DATASET.get((dataset, host), {}),
        **ALLOCATION.get((dataset, host), {}),
    }
    if small:
        settings["width"] = 20
    if select in SCORED_EVERY_STEP:
        settings |= {"every": 1, "pool": MIR_POOL.get(dataset, DEFAULT_MIR_POOL)}
    settings["virtual_lr"] = overrides.get("lr", settings.get("lr", VisionConfig.lr))
    settings["options"] = dict(settings.get("options", {}))
    config = VisionConfig(dataset, host, select, noise, seed, **settings)
    known = set(VisionConfig.__dataclass_fields__)
    for name in overrides:
        if name not in known:
            raise ConfigError(unknown("setting", name, sorted(known)))
    return replace(config, **overrides)


def names() -> list[str]:
    """Every preset."""
    small = [f"{name}-small" for name in DATASETS if name.startswith(("cifar", "tiny"))]
    return [*DATASETS, *small]


def provenance(config: VisionConfig, setting: str) -> str:
    """Where a setting's value comes from, if not from the paper."""
    if config.dataset in NOT_IN_THE_PAPER:
        return "chosen here"
    if setting in OPEN["*"] or setting in OPEN.get(config.dataset, set()):
        return "left open by the paper"
    return ""
