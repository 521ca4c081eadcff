"""Saved results: what a file keeps when more comes to it."""

import json
from pathlib import Path
from typing import Any

import pytest

from sphere_replay.cli import main
from sphere_replay.reports.collection import (
    OtherProtocolError,
    load_collection,
    save_collection,
)


def runs(column: str, *seeds: int, accuracy: float = 0.5) -> list[dict[str, Any]]:
    return [
        {"method": "ER", "column": column, "seed": seed, "metrics": {"accuracy": accuracy}}
        for seed in seeds
    ]


def test_a_table_is_filled_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    save_collection(path, "digits", "sweep --columns 20%", {"preset": "digits"}, runs("20%", 0, 1))
    save_collection(path, "digits", "sweep --columns 40%", {"preset": "digits"}, runs("40%", 0))
    assert load_collection(path).runs == runs("20%", 0, 1) + runs("40%", 0)
    assert json.loads(path.read_text())["command"] == "sweep --columns 20% && sweep --columns 40%"


def test_a_run_that_is_made_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    save_collection(path, "digits", "sweep --seeds 2", {}, runs("20%", 0, 1))
    save_collection(path, "digits", "sweep --seeds 3", {}, runs("20%", 0, 1, 2, accuracy=0.6))
    assert load_collection(path).runs == runs("20%", 0, 1, 2, accuracy=0.6)
    assert json.loads(path.read_text())["command"] == "sweep --seeds 3"


def test_a_command_that_is_repeated_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    for column in ("20%", "40%", "20%"):
        save_collection(path, "digits", f"sweep {column}", {}, runs(column, 0))
    assert json.loads(path.read_text())["command"] == "sweep 20% && sweep 40%"


@pytest.mark.parametrize(
    ("table", "protocol"),
    [("mnist", {"preset": "digits"}), ("digits", {"preset": "digits", "lr": 1})],
)
def test_other_tables_and_protocols_are_not_mixed(
    tmp_path: Path, table: str, protocol: dict[str, Any]
) -> None:
    path = tmp_path / "table.json"
    save_collection(path, "digits", "sweep", {"preset": "digits"}, runs("20%", 0))
    before = path.read_bytes()
    with pytest.raises(
        OtherProtocolError, match=rf"holds table digits \(preset digits\), not table {table}"
    ):
        save_collection(path, table, "sweep", protocol, runs("40%", 0))
    assert path.read_bytes() == before


def test_a_sweep_is_refused_before_it_starts_if_its_results_do_not_fit_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.json"
    save_collection(path, "digits", "sweep", {"preset": "digits"}, runs("20%", 0))
    words = ["sweep", "digits", "--set", "lr=0.2", "--out", str(tmp_path / "runs"), "--save"]
    assert main([*words, str(path)]) == 2
    assert "preset digits, lr 0.2): save to another file" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", ["[1]", "{", '{"runs": []}', '{"x": 1}'])
def test_a_file_of_something_else_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json is not a file of `sphere sweep --save`"):
        load_collection(path)
