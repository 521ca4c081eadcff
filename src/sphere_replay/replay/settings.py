"""What configurations of runs and arguments of trainers say about replay, under the same names."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from sphere_replay.allocation import Sphere
from sphere_replay.errors import ConfigError, unknown
from sphere_replay.extras import require
from sphere_replay.memory import Memory
from sphere_replay.replay.economy import Economy
from sphere_replay.replay.engine import Engine
from sphere_replay.replay.selections import (
    MEMBERS,
    SELECTIONS,
    Selection,
    asks_labels,
    selection_by,
    selection_named,
)

if TYPE_CHECKING:
    Select = Any  # a name, which is all that the configuration of a run takes, or an object
else:
    Select = str  # what parsers of command lines read it as

SCHEDULES = ("published", "economical")
ECONOMICAL = ("schedule", *(entry.name for entry in fields(Economy)))
"""Settings of the economical schedule."""

LARGEST_MEMORY = 10**8
"""Slots: what is kept of each beside the example itself takes a gigabyte and more by then."""


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """Settings of every replay, whatever is replayed."""

    select: Select = "sphere"
    """How memories are chosen: the name of a selection, a selection, or a recipe of SPHERE."""
    capacity: int = 500
    """What the memory holds."""
    replay_batch: int = 32
    """What is replayed in an update, over all processes."""
    pool: int | None = None
    """Candidates at a rescoring, chosen anew each time; None, or fewer memories: all."""
    alpha: float = 0.5
    """Share of the risk-driven weights in the blend with uniform replay."""
    virtual_lr: float | None = None
    """Length of the virtual step (η); None: the optimizer's learning rate."""

    @classmethod
    def of(cls, given: Self | Mapping[str, Any] | str | Path | None) -> Self:
        """Settings from a mapping, or from a YAML file that holds one; None: the defaults."""
        if isinstance(given, cls):
            return given
        source = cls.__name__
        if isinstance(given, str | Path):
            source = str(given)
            try:
                text = Path(given).read_text(encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"replay settings cannot be read: {error}") from error
            given = require("yaml", "instruct").safe_load(text)
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"{source} must be a mapping from names of settings to values, got "
                f"{type(given).__name__}"
            )
        kinds = {entry.name: entry.type for entry in fields(cls)}
        for name in given:
            if name not in kinds:
                raise ConfigError(unknown("replay setting", str(name), kinds))
        # YAML reads 1e-2, without a dot, as text.
        return cls(**{name: _number(kinds[name], value) for name, value in given.items()})

    @property
    def drawn_from(self) -> dict[str, int]:
        """Numbers of memories that distinct draws must come from, by the name of their setting."""
        sizes = {"capacity": self.capacity}
        return sizes if self.pool is None else sizes | {"pool": self.pool}

    def check_replay(
        self, selections: Iterable[str] = SELECTIONS, *, distinct: bool = True
    ) -> None:
        """Refuse values that no replay can work with; `distinct` draws need enough candidates."""
        names = list(selections)
        if asks_labels(self.select) and "sphere-calibrated" not in names:
            raise ConfigError(
                f"{self.select} asks neighbours about stored class labels, and these memories have "
                f"none: choose another selection, such as {names[0]}"
            )
        if isinstance(self.select, str):
            if self.select not in names:
                raise ConfigError(unknown("selection", self.select, names))
        elif not isinstance(self.select, Sphere):
            lacking = [name for name in MEMBERS if not hasattr(self.select, name)]
            if isinstance(self.select, type) or lacking:
                without = f", which has no {', '.join(lacking)}" if lacking else ""
                raise ConfigError(
                    "select takes the name of a selection, a selection such as MirTop(top=8), or a "
                    f"recipe such as Sphere.instruct(), got {self.select!r}{without}"
                )
        for name in ("capacity", "replay_batch", "pool"):
            value = getattr(self, name)
            if value is None and name == "pool":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
            if value > LARGEST_MEMORY:
                raise ConfigError(f"{name} must be at most {LARGEST_MEMORY}, got {value}")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must lie in [0, 1], got {self.alpha}")
        if self.virtual_lr is not None and not 0 <= self.virtual_lr < math.inf:
            raise ConfigError(f"virtual_lr must be finite and not negative, got {self.virtual_lr}")
        for name, size in self.drawn_from.items() if distinct else ():
            if size < self.replay_batch:
                raise ConfigError(
                    f"{self.replay_batch} distinct memories cannot be drawn from {name}={size}: "
                    f"raise {name} or lower replay_batch"
                )

    def selection_on(self, recipe: Sphere) -> Selection:
        """The selection, on a recipe for the named ones that are built on one."""
        if isinstance(self.select, str):
            # Configurations have options beside the name; elsewhere such a selection is a value.
            options = getattr(self, "select_options", {})
            try:
                return selection_named(self.select, recipe, self._ranked, options)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"selection {self.select}: {error}") from error
        if isinstance(self.select, Sphere):
            return selection_by(self.select)
        selection: Selection = self.select
        return selection

    @property
    def _ranked(self) -> int:
        """How many increments `mir-top` draws from."""
        return self.replay_batch


