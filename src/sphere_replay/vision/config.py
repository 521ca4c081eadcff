"""Everything that decides a vision run, as one flat value; its JSON form is the run's identity."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from inspect import signature
from typing import Any, ClassVar, cast

from sphere_replay.allocation import Sphere
from sphere_replay.allocation.scales import FLOORS
from sphere_replay.config import RunConfig, described, one_of
from sphere_replay.errors import ConfigError
from sphere_replay.hosts import HOSTS, OPTIMIZERS
from sphere_replay.hosts.host import Views
from sphere_replay.hosts.optimizers import StreamOptimizer
from sphere_replay.memory import ADMISSIONS
from sphere_replay.replay import SELECTIONS, ScheduledSettings
from sphere_replay.vision.encoders import ENCODERS, check_encoder
from sphere_replay.vision.hub import readable, seen
from sphere_replay.vision.models import NETWORK, NETWORKS, Head, Initialization, default_network
from sphere_replay.vision.noise import LOOKALIKES, NoiseKind
from sphere_replay.vision.specs import HUB, dataset_spec
from sphere_replay.vision.stream import Scenario, SplitBy
from sphere_replay.vision.strong_views import STRONG
from sphere_replay.vision.transforms import FeatureViews, pipeline

__all__ = ["VisionConfig"]

BALANCED_ADMISSIONS = ("class-balanced", "greedy-balanced")
OWN_ADMISSIONS = {"purity-diversity": "puridiver", "asymmetric-balanced": "abs"}
"""Policies that need what only one host tells them."""
DEVICES = ("cpu", "cuda")
NARROWEST_CHANNELS_LAST = 8
"""Below it torch's CPU kernels for this format write past their buffers on processors without
AVX-512: the process aborts, or worse, goes on."""

TAIL = 10
"""Evaluations in the last quarter of the last task: a single step is a noisy one."""

OF_ENCODERS = ("encoder", "hidden", "geometry")
"""Settings that mean nothing without an encoder, and then are no part of a run's identity."""

OF_STREAMS = ("scenario", "blur", "imbalance", "task_free")
"""What is part of a run's identity only where the stream is not the plain one."""


class ComparedBy(StrEnum):
    """Whose features an allocation compares memories by."""

    NETWORK = "network"
    ENCODER = "encoder"


