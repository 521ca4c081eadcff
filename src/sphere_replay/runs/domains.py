"""The domains that runs belong to: what the experiments know of each, loaded when first asked for.

A domain brings its configurations, presets and jobs; folders, sweeps, tables and figures are shared
and know nothing else of it. Each needs an extra of its own, so none is imported before its turn.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sphere_replay.errors import ConfigError, unknown
from sphere_replay.reports.tables import Seed
from sphere_replay.runs.runner import Job, LoopingJob


class RunConfig(Protocol):
    """A resolved run, as a frozen dataclass."""

    DOMAIN: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seed(self) -> int:
        """Fixes everything random."""
        ...

    @property
    def host(self) -> str:
        """The learner."""
        ...

    @property
    def select(self) -> str:
        """How memories are chosen."""
        ...

    @property
    def run_name(self) -> str:
        """Readable stem of the run's folder."""
        ...

    @property
    def pair(self) -> Seed:
        """What two runs must share to be compared as a pair."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; their digest is the run's identity."""
        ...


MakeJob = Callable[[Any, Path | None, Path, bool], Job | LoopingJob]
"""Configuration, folder of data, folder of runs, whether to show progress of loading."""


@dataclass(frozen=True)
class Domain:
    """What a domain offers to experiments."""

    presets: tuple[str, ...]
    resolve: Callable[..., RunConfig]
    """Preset and settings to a full configuration."""
    provenance: Callable[[Any, str], str]
    """Where a setting's value comes from, if not from the paper."""
    make_job: MakeJob


def _vision() -> Domain:
    from sphere_replay.vision.presets import names, provenance, resolve

    def make_job(config: Any, data: Path | None, out: Path, progress: bool) -> Job:
        from sphere_replay.vision.datasets import load_images
        from sphere_replay.vision.job import VisionJob
        from sphere_replay.vision.kept_streams import keep_stream

        job = VisionJob(config, load_images(config.dataset, data, progress=progress))
        keep_stream(job.stream, out)
        return job

    return Domain(tuple(names()), resolve, provenance, make_job)


def _instruct() -> Domain:
    from sphere_replay.instruct.presets import names, provenance, resolve

    def make_job(config: Any, data: Path | None, out: Path, progress: bool) -> Job:
        from sphere_replay.instruct.job import run_instruct_job

        return run_instruct_job(config, data, out, progress)

    return Domain(tuple(names()), resolve, provenance, make_job)


def _coding() -> Domain:
    from sphere_replay.coding.presets import names, provenance, resolve

    def make_job(config: Any, data: Path | None, out: Path, progress: bool) -> LoopingJob:
        from sphere_replay.coding.job import run_coding_job

        return run_coding_job(config, data, out, progress)

    return Domain(tuple(names()), resolve, provenance, make_job)


_LOADERS = {"vision": _vision, "instruct": _instruct, "coding": _coding}


@cache
def domain(name: str) -> Domain:
    """The domain of a name."""
    return _LOADERS[name]()


def domains() -> Iterator[Domain]:
    """All of them."""
    return (domain(name) for name in _LOADERS)


def domain_of(preset: str) -> Domain:
    """The domain that has a preset."""
    for candidate in domains():
        if preset in candidate.presets:
            return candidate
    raise ConfigError(unknown("preset", preset, all_presets()))


def resolve(preset: str, **settings: Any) -> RunConfig:
    """The full configuration of a preset of any domain."""
    return domain_of(preset).resolve(preset, **settings)


def all_presets() -> list[str]:
    """The presets of every domain."""
    return [preset for candidate in domains() for preset in candidate.presets]
