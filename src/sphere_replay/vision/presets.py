"""The paper's settings per dataset and host, and notes on what it leaves open."""

from dataclasses import replace
from typing import Any

from sphere_replay.config import one_of
from sphere_replay.replay.selections import CALIBRATED_EVERY
from sphere_replay.runs.table import SMALL_ENDING
from sphere_replay.vision.config import OF_ENCODERS, VisionConfig

Settings = dict[str, Any]

STEADY: Settings = {"initialization": "torch", "drop_last": True}
"""What comes closest to the published baselines on MNIST: torch's own initialization, and no small
last batch, after which a single accuracy would be read. See results/development/protocol.md."""

_GREY = {"capacity": 500, "batch": 64, "replay_batch": 64, "evaluate_every": 50, **STEADY}

DATASET_SETTINGS: dict[str, Settings] = {
    "digits": {"capacity": 100, "batch": 10, "replay_batch": 10, "evaluate_every": 20},
    "mnist": _GREY,
    "fashion-mnist": _GREY,
    "cifar10": {"capacity": 500},
    "cifar100": {"capacity": 2000},
    "tiny-imagenet": {"capacity": 4000},
}
"""Values shared by all hosts of a dataset."""

HOST_SETTINGS: dict[str, Settings] = {
    "der-pp": {"lr": 0.03},
    "gdumb": {"admission": "greedy-balanced"},
    "puridiver": {"lr": 0.03, "admission": "purity-diversity"},
    "er-ace": {"head": "cosine"},
    "xder": {"lr": 0.03, "admission": "greedy-balanced"},
    "abs": {"admission": "asymmetric-balanced"},
}
"""Values of a host on every dataset."""

HOST_ON_DATASET: dict[tuple[str, str], Settings] = {
    ("mnist", "er-ace"): {"head": "linear"},
    ("mnist", "der-pp"): {"lr": 0.1, "options": {"alpha": 0.5, "beta": 1.0}},
    **{
        (dataset, "gdumb"): {"options": {"fit_last_only": True}}
        for dataset in ("cifar10", "cifar100", "tiny-imagenet")
    },
    ("cifar10", "der-pp"): {"options": {"alpha": 0.5, "beta": 0.5}},
    ("cifar100", "der-pp"): {"options": {"alpha": 0.3, "beta": 1.0}},
    ("cifar10", "xder"): {"options": {"alpha": 0.1, "beta": 0.5}},
    ("cifar100", "xder"): {"options": {"alpha": 0.1, "beta": 0.8}},
}

ALLOCATION: dict[tuple[str, str], Settings] = {
    ("cifar10", "er-ace"): {"k_s": 10, "k_t": 50, "t_frac": 1.0, "every": 4},
    ("cifar10", "xder"): {"k_s": 5, "k_t": 50, "t_frac": 0.5, "every": 8},
    ("tiny-imagenet", "er-ace"): {"k_s": 5, "k_t": 50, "t_frac": 0.25, "every": 8},
}
"""The paper's table of allocation settings, where it differs from k_s 5, k_T 25, T_frac 0.5, 4."""

_SMALL_SCORING = {"pool": 500, "tail_limit": 1000}

SMALL: dict[str, Settings] = {
    "cifar10": {"width": 20, "limit": 10_000, "channels_last": True},
    "cifar100": {"width": 20, "limit": 10_000, "channels_last": True, **_SMALL_SCORING},
    "tiny-imagenet": {"width": 12, "limit": 5_000, "channels_last": True, **_SMALL_SCORING},
}
"""What `-small` presets have instead, so that a CPU can run them: a narrow network, a part of the
stream, the faster memory format. Memories keep their size, but of large ones a part is scored."""

SMALL_FITS: dict[str, dict[str, Any]] = {
    "gdumb": {"epochs": 32},
    "puridiver": {"epochs": 31, "fit_last_only": True},
    "abs": {"epochs": 31, "fit_last_only": True},
}
"""Memory fits of `-small` presets: one, after the last task, and fewer cycles of warm restarts. As
in the paper's number of epochs, the last cycle is complete."""

FROZEN: dict[str, Settings] = {
    dataset: {"encoder": "efficientnet-lite0", "augment": False, "lr": 0.1, "drop_last": True}
    for dataset in ("cifar10", "cifar100", "tiny-imagenet")
}
"""What `-frozen` presets have instead: whole streams that a CPU runs in minutes, because features
of a pretrained encoder are learnt from instead of images. The rate is that of MNIST's MLP."""

VARIANTS = {SMALL_ENDING: SMALL, "-frozen": FROZEN}
"""Endings of presets, with what they change."""

MIR_POOL = {"cifar10": 96, "cifar100": 160}
DEFAULT_MIR_POOL = 96