@dataclass(frozen=True, kw_only=True)
class VisionConfig(ScheduledSettings, RunConfig):
    """A resolved run: nothing is decided anywhere else. Replay has its settings from the base."""

    DOMAIN: ClassVar[str] = "vision"

    dataset: str
    host: str
    noise: float
    seed: int
    noise_kind: str = "symmetric"
    split_by: str = "noisy"
    """Which label decides the task of a training example."""
    scenario: str = "class"
    """What a task brings: new classes, or new examples (a `domain`) for the same labels."""
    blur: float = 0.0
    """Share of each class that comes outside of its task."""
    imbalance: float = 1.0
    """Size of the largest class over that of the smallest."""
    task_free: bool = False
    """Whether the learner is not told where tasks begin and end."""
    limit: int | None = None
    """Use this many examples of the stream, from all tasks alike."""
    network: str = ""
    """Name of the network; empty: ResNet-18 for color, else the MLP."""
    network_options: dict[str, Any] = field(default_factory=dict)
    """The network's own, where they are not its defaults."""
    width: int = 64
    """Channels of the ResNet's first stage."""
    head: str = "linear"
    initialization: str = "xavier"
    """Where the weights of the MLP begin: `xavier`, or `torch` for its own default."""
    encoder: str = ""
    """Learn from features of this frozen encoder instead of images; empty: none."""
    hidden: int = 256
    """Units between an encoder's features and the head; 0: the head stands on them."""
    geometry: str = "network"
    """Whose features memories are compared by: the network's, or the encoder's own."""
    augment: bool = True
    admission: str = "reservoir"
    batch: int = 32
    """Stream examples in an update."""
    drop_last: bool = False
    """Leave out the last batch of a task if it is smaller than the others."""
    optimizer: str = "sgd"
    """What is learned from the stream with; a fit to the memory has its own."""
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    """The optimizer's constants; those that are not given get their defaults."""
    lr: float = 0.1
    virtual_lr: float | None = 0.1
    """Length of the virtual step (η): θ - η g for SGD, else the optimizer's own with that rate."""
    k_s: int = 5
    k_t: int = 25
    t_frac: float = 0.5
    threads: int = 1
    """CPU threads; sums are split by them, so results depend on it in the last digits."""
    select_options: dict[str, Any] = field(default_factory=dict)
    """The selection's own; those of one that is a dataclass get their defaults."""
    evaluate_every: int | None = None
    """Steps between evaluations for the anytime curve; None evaluates after tasks only."""
    tail_limit: int | None = None
    """Test examples per evaluation of the tail, spread evenly over the test set; None: all."""
    device: str = "cpu"
    """Where network and memory live; which GPU is for CUDA_VISIBLE_DEVICES to say."""
    autocast: bool = False
    """Train in bfloat16 where torch deems it safe; scoring and evaluation stay in float32."""
    channels_last: bool = False
    """Keep the weights of convolutions, and with them all maps, channel by channel."""
    options: dict[str, Any] = field(default_factory=dict)
    """The host's own constants, see its `OPTIONS`; those that are not given get their defaults."""

    def __post_init__(self) -> None:
        self.check_fields()
        object.__setattr__(self, "dataset", dataset_spec(self.dataset).name)
        one_of("host", self.host, HOSTS)
        one_of("noise_kind", self.noise_kind, NoiseKind)
        one_of("split_by", self.split_by, SplitBy)
        one_of("head", self.head, Head)
        one_of("initialization", self.initialization, Initialization)
        one_of("admission", self.admission, ADMISSIONS)
        one_of("device", self.device, DEVICES)
        one_of("geometry", self.geometry, ComparedBy)
        self._check_encoder()
        self._check_stream()
        if not 0 <= self.noise < 1:
            raise ConfigError(f"noise must lie in [0, 1), got {self.noise}; 0.4 corrupts 40%")
        self.check_positive("width", "batch", "lr", "k_s", "k_t", "t_frac", "threads")
        self.check_replay()
        if self.virtual_lr is None:
            raise ConfigError("virtual_lr must be a number")
        self.check_least(evaluate_every=1, limit=self.num_tasks, tail_limit=1)
        selection = self.selection_on(self.recipe)
        if isinstance(SELECTIONS[self.select], type):
            object.__setattr__(self, "select_options", asdict(cast(Any, selection)))
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        object.__setattr__(self, "optimizer_options", self.stream_optimizer.to_dict())
        self._check_network()
        try:
            options = HOSTS[self.host].OPTIONS.of(self.options).to_dict()
        except ValueError as error:
            raise ConfigError(f"host {self.host}: {error}") from error
        object.__setattr__(self, "options", options)
        selects_stream = self.select != "uniform" and self.options.get("select_stream", True)
        if self.host == "puridiver" and self.options["joint_batch"] and selects_stream:
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

    def _check_stream(self) -> None:
        one_of("scenario", self.scenario, Scenario)
        if not 0 <= self.blur <= 1:
            raise ConfigError(f"blur is a share of each class, in [0, 1], got {self.blur}")
        if self.imbalance < 1:
            raise ConfigError(
                f"imbalance is the largest class over the smallest: at least 1, got "
                f"{self.imbalance}"
            )
        spec, host = dataset_spec(self.dataset), HOSTS[self.host]
        if self.blur and spec.tasks < 2:
            raise ConfigError(f"{self.dataset} has a single task: there is nothing to blur")
        if self.task_free and host.TOLD_TASKS:
            raise ConfigError(f"{self.host} must be told of tasks: leave task_free at false")
        domains = self.scenario == Scenario.DOMAIN
        if (domains or self.blur) and host.TASK_CLASSES:
            raise ConfigError(
                f"{self.host} takes classes for those of a task: leave scenario at class, blur at 0"
            )
        if domains and (self.noise_kind == NoiseKind.ASYMMETRIC or self.split_by == SplitBy.CLEAN):
            raise ConfigError(
                "domains are those of the true classes, and classes that look alike may share a "
                "label: leave split_by at noisy and noise_kind at a symmetric one"
            )
        if domains and spec.num_classes // spec.tasks < 2:
            raise ConfigError(f"a task of {self.dataset} has one class, so a domain has one label")

    def _check_network(self) -> None:
        if self.network:
            one_of("network", self.network, NETWORKS)
        name = self.network or default_network(self.dataset)
        shape = dataset_spec(self.dataset).shape
        try:
            signature(NETWORKS[name]).bind(shape, 1, head=self.head, **self.network_options)
        except TypeError as error:
            raise ConfigError(f"network {name}: {error}") from error

    def _check_encoder(self) -> None:
        self.check_least(hidden=0)
        if self.encoder:
            check_encoder(self.encoder)
            if self.augment:
                raise ConfigError("images are encoded once and as they are: set augment to false")
            return
        for name in OF_ENCODERS:
            if getattr(self, name) != getattr(VisionConfig, name):
                raise ConfigError(f"{name} concerns encoded images alone: name an encoder as well")

    @property
    def idle(self) -> tuple[str, ...]:
        """Settings of encoders where there is none, of the economical schedule likewise."""
        encoders = () if self.encoder else OF_ENCODERS
        return (*super().idle, *encoders, *self.unasked(OF_STREAMS))

    @property
    def recipe(self) -> Sphere:
        """Of the selections built on SPHERE."""
        return Sphere.vision(self.k_s, self.k_t, self.t_frac, alpha=self.alpha)

    @property
    def stream_optimizer(self) -> StreamOptimizer:
        """What is learned from the stream with."""
        try:
            return OPTIMIZERS[self.optimizer].of(self.optimizer_options)
        except ValueError as error:
            raise ConfigError(f"optimizer {self.optimizer}: {error}") from error

    @property
    def parts(self) -> dict[str, object]:
        """What plug-ins may bring."""
        chosen = {
            "host": HOSTS[self.host],
            "select": SELECTIONS[self.select],
            "dataset": dataset_spec(self.dataset).load,
            "network": NETWORKS.get(self.network),
            "encoder": ENCODERS.get(self.encoder),
        }
        return {name: part for name, part in chosen.items() if part is not None}

    @classmethod
    def renamed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Options of selections once were those of the calibrated one alone."""
        calibration = settings.pop("calibration", None)
        if not calibration:
            return settings
        return settings | {"select_options": calibration | settings.get("select_options", {})}

    @property
    def views(self) -> Views:
        """How stored images become network inputs."""
        if self.encoder:
            return FeatureViews()
        views = pipeline(self.dataset)
        return views if self.augment else views.without_augmentation()

    @property
    def constants(self) -> dict[str, Any]:
        """Of the selection, the host, the network, the views, the stream and its evaluation."""
        spec = dataset_spec(self.dataset)
        return {
            "selection": described(self.selection_on(self.recipe)),
            "allocation": dict(FLOORS),
            "host": self.stream_optimizer.constants() | HOSTS[self.host].constants(),
            "network": dict(NETWORK),
            "views": described(self.views) | {"strong": dict(STRONG)},
            "stream": {"classes": spec.num_classes, "tasks": spec.tasks},
            "evaluation": {"tail": TAIL},
            **self._lookalikes,
            **({"dataset": seen(self.dataset)} if self.dataset.startswith(HUB) else {}),
        }

    @property
    def _lookalikes(self) -> dict[str, Any]:
        """By name, because the keys of JSON are no numbers; nothing where no label follows them."""
        if self.noise_kind != NoiseKind.ASYMMETRIC:
            return {}
        taken_for = LOOKALIKES[self.dataset]
        return {"lookalikes": {str(real): taken for real, taken in taken_for.items()}}

    @property
    def run_name(self) -> str:
        """Readable stem of the run's folder."""
        noise = f"{100 * self.noise:g}"
        dataset = readable(self.dataset) if self.dataset.startswith(HUB) else self.dataset
        dataset = f"{dataset}-frozen" if self.encoder else dataset
        return f"{dataset}-{self.host}-{self.select}-noise{noise}-seed{self.seed}"

    @property
    def num_tasks(self) -> int:
        """Tasks of the dataset's stream."""
        return dataset_spec(self.dataset).tasks
