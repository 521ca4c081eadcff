"""Variants side by side: means, spreads and paired gains, by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from sphere_replay.cli import main
from sphere_replay.reports.collection import from_entries, save_collection
from sphere_replay.reports.side_by_side import summarise, to_markdown


def record(method: str, seed: int, accuracy: float, mass: float | None = 1.0) -> dict[str, Any]:
    replay = {"mean_mass": mass, "noisy_lift": None, "mean_effective_sample_size": None}
    return {
        "method": method,
        "column": "40%",
        "seed": seed,
        "metrics": {"class_il": accuracy},
        "replay": replay,
    }


HOST = [record("ER", seed, accuracy) for seed, accuracy in ((0, 0.5), (1, 0.6), (2, 0.4))]
SPHERE = [record("ER + SPHERE", seed, value, 0.75) for seed, value in ((0, 0.53), (1, 0.64))]


def test_gains_are_paired_with_the_host_of_the_baseline() -> None:
    (line,) = summarise("variant", from_entries(SPHERE), from_entries(HOST))
    assert (line.variant, line.method, line.column, line.seeds) == (
        *("variant", "ER + SPHERE", "40%"),
        2,
    )
    assert line.mean == pytest.approx(58.5)
    assert line.sd == pytest.approx(5.5)
    assert line.gain == pytest.approx(3.5)  # 3 and 4 points on the two common seeds
    assert line.ci95 == pytest.approx((3.5 - 12.706 * 0.5, 3.5 + 12.706 * 0.5), abs=1e-3)
    assert (line.mass, line.noisy_lift) == (0.75, None)


def test_without_a_baseline_there_is_no_gain() -> None:
    (line,) = summarise("variant", from_entries(SPHERE))
    assert (line.gain, line.ci95) == (None, None)
    assert "| variant | ER + SPHERE | 40% | 2 | 58.5 ± 5.5 |  | 0.75 |" in to_markdown([line])


def test_the_command_reads_saved_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "variant.json"
    save_collection(saved, "digits", "sphere sweep digits", {}, SPHERE)
    assert main(["compare", str(saved), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["mean"] == pytest.approx(58.5)
    saved.write_text("[]")
    assert main(["compare", str(saved)]) == 2
    assert "variant.json is damaged" in capsys.readouterr().err
