"""Everything that decides a vision run, as one flat value; its JSON form is the run's identity."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sphere_replay.config import FlatConfig, one_of
from sphere_replay.errors import ConfigError
from sphere_replay.hosts import HOSTS
from sphere_replay.memory import ADMISSIONS
from sphere_replay.replay import ScheduledSettings
from sphere_replay.vision.models import Head
from sphere_replay.vision.noise import LOOKALIKES, NoiseKind
from sphere_replay.vision.specs import dataset_spec
from sphere_replay.vision.stream import SplitBy

__all__ = ["VisionConfig"]

BALANCED_ADMISSIONS = ("class-balanced", "greedy-balanced")
OWN_ADMISSIONS = {"purity-diversity": "puridiver", "asymmetric-balanced": "abs"}
"""Policies that need what only one host tells them."""
DEVICES = ("cpu", "cuda")
NARROWEST_CHANNELS_LAST = 8
"""Below it torch's CPU kernels for this format write past their buffers on processors without
AVX-512: the process aborts, or worse, goes on."""
HARDWARE = ("device", "autocast", "channels_last")
"""How a run computes. They change its rounding and so its identity, but only where they differ
from their defaults: a run on a CPU is what it was before there was a choice."""


@dataclass(frozen=True, kw_only=True)
class VisionConfig(ScheduledSettings, FlatConfig):
    """A resolved run: nothing is decided anywhere else. Replay has its settings from the base."""

    DOMAIN: ClassVar[str] = "vision"

    dataset: str
    host: str
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
    admission: str = "reservoir"
    batch: int = 32
    """Stream examples in an update."""
    lr: float = 0.1
    virtual_lr: float | None = 0.1
    """Length of the virtual step (η)."""
    k_s: int = 5
    k_t: int = 25
    t_frac: float = 0.5
    threads: int = 1
    """CPU threads; sums are split by them, so results depend on it in the last digits."""
    evaluate_every: int | None = None
    """Steps between evaluations for the anytime curve; None evaluates after tasks only."""
    device: str = "cpu"
    """Where network and memory live; which GPU is for CUDA_VISIBLE_DEVICES to say."""
    autocast: bool = False
    """Train in bfloat16 where torch deems it safe; scoring and evaluation stay in float32."""
    channels_last: bool = False
    """Keep the weights of convolutions, and with them all maps, channel by channel."""
    options: dict[str, float] = field(default_factory=dict)
    """The host's own constants; see the host's docstring."""

    def __post_init__(self) -> None:
        self.check_fields()
        dataset_spec(self.dataset)
        one_of("host", self.host, HOSTS)
        one_of("noise_kind", self.noise_kind, [kind.value for kind in NoiseKind])
        one_of("split_by", self.split_by, [by.value for by in SplitBy])
        one_of("head", self.head, [head.value for head in Head])
        one_of("admission", self.admission, ADMISSIONS)
        one_of("device", self.device, DEVICES)
        if not 0 <= self.noise < 1:
            raise ConfigError(f"noise must lie in [0, 1), got {self.noise}; 0.4 corrupts 40%")
        self.check_positive("width", "batch", "lr", "k_s", "k_t", "t_frac", "threads")
        self.check_replay()
        if self.virtual_lr is None:
            raise ConfigError("virtual_lr must be a number: the virtual step is one of SGD")
        self.check_least(evaluate_every=1, limit=self.num_tasks)
        try:
            HOSTS[self.host].check_options(self.options)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        selects_stream = self.select != "uniform" and self.options.get("select_stream", 1)
        if self.options.get("joint_batch") and selects_stream:
            raise ConfigError("joint_batch works with uniform draws only: leave it off")
        if self.select != "uniform" and not HOSTS[self.host].REPLAYS:
            raise ConfigError(f"{self.host} replays nothing: leave --select at uniform")
        if (owner := OWN_ADMISSIONS.get(self.admission, self.host)) != self.host:
            raise ConfigError(
                f"{self.host} does not judge its memories as {self.admission} admission needs: "
                f"choose another admission, or host {owner}"
            )
        if HOSTS[self.host].BALANCED and self.admission not in BALANCED_ADMISSIONS:
            raise ConfigError(
                f"{self.host} offers each class its share of the memory, of which {self.admission} "
                f"admission would refuse a part: choose {' or '.join(BALANCED_ADMISSIONS)}"
            )
        if HOSTS[self.host].TASK_LABELS and self.noise and self.split_by == SplitBy.CLEAN:
            raise ConfigError(
                f"{self.host} needs every training label in its own task: leave split_by at noisy"
            )
        if self.noise_kind == NoiseKind.ASYMMETRIC and self.dataset not in LOOKALIKES:
            raise ConfigError(
                f"{self.dataset} has no asymmetric noise: nobody says which classes look alike"
            )
        if self.channels_last and self.width < NARROWEST_CHANNELS_LAST:
            raise ConfigError(
                f"channels_last needs a width of at least {NARROWEST_CHANNELS_LAST}, got "
                f"{self.width}: widen the network, or leave channels_last off"
            )
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, got {self.seed}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without choices of hardware that were not made."""
        known = VisionConfig.__dataclass_fields__
        return {
            name: value
            for name, value in super().to_dict().items()
            if name not in HARDWARE or value != known[name].default
        }

    def in_full(self) -> dict[str, Any]:
        """Every setting, with all constants of the host."""
        constants = {**HOSTS[self.host].OPTIONS, **self.options}
        return super().in_full() | {"options": constants}

    @property
    def run_name(self) -> str:
        """Readable stem of the run's folder."""
        noise = f"{100 * self.noise:g}"
        return f"{self.dataset}-{self.host}-{self.select}-noise{noise}-seed{self.seed}"

    @property
    def pair(self) -> int:
        """What two runs must share to be compared as a pair."""
        return self.seed

    @property
    def num_tasks(self) -> int:
        """Tasks of the dataset's stream."""
        return dataset_spec(self.dataset).tasks
