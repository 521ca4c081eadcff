"""One sandbox for the tests of a module, and problems to examine in it."""

from collections.abc import Iterator

import pytest

from sphere_replay.sandbox import Limits, Sandbox
from sphere_replay.sandbox.isolation import ISOLATIONS, missing


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    if all(missing(name) for name in ISOLATIONS):
        pytest.skip("this machine offers no isolation")
    with Sandbox(limits=Limits(wall=20.0)) as shared:
        yield shared