@dataclass(frozen=True, kw_only=True)
class ScheduledSettings(ReplaySettings):
    """Settings of a replay whose memories keep their weights for a while."""

    every: int = 4
    """Rescore, with a fresh pool, at every n-th replay, and at the first of each task."""
    top: int | None = None
    """How many increments `mir-top` draws from; None: as many as are replayed."""
    unit_mass: bool = False
    """Replay at full strength whatever the mass s_w."""
    replacement: bool = False
    """Draw with replacement."""
    schedule: str = "published"
    """`published` scores all candidates at every rescoring, `economical` as few as it can."""
    landmarks: int = Economy.landmarks
    """Memories that an economical rescoring passes forward twice."""
    shortest: int = Economy.shortest
    """Replays between the first economical rescorings of a task, once they are paid for by passes
    that were saved, or `every` if that is less."""
    longest: int = Economy.longest
    """Replays up to which intervals of economical rescorings double, or `every` if that is more."""
    reuse: int = Economy.reuse
    """Replays for which what training computed does for an economical rescoring; 0: none."""
    steady: float = Economy.steady
    """Share of the weights that may be news where economical rescorings become rarer still, up to
    eight times."""

    @property
    def drawn_from(self) -> dict[str, int]:
        """Numbers of memories that distinct draws must come from, by the name of their setting."""
        ranked = self.top is not None and self.select == "mir-top"
        return super().drawn_from | ({"top": self.top or 0} if ranked else {})

    def check_replay(
        self, selections: Iterable[str] = SELECTIONS, *, distinct: bool = True
    ) -> None:
        """Refuse values that no replay can work with."""
        super().check_replay(selections, distinct=distinct and not self.replacement)
        for name, value in (("every", self.every), ("top", 1 if self.top is None else self.top)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.schedule not in SCHEDULES:
            raise ConfigError(unknown("schedule", self.schedule, SCHEDULES))
        try:
            numbers = asdict(self._as_economy())
        except ValueError as error:
            raise ConfigError(str(error)) from error
        usual = asdict(Economy())
        given = [name for name in numbers if numbers[name] != usual[name]]
        if given and self.schedule == "published":
            raise ConfigError(
                f"{', '.join(given)}: of the economical schedule alone, set schedule='economical' "
                "as well"
            )

    @property
    def economy(self) -> Economy | None:
        """The numbers of the economical schedule, where it is chosen."""
        return None if self.schedule == "published" else self._as_economy()

    def _as_economy(self) -> Economy:
        return Economy(**{entry.name: getattr(self, entry.name) for entry in fields(Economy)})

    @property
    def idle(self) -> tuple[str, ...]:
        """Settings that mean nothing here: they are no part of a run's identity."""
        return ECONOMICAL if self.schedule == "published" else ()

    @property
    def _ranked(self) -> int:
        return self.top or self.replay_batch

    def engine(self, memory: Memory, recipe: Sphere, generator: torch.Generator) -> Engine:
        """The engine that draws from a memory by these settings."""
        return Engine(
            memory,
            self.selection_on(recipe),
            generator=generator,
            every=self.every,
            pool=self.pool,
            replacement=self.replacement,
            unit_mass=self.unit_mass,
            economy=self.economy,
        )


def _number(kind: object, value: Any) -> Any:
    if isinstance(value, str) and "float" in str(kind):
        try:
            return float(value)
        except ValueError as error:
            raise ConfigError(f"{value!r} is not a number") from error
    return value
