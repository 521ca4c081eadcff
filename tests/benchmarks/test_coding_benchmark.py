"""The benchmark of code generation: its parts are an update, and the allocation is little of it."""

from dataclasses import replace

import pytest

from benchmarks import coding, harness
from coding.brief import BRIEF, home
from sphere_replay.coding.models import load_policy
from told import Told


def test_shares_of_an_update_add_up_and_the_allocation_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = home() / "models"
    monkeypatch.setattr(coding, "load_policy", lambda config, _: load_policy(config, models))
    progress = Told()
    quick = replace(coding.BENCHMARK.quick, warm_up=BRIEF["warm_up"])
    report = harness.measure("coding", coding.BENCHMARK, quick, progress, quick=True)
    shares = {cell["figure"]: cell["share"] for cell in report.cells}
    assert tuple(shares) == coding.PARTS
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(share >= 0 for share in shares.values())
    assert shares["execute"] > shares["allocate"] > 0
    (target,) = report.targets
    assert (target.measured, target.relation, target.required) == (
        shares["allocate"],
        "at most",
        0.01,
    )
    assert progress.told[0] == (0, 1, "building the policy")
    updates = [told for told in progress.told if told[2] == "updates"]
    assert [done for done, _, _ in updates] == list(range(updates[0][1]))
