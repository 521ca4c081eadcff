"""Everything that decides a vision run, as one flat value; its JSON form is the run's identity."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sphere_replay.hosts import HOSTS
from sphere_replay.replay import SELECTIONS
from sphere_replay.usage import unknown
from sphere_replay.vision.models import Head
from sphere_replay.vision.noise import LOOKALIKES, NoiseKind
from sphere_replay.vision.specs import dataset_spec
from sphere_replay.vision.stream import SplitBy

ADMISSIONS = ("reservoir", "class-balanced", "greedy-balanced")


_KINDS: dict[str, tuple[Any, bool]] = {
    "str": (str, False),
    "int": (int, False),
    "float": ((float, int), False),
    "bool": (bool, False),
    "int | None": (int, True),
    "dict[str, float]": (dict, False),
}
"""What the fields' annotations mean, and whether None is a value."""


class ConfigError(ValueError):
    """A configuration that cannot run; the message says which value and what to do."""


@dataclass(frozen=True)
class VisionConfig:
    """A resolved run: nothing is decided anywhere else."""

    dataset: str
    host: str
    select: str
    noise: float
    seed: int
    noise_kind: str = "symmetric"
    split_by: str = "noisy"
    """Which label decides the task of a training example."""
    limit: int | None = None
    """Use this many examples of the stream, from all tasks alike."""
    width: int = 64
    """Channels of the ResNet's first stage."""
    head: str = "linear"
    augment: bool = True
    capacity: int = 500
    admission: str = "reservoir"
    batch: int = 32
    replay_batch: int = 32
    lr: float = 0.1
    virtual_lr: float = 0.1
    """Length of the virtual step (η)."""
    every: int = 4
    """Rescore at every n-th step, and at the first of each task."""
    pool: int | None = None
    """Score this many memories, chosen anew at each rescoring; None scores all."""
    k_s: int = 5
    k_t: int = 25
    t_frac: float = 0.5
    alpha: float = 0.5
    unit_mass: bool = False
    """Replay at full strength whatever the mass s_w."""
    replacement: bool = False
    threads: int = 1
    """CPU threads; sums are split by them, so results depend on it in the last digits."""
    evaluate_every: int | None = None
    """Steps between evaluations for the anytime curve; None evaluates after tasks only."""
    options: dict[str, float] = field(default_factory=dict)
    """The host's own constants; see the host's docstring."""

    def __post_init__(self) -> None:
        self._check_types()
        self._spell_floats()
        dataset_spec(self.dataset)
        _one_of("host", self.host, HOSTS)
        _one_of("selection", self.select, SELECTIONS)
        _one_of("noise_kind", self.noise_kind, [kind.value for kind in NoiseKind])
        _one_of("split_by", self.split_by, [by.value for by in SplitBy])
        _one_of("head", self.head, [head.value for head in Head])
        _one_of("admission", self.admission, ADMISSIONS)
        if not 0 <= self.noise < 1:
            raise ConfigError(f"noise must lie in [0, 1), got {self.noise}; 0.4 corrupts 40%")
        for name in (
            "width",
            "capacity",
            "batch",
            "replay_batch",
            "lr",
            "every",
            "k_s",
            "k_t",
            "threads",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("alpha", "t_frac"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.alpha > 1 or self.t_frac == 0:
            raise ConfigError(
                f"alpha must lie in [0, 1] and t_frac above 0, got {self.alpha} and {self.t_frac}"
            )
        if self.virtual_lr < 0:
            raise ConfigError(f"virtual_lr must not be negative, got {self.virtual_lr}")
        for name, least in (("pool", 1), ("evaluate_every", 1), ("limit", self.num_tasks)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        try:
            HOSTS[self.host].check_options(self.options)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.options.get("joint_batch") and self.select != "uniform":
            raise ConfigError("joint_batch works with the uniform selection only: leave it off")
        if self.select != "uniform" and not HOSTS[self.host].REPLAYS:
            raise ConfigError(f"{self.host} replays nothing: leave --select at uniform")
        if self.noise_kind == NoiseKind.ASYMMETRIC and self.dataset not in LOOKALIKES:
            raise ConfigError(
                f"{self.dataset} has no asymmetric noise: nobody says which classes look alike"
            )
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, got {self.seed}")
        if self.capacity < self.replay_batch and not self.replacement:
            raise ConfigError(
                f"the memory holds {self.capacity} examples but each step replays "
                f"{self.replay_batch} distinct ones: raise capacity or lower replay_batch"
            )
        if self.pool is not None and self.pool < self.replay_batch and not self.replacement:
            raise ConfigError(
                f"a pool of {self.pool} candidates cannot give {self.replay_batch} distinct "
                "memories: raise pool or lower replay_batch"
            )

    def _check_types(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            kind, optional = _KINDS[_spelled(entry.type)]
            right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            if not (right or (optional and value is None)):
                raise ConfigError(f"{entry.name} takes {_spelled(entry.type)}, got {value!r}")

    def _spell_floats(self) -> None:
        """1 and 1.0 are one configuration, and must be one in JSON; infinity is none."""
        for entry in fields(self):
            if _spelled(entry.type) == "float":
                value = float(getattr(self, entry.name))
                if not math.isfinite(value):
                    raise ConfigError(f"{entry.name} must be finite, got {value}")
                object.__setattr__(self, entry.name, value)
        if not all(isinstance(value, int | float) for value in self.options.values()):
            raise ConfigError(f"options take numbers, got {self.options}")
        options = {name: float(value) for name, value in self.options.items()}
        object.__setattr__(self, "options", options)

    @property
    def num_tasks(self) -> int:
        """Tasks of the dataset's stream."""
        return dataset_spec(self.dataset).tasks

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "VisionConfig":
        """The inverse of `to_dict`."""
        known = {entry.name for entry in fields(cls)}
        unknown = sorted(set(saved) - known)
        if unknown:
            raise ConfigError(f"not part of a vision configuration: {', '.join(unknown)}")
        return cls(**saved)


def _one_of(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ConfigError(unknown(name, value, known))


def _spelled(annotation: object) -> str:
    return annotation.__name__ if type(annotation) is type else str(annotation)
