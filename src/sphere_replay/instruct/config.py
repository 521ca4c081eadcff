"""Everything that decides an instruction-tuning run, as one flat value: the run's identity."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sphere_replay.allocation import Sphere
from sphere_replay.allocation.scales import FLOORS
from sphere_replay.config import RunConfig, described, one_of
from sphere_replay.errors import ConfigError
from sphere_replay.instruct.stream import EvaluateOn
from sphere_replay.instruct.tasks import ORDERS
from sphere_replay.instruct.tiny import FORMAT, MOST_WORDS, TinySpec
from sphere_replay.language import LanguageReplaySettings
from sphere_replay.replay import SELECTIONS

__all__ = ["HOST_NAMES", "InstructConfig"]

HOST_NAMES = ("none", "er")
"""Sequential tuning alone, or with replay."""
BETA1, EPSILON = 0.9, 1e-8
"""AdamW's decay of gradients, and what it adds to their size."""


@dataclass(frozen=True, kw_only=True)
class InstructConfig(LanguageReplaySettings, RunConfig):
    """A resolved run: nothing is decided anywhere else. Replay has its settings from the base."""

    DOMAIN: ClassVar[str] = "instruct"

    model: str
    """`tiny`, `smollm2`, a folder, or an id on the hub."""
    corpus: str
    host: str
    order: str
    """Number of one of the corpus' orders, or the names of tasks separated by commas."""
    seed: int
    noise: float = 0.0
    """Share of each task's training answers that are replaced by another of its labels."""
    cap: int = 1000
    """Training examples per task, at most."""
    tests_per_task: int = 1000
    """Examples per task that accuracies are measured on, at most."""
    evaluate_on: str = "test"
    max_source: int = 512
    """Tokens of a prompt, at most; sentences are cut to fit."""
    texts: int | None = None
    """Training examples per task that the streams of all seeds are drawn from; None: all."""
    instructions: bool = True
    """Whether prompts have instruction and options; without them they are short."""
    answer_tokens: int | None = None
    """1: only the first token of an answer is learned and compared; None: all of it."""
    trained_blocks: int | None = None
    """Blocks of a decoder that train, from the last one down; the others only read. None: all."""
    window: int = 4
    """Positions at the end of a prompt that trained blocks see, above blocks that do not train."""
    tail: int = 0
    """Evaluations of all tasks in the last quarter of the last one, for `tail_accuracy`."""
    rank: int = 8
    """Of the LoRA adapters; 0 trains all parameters."""
    lora_alpha: int = 32
    lora_dropout: float = 0.1
    capacity: int = 300
    batch: int = 16
    """Stream examples in an update."""
    lr: float = 1e-3
    beta2: float = 0.999
    """AdamW's decay of squared gradients."""
    clip: float = 1.0
    """Largest norm of the gradient of an update."""
    weight_decay: float = 0.0
    eps_s: float = 0.2
    eps_t: float = 0.5
    c_beta: float = 1.0
    warm_up: int = 0
    """Steps of a tiny model's first course: to name tokens that were deleted from a prompt."""
    token_budget: int = 4096
    """Padded tokens that are scored, or read for an answer, at a time."""
    threads: int = 1
    """CPU threads; sums are split by them, so results depend on it in the last digits."""
    select_options: dict[str, Any] = field(default_factory=dict)
    """The selection's own, where they are not its defaults."""

    def __post_init__(self) -> None:
        self.check_fields()
        if not self.model:
            raise ConfigError("model takes tiny, smollm2, a folder or an id on the hub, got ''")
        one_of("corpus", self.corpus, ORDERS)
        one_of("host", self.host, HOST_NAMES)
        one_of("evaluate_on", self.evaluate_on, EvaluateOn)
        self.check_positive(
            "cap",
            "tests_per_task",
            "max_source",
            "lora_alpha",
            "batch",
            "lr",
            "clip",
            "eps_s",
            "eps_t",
            "c_beta",
            "threads",
        )
        self.check_least(seed=0, rank=0, weight_decay=0, warm_up=0, tail=0, texts=1)
        self._check_answers()
        for name in ("beta2", "lora_dropout", "noise"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        self._check_order()
        if self.host == "none" and self.select != "uniform":
            raise ConfigError("none replays nothing: leave --select at uniform")
        self.check_replay()
        self.selection_on(self.recipe)

    def _check_answers(self) -> None:
        if self.answer_tokens not in (None, 1):
            raise ConfigError(
                f"answer_tokens is 1 or left out for whole answers, got {self.answer_tokens}"
            )
        if self.trained_blocks is None:
            return
        self.check_least(trained_blocks=1, window=1)
        if self.answer_tokens != 1:
            raise ConfigError(
                "trained_blocks keeps what the other blocks make of whole rows, so nothing can be "
                "written token by token: set answer_tokens=1"
            )

    def _check_order(self) -> None:
        orders = ORDERS[self.corpus]
        if self.order.isdecimal():
            if int(self.order) >= len(orders):
                raise ConfigError(
                    f"corpus {self.corpus} has the orders 0 to {len(orders) - 1}, got {self.order}"
                )
            return
        names = self.order.split(",")
        for name in names:
            one_of(f"task of corpus {self.corpus}", name, orders[0])
        if len(set(names)) < len(names):
            raise ConfigError(f"the order {self.order} names a task twice")

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks in the order of the stream."""
        if self.order.isdecimal():
            return ORDERS[self.corpus][int(self.order)]
        return tuple(self.order.split(","))

    @property
    def recipe(self) -> Sphere:
        """Of the selections built on SPHERE."""
        return Sphere.instruct(self.eps_s, self.eps_t, self.c_beta, alpha=self.alpha)

    @property
    def tiny(self) -> TinySpec:
        """The model that is made on the spot, if it is asked for."""
        return TinySpec(steps=self.warm_up, tokens=self.max_source)

    @property
    def parts(self) -> dict[str, object]:
        """What plug-ins may bring."""
        return {"select": SELECTIONS[self.select]}

    @property
    def constants(self) -> dict[str, Any]:
        """Of the selection, the optimizer and a model that is made on the spot."""
        made_here = {"format": FORMAT, "most_words": MOST_WORDS, **described(self.tiny)}
        return {
            "selection": described(self.selection_on(self.recipe)),
            "allocation": dict(FLOORS),
            "optimizer": {"kind": "AdamW", "beta1": BETA1, "epsilon": EPSILON},
            "model": made_here if self.model == "tiny" else {},
        }

    @property
    def idle(self) -> tuple[str, ...]:
        """Also what is not asked for: runs from before these settings keep their identity."""
        later = ("texts", "instructions", "answer_tokens", "trained_blocks", "tail")
        window = ("window",) if self.trained_blocks is None else ()
        return (*super().idle, *self.unasked(later), *window)

    @property
    def run_name(self) -> str:
        """Readable stem of the run's folder."""
        model = self.model.rstrip("/").rpartition("/")[2]
        order = f"order{self.order}" if self.order.isdecimal() else f"tasks{len(self.task_names)}"
        return (
            f"instruct-{model}-{self.corpus}-{self.host}-{self.select}-memory{self.capacity}-"
            f"{order}-seed{self.seed}"
        )

    @property
    def pair(self) -> str:
        """What two runs must share to be compared as a pair: an order and a seed."""
        return f"order {self.order}, seed {self.seed}"
