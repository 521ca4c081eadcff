"""Sandboxes that the tests of a module share: starting one takes longer than most tests."""

from collections.abc import Iterator

import pytest

from sphere_replay.sandbox import Limits, Sandbox
from sphere_replay.sandbox.isolation import ISOLATIONS, missing


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    """Each isolation that this machine offers."""
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    return str(request.param)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """The sandbox that a user gets without asking for anything."""
    if all(missing(name) for name in ISOLATIONS):
        pytest.skip("this machine offers no isolation")
    with Sandbox(limits=Limits(wall=20.0)) as shared:
        yield shared
