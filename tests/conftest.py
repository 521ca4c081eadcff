"""No test reaches the network, and property tests check the same examples at every run."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from sphere_replay.sandbox import Limits, Sandbox
from sphere_replay.sandbox.isolation import ISOLATIONS, missing

os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when the hub client is imported

settings.register_profile(
    "same examples, any time",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("same examples, any time")


def pytest_collection_finish() -> None:
    """Modules stay: every training of transformers would look through them for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _shared_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What takes long to make, such as a policy, is made once for all workers of a session."""
    base = tmp_path_factory.getbasetemp()
    workers = "PYTEST_XDIST_WORKER" in os.environ
    os.environ["SPHERE_TESTS_HOME"] = str((base.parent if workers else base) / "shared")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """The sandbox that a user gets without asking for anything; starting one takes its time."""
    if all(missing(name) for name in ISOLATIONS):
        pytest.skip("this machine offers no isolation")
    with Sandbox(limits=Limits(wall=20.0)) as shared:
        yield shared
