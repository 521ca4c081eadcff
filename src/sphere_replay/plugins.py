"""What a plug-in registers its parts with: one decorator, or one line, each.

    from sphere_replay.plugins import selection

    @selection("tempered")
    @dataclass(frozen=True)
    class Tempered:
        temperature: float = 1.0
        ...

`sphere --plugin FILE` loads it, and every command knows the names; so does `load` in a program.
"""

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from sphere_replay.errors import ConfigError
from sphere_replay.hosts import HOSTS, Host
from sphere_replay.plugging import load, loaded, register
from sphere_replay.replay import SELECTIONS, UNLABELLED
from sphere_replay.replay.selections import MEMBERS
from sphere_replay.runs import domains
from sphere_replay.runs.table import Table
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.encoders import ENCODERS, Encoder
from sphere_replay.vision.models import NETWORKS, Classifier
from sphere_replay.vision.presets import DATASET_SETTINGS, HOST_SETTINGS
from sphere_replay.vision.specs import DATASETS, DatasetSpec, Load

__all__ = [
    "DatasetSpec",
    "dataset",
    "encoder",
    "host",
    "load",
    "loaded",
    "network",
    "selection",
    "table",
]

Made = TypeVar("Made", bound=Callable[..., Any])
HostType = TypeVar("HostType", bound=type[Host])


def selection(name: str, *, labels: bool = False) -> Callable[[Made], Made]:
    """Register a selection: a frozen dataclass with the members of `replay.Selection`.

    Its fields are its options, `--set select.FIELD=VALUE`, and need defaults. A function of a
    recipe, of how many are to be ranked, and of options by name may stand in its place.

    Args:
        name: What `--select` calls it.
        labels: Whether it needs stored class labels, which only images have.
    """

    def add(made: Made) -> Made:
        if isinstance(made, type):
            _check_selection(name, made)
        register("selection", SELECTIONS, name, made)
        if not labels:
            UNLABELLED.append(name)
        return made

    return add


def host(name: str, **settings: Any) -> Callable[[HostType], HostType]:
    """Register a host: a subclass of `hosts.Host`, often of `hosts.ExperienceReplay`.

    Its `OPTIONS` are set by `--set host.NAME=VALUE`.

    Args:
        name: What `--host` calls it.
        settings: What its runs have otherwise than those of ER, such as lr=0.03.
    """

    def add(made: HostType) -> HostType:
        if not (isinstance(made, type) and issubclass(made, Host)):
            raise ConfigError(f"host {name!r} must be a subclass of sphere_replay.hosts.Host")
        inherited = next(base.OPTIONS for base in made.__mro__[1:] if hasattr(base, "OPTIONS"))
        if not issubclass(made.OPTIONS, inherited):
            raise ConfigError(
                f"host {name!r}: its OPTIONS must extend those of the host that it extends: make "
                f"{made.OPTIONS.__name__} a subclass of {inherited.__name__}"
            )
        _check_settings(f"host {name!r}", settings)
        registered: type[Host] = made
        register("host", HOSTS, name, registered)
        HOST_SETTINGS[name] = settings
        return made

    return add


def dataset(spec: DatasetSpec, **settings: Any) -> Callable[[Load], Load]:
    """Register a dataset of images, and with it a preset of that name.

    One that is on the hub, or in Parquet files, needs this line alone. Otherwise it decorates the
    function that loads the images.

    Args:
        spec: Its name, shape, classes and tasks.
        settings: Of its preset, such as capacity=200, batch=10.
    """
    _check_settings(f"dataset {spec.name!r}", settings)
    register("dataset", DATASETS, spec.name, spec)
    DATASET_SETTINGS[spec.name] = settings

    def add(made: Load) -> Load:
        DATASETS[spec.name] = replace(spec, load=made)
        return made

    return add


def network(name: str) -> Callable[[Made], Made]:
    """Register a network: a subclass of `vision.Classifier`, or a function that makes one.

    It is called as `made(shape, num_classes, head=..., **options)`, with (channels, height, width)
    of its inputs and the options of `--set network.NAME=VALUE`, on seeded global generators.
    """

    def add(made: Made) -> Made:
        if isinstance(made, type) and not issubclass(made, Classifier):
            raise ConfigError(f"network {name!r} must be a subclass of vision.Classifier")
        register("network", NETWORKS, name, made)
        return made

    return add


def encoder(name: str) -> Callable[[Callable[[], Encoder]], Callable[[], Encoder]]:
    """Register a frozen encoder: a function without arguments that gives a `vision` `Encoder`."""

    def add(made: Callable[[], Encoder]) -> Callable[[], Encoder]:
        register("encoder", ENCODERS, name, made)
        return made

    return add


def table(made: Table) -> Table:
    """Register a table by its own name; `runs.experiment.load_experiment` makes one of a file."""
    if made.name in domains.tables():
        raise ConfigError(f"there is a table {made.name!r} already: choose another name")
    domains.PLUGGED[made.name] = made
    return made


def _check_selection(name: str, made: type) -> None:
    if not is_dataclass(made) or not made.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # unknown to the type checker
        raise ConfigError(
            f"selection {name!r} must be a frozen dataclass, for its fields belong to a run's "
            "identity: put @dataclass(frozen=True) below @selection"
        )
    missing = [member for member in MEMBERS if not hasattr(made, member)]
    if missing:
        raise ConfigError(f"selection {name!r} lacks {', '.join(missing)}, see replay.Selection")


def _check_settings(owner: str, settings: dict[str, Any]) -> None:
    try:
        VisionConfig.check_names(settings)
    except ConfigError as error:
        raise ConfigError(f"{owner}: {error}") from error
