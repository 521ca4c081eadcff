"""The benchmark of code generation: its parts are an update, and the allocation is little of it."""

import argparse
import json

import pytest

from benchmarks import coding


def test_shares_of_an_update_add_up_and_the_allocation_is_small() -> None:
    told: list[str] = []
    report = coding.measure(
        argparse.Namespace(quick=True), lambda done, total, label: told.append(label)
    )
    shares = {cell["part"]: float(str(cell["share"])) for cell in report.cells}
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
    assert "building the policy" in told
    assert json.dumps(report.to_json())