_OPEN = "left open by the paper"
_SEE = "not the paper's, see docs/reproduction.md"
_ALLOCATION_OPEN = dict.fromkeys(("k_s", "k_t", "t_frac", "every"), _OPEN)
_RATES_OPEN = dict.fromkeys(("lr", "virtual_lr"), _OPEN)
NOTES: dict[tuple[str, str], dict[str, str]] = {
    ("*", "*"): {"split_by": _OPEN, "noise_kind": _OPEN},
    ("mnist", "*"): {"batch": _OPEN, "replay_batch": f"{_SEE}: 32", "pool": _OPEN},
    ("mnist", "er-ace"): {"head": f"{_SEE}: cosine"},
    ("mnist", "der-pp"): {"lr": _SEE, "virtual_lr": _SEE, "options": _OPEN},
    ("tiny-imagenet", "*"): dict.fromkeys(("batch", "replay_batch", "augment", "pool"), _OPEN),
    ("*", "der-pp"): _ALLOCATION_OPEN,
    ("tiny-imagenet", "der-pp"): {"options": _OPEN, **_RATES_OPEN},
    ("*", "xder"): {"options": f"all but alpha and beta {_OPEN}"},
    ("tiny-imagenet", "xder"): {"options": _OPEN},
    ("*", "gdumb"): {"options": f"all but epochs {_OPEN}"},
    ("*", "puridiver"): {"options": _OPEN, **_ALLOCATION_OPEN, **_RATES_OPEN},
    ("cifar10", "puridiver"): {
        "options": f"all but epochs and rate of the fit {_OPEN}",
        **dict.fromkeys(("lr", "virtual_lr"), "one rate is given, of stream or fit"),
    },
    ("*", "abs"): {
        "options": "fit as PuriDivER's, rest open",
        "head": "of the authors; the paper's ER-ACE has a cosine one",
        **_ALLOCATION_OPEN,
        **_RATES_OPEN,
    },
}
"""Values that the paper does not give, or gives otherwise, by dataset and host."""

IN_THE_PAPER = ("mnist", "cifar10", "cifar100", "tiny-imagenet")

ADAPTIVE_RATE = 1e-3
"""Of optimizers other than SGD, whose rates above would be far too high for them."""

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
    one_of("preset", preset, names())
    ending = next((ending for ending in VARIANTS if preset.endswith(ending)), "")
    dataset = preset.removesuffix(ending)
    settings: Settings = {
        **DATASET_SETTINGS[dataset],
        **HOST_SETTINGS.get(host, {}),
        **HOST_ON_DATASET.get((dataset, host), {}),
        **ALLOCATION.get((dataset, host), {}),
    }
    if ending:
        settings |= VARIANTS[ending][dataset]
    if ending == SMALL_ENDING:
        settings["options"] = settings.get("options", {}) | SMALL_FITS.get(host, {})
    if overrides.get("optimizer", VisionConfig.optimizer) != VisionConfig.optimizer:
        settings["lr"] = ADAPTIVE_RATE
        overrides.setdefault("optimizer_options", {})  # instead of those of SGD
    if select in SCORED_EVERY_STEP:
        settings |= {"every": 1, "pool": MIR_POOL.get(dataset, DEFAULT_MIR_POOL)}
    elif select == "sphere-calibrated":
        settings["every"] = CALIBRATED_EVERY
    rate = overrides.get("lr", settings.get("lr", VisionConfig.lr))
    if isinstance(rate, int | float) and rate > 0:  # others are refused under their own name
        settings["virtual_lr"] = rate
    config = VisionConfig(
        dataset=dataset, host=host, select=select, noise=noise, seed=seed, **settings
    )
    if isinstance(overrides.get("options"), dict):
        overrides["options"] = config.options | overrides["options"]
    overrides = VisionConfig.renamed(overrides)
    VisionConfig.check_names(overrides)
    return replace(config, **overrides)


def names() -> list[str]:
    """Every preset."""
    variants = [name + ending for ending, variant in VARIANTS.items() for name in variant]
    return [*DATASET_SETTINGS, *variants]


def provenance(config: VisionConfig, setting: str) -> str:
    """Where a setting's value comes from, if not from the paper."""
    if config.encoder and setting in OF_ENCODERS:
        return "not the paper's: its networks learn from images"
    if config.encoder or config.dataset not in IN_THE_PAPER:
        return "chosen here"
    if setting == "width" and config.width != VisionConfig.width:
        return f"the paper's is {VisionConfig.width}"
    if setting == "limit" and config.limit is not None:
        return "the paper uses the whole stream"
    if setting == "pool" and config.select not in SCORED_EVERY_STEP:
        # But for MIR.
        return "" if config.pool is None else "the paper scores the whole memory"
    if setting == "every" and config.select == "sphere-calibrated":
        return "chosen here"
    if setting == "every" and config.select in SCORED_EVERY_STEP:
        return _OPEN
    note = _note(config, setting)
    if setting != "options":
        return note
    full = resolve(config.dataset, config.host).options
    if config.options.get("epochs") != full.get("epochs"):
        after = "the last task" if full["fit_last_only"] else "every task"
        fits = f"the full preset fits {full['epochs']} epochs after {after}"
        return f"{fits}; {note}" if note else fits
    return note


def _note(config: VisionConfig, setting: str) -> str:
    """The most specific of the notes above."""
    for dataset in (config.dataset, "*"):
        for host in (config.host, "*"):
            if note := NOTES.get((dataset, host), {}).get(setting):
                return note
    return ""
