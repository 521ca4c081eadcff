"""The smallest runs that still learn, replay and are judged."""

import os
from pathlib import Path
from typing import Any

from sphere_replay.coding.config import CodingConfig
from sphere_replay.coding.job import CodingJob, make_job
from sphere_replay.coding.presets import resolve

BRIEF: dict[str, Any] = {
    "stages": "text,choices",
    "train": 4,
    "evaluation": 3,
    "batch": 4,
    "generations": 4,
    "micro_batch": 8,
    "capacity": 8,
    "pool": 3,
    "replay_batch": 4,
    "warm_up": 120,
}


def home() -> Path:
    """Models and verdicts that the tests of a session share."""
    return Path(os.environ["SPHERE_TESTS_HOME"])


def brief(select: str = "uniform", host: str = "er", **overrides: Any) -> CodingConfig:
    return resolve("coding-micro", host, select, **BRIEF | overrides)


def job_of(config: CodingConfig) -> CodingJob:
    return make_job(config, None, home())
