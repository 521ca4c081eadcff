"""The isolations that the tests of a module go through."""

import pytest

from sphere_replay.sandbox.isolation import ISOLATIONS, missing


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    """Each isolation that this machine offers."""
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    return str(request.param)
