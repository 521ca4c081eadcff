"""Everything that decides a code-generation run, as one flat value: the run's identity."""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from sphere_replay.allocation import Sphere
from sphere_replay.allocation.scales import FLOORS
from sphere_replay.coding.micro_model import FORMAT, MicroSpec
from sphere_replay.config import RunConfig, described, one_of
from sphere_replay.errors import ConfigError
from sphere_replay.integrations.trl.arguments import OBJECTIVE
from sphere_replay.replay import SELECTIONS, UNLABELLED, ReplaySettings
from sphere_replay.sandbox import Limits

__all__ = ["HOST_NAMES", "MICRO", "SPLITS", "CodingConfig"]

HOST_NAMES = ("none", "er")
"""Policy optimization alone, or with replay."""
MICRO = "micro"
"""The model, and the problems, that are made on the spot."""
SPLITS = {"evaluation": ("train", "evaluation"), "development": ("fit", "probe")}
"""What is trained and evaluated on, by the value of `evaluate_on`."""
ADAMW = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}
"""The optimizer, but for its rate and weight decay; the names are those of transformers."""


@dataclass(frozen=True, kw_only=True)
class CodingConfig(ReplaySettings, RunConfig):
    """A resolved run: nothing is decided anywhere else. The defaults are the paper's."""

    DOMAIN: ClassVar[str] = "coding"

    model: str
    """`micro`, `smollm2`, a folder, or an id on the hub."""
    problems: str
    """`micro`, or the name of a prepared file."""
    host: str
    seed: int
    stages: str = ""
    """Names of stages separated by commas, in the order they are learned; empty: all."""
    train: int = 120
    """Training problems per stage, at most."""
    evaluation: int = 100
    """Problems per stage that accuracies are measured on, at most."""
    evaluate_on: str = "evaluation"
    """`development`: train on the split `fit` and evaluate on `probe`."""
    passes: int = 2
    batch: int = 8
    """Current problems in an update."""
    generations: int = 8
    """Programs sampled for a problem."""
    max_prompt: int = 1536
    """Tokens of a prompt; problems with longer ones are left out."""
    max_completion: int = 512
    """Tokens of a program, and the denominator of the loss."""
    temperature: float = 1.0
    sampler: str = "transformers"
    rank: int = 16
    """Of the LoRA adapters; 0 trains all parameters."""
    lora_alpha: int = 32
    lr: float = 1e-4
    clip: float = 1.0
    """Largest norm of the gradient of an update."""
    weight_decay: float = 0.0
    epsilon: float = 0.2
    """How far a probability ratio may move before it is clipped."""
    capacity: int = 480
    """Problems the memory holds."""
    pool: int | None = 48
    """Remembered problems that are sampled anew in an update; None: all."""
    replay_batch: int = 8
    """Groups replayed in an update."""
    favor: float = 4.0
    """How many times as likely a problem with a mixed latest group is to be a candidate."""
    strength: float = 1.0
    """λ, the factor of the replay loss."""
    virtual_lr: float | None = 1e-4
    """Learning rate of the virtual AdamW step; None: that of the update."""
    wall: float = 10.0
    """Seconds until a program is cut off."""
    workers: int = 1
    """Programs that run side by side."""
    unsafe: bool = False
    """Run programs without isolation where none works. Do not."""
    warm_up: int = 0
    """Steps of supervised learning that a micro model begins with."""
    micro_batch: int = 8
    """Programs that are differentiated at a time."""
    device: str = "cpu"
    threads: int = 1
    """CPU threads; sums are split by them, so results depend on it in the last digits."""
    select_options: dict[str, Any] = field(default_factory=dict)
    """The selection's own, where they are not its defaults."""

    def __post_init__(self) -> None:
        self.check_fields()
        for name in ("model", "problems"):
            if not getattr(self, name):
                raise ConfigError(f"{name} takes a name, got ''")
        one_of("host", self.host, HOST_NAMES)
        one_of("evaluate_on", self.evaluate_on, SPLITS)
        one_of("sampler", self.sampler, ("transformers", "vllm"))
        one_of("device", self.device, ("cpu", "cuda"))
        self.check_positive(
            *("train", "evaluation", "passes", "batch", "max_prompt", "max_completion"),
            *("temperature", "lora_alpha", "lr", "clip", "epsilon"),
            *("wall", "workers", "micro_batch", "threads"),
        )
        self.check_least(
            seed=0, generations=2, rank=0, strength=0, favor=1, weight_decay=0, warm_up=0
        )
        self.check_replay(UNLABELLED, distinct=False)
        self.selection_on(self.recipe)  # which checks its options
        if self.select_options.get("agreement"):
            raise ConfigError(
                "select.agreement asks neighbours about class labels, and problems have none: "
                "leave it at 0"
            )
        if self.host == "none" and self.select != "uniform":
            raise ConfigError("none replays nothing: leave --select at uniform")
        if self.pool is not None and self.pool > self.capacity:
            raise ConfigError(
                f"a pool of {self.pool} distinct problems cannot come from a memory of "
                f"{self.capacity}: raise capacity or lower pool"
            )
        if self.batch * self.generations % self.micro_batch:
            raise ConfigError(
                f"an update has {self.batch} x {self.generations} programs, which micro-batches "
                f"of {self.micro_batch} do not divide: change micro_batch"
            )
        if (self.model == MICRO) != (self.problems == MICRO):
            raise ConfigError(
                f"model={self.model} with problems={self.problems}: the micro model knows nothing "
                "but micro-problems, and its lessons are made of them; give another --model, or "
                "problems=micro"
            )
        if len(set(self.stage_names)) < len(self.stage_names):
            raise ConfigError(f"stages={self.stages} names a stage twice")

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The stages asked for; none: all there are."""
        return tuple(self.stages.split(",")) if self.stages else ()

    @property
    def limits(self) -> Limits:
        """Of every program that runs."""
        return Limits(wall=self.wall, cpu=self.wall)

    @property
    def micro(self) -> MicroSpec:
        """The model that is made on the spot, if it is asked for."""
        return MicroSpec(steps=self.warm_up)

    @property
    def recipe(self) -> Sphere:
        """Of the selections built on SPHERE; its d0 is the training prompts' own."""
        return Sphere.coding(None, alpha=self.alpha)

    @property
    def idle(self) -> tuple[str, ...]:
        """Options of the selection where none is said: the constants have its defaults."""
        return () if self.select_options else ("select_options",)

    @property
    def parts(self) -> dict[str, object]:
        """What plug-ins may bring."""
        return {"select": SELECTIONS[self.select]}

    @property
    def constants(self) -> dict[str, Any]:
        """Of the selection, GRPO and its optimizer, the sandbox, and a model made on the spot."""
        made_here = {"format": FORMAT, **described(self.micro)}
        return {
            "selection": described(self.selection_on(self.recipe)),
            "allocation": dict(FLOORS),
            "objective": dict(OBJECTIVE),
            "optimizer": {"kind": "AdamW", **ADAMW},
            "limits": asdict(self.limits),
            "model": made_here if self.model == MICRO else {},
        }

    @property
    def run_name(self) -> str:
        """Readable stem of the run's folder."""
        model = self.model.rstrip("/").rpartition("/")[2]
        return f"coding-{model}-{self.problems}-{self.host}-{self.select}-seed{self.seed}"
