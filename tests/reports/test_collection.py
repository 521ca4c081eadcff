"""Saved results: what a file keeps when more comes to it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sphere_replay.cli import main
from sphere_replay.reports.collection import (
    OtherProtocolError,
    from_entries,
    load_collection,
    marked,
    save_collection,
    unsealed,
)
from sphere_replay.runs.domains import tables
from sphere_replay.runs.intact import blaming
from sphere_replay.storage.checksums import EditedError, sealed


def runs(column: str, *seeds: int, accuracy: float = 0.5) -> list[dict[str, Any]]:
    return [
        {"method": "ER", "column": column, "seed": seed, "metrics": {"accuracy": accuracy}}
        for seed in seeds
    ]


def written(folder: Path, part: dict[str, Any]) -> Path:
    """A file with one run, which has a part of another making."""
    entries = [entry | part for entry in runs("20%", 0)]
    content = {"table": "digits", "command": "", "protocol": {}, "runs": entries}
    (folder / "x.json").write_text(json.dumps(content))
    return folder / "x.json"


def test_a_table_is_filled_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    save_collection(path, "digits", "sweep --columns 20%", {"preset": "digits"}, runs("20%", 0, 1))
    save_collection(path, "digits", "sweep --columns 40%", {"preset": "digits"}, runs("40%", 0))
    saved = load_collection(path).runs
    assert saved == [sealed(run) for run in runs("20%", 0, 1) + runs("40%", 0)]
    assert json.loads(path.read_text())["command"] == "sweep --columns 20% && sweep --columns 40%"


def test_a_run_that_is_made_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    save_collection(path, "digits", "sweep --seeds 2", {}, runs("20%", 0, 1))
    save_collection(path, "digits", "sweep --seeds 3", {}, runs("20%", 0, 1, 2, accuracy=0.6))
    saved = load_collection(path).runs
    assert saved == [sealed(run) for run in runs("20%", 0, 1, 2, accuracy=0.6)]
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
    with pytest.raises(ValueError, match=r"other\.json is (damaged|not a file of)"):
        load_collection(path)


class TestEdited:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "digits.json"
        save_collection(path, "digits", "sweep", {}, runs("20%", 0, 1))
        edited = path.read_text().replace('"accuracy": 0.5', '"accuracy": 0.9', 1)
        path.write_text(edited)
        return path

    def test_an_edited_entry_is_named_and_refused(self, path: Path) -> None:
        with pytest.raises(
            EditedError, match=r"digits\.json, run 1 \(ER, 20%, seed 0\) was edited"
        ):
            load_collection(path)
        with pytest.raises(EditedError):
            save_collection(path, "digits", "sweep", {}, runs("40%", 0))

    def test_accepted_it_is_marked(self, path: Path) -> None:
        found = from_entries(load_collection(path, accept_edited=True).runs)
        assert [run.edited for run in found] == [True, False]
        assert "EDITED: 1 runs" in marked(tables()["digits"], found).title

    def test_one_from_before_checksums_is_read(self, tmp_path: Path) -> None:
        content = {"table": "digits", "command": "", "protocol": {}, "runs": runs("20%", 0)}
        (tmp_path / "old.json").write_text(json.dumps(content))
        saved = load_collection(tmp_path / "old.json")
        assert unsealed(saved.runs) == 1
        assert not from_entries(saved.runs)[0].edited

    @pytest.mark.parametrize("accuracy", [46.094, -2, "0.5", True, float("inf"), [0.5]])
    def test_a_metric_out_of_range_is_named(self, tmp_path: Path, accuracy: Any) -> None:
        path = written(tmp_path, {"metrics": {"accuracy": accuracy}})
        with pytest.raises(
            ValueError, match=r"x\.json, run 1 is damaged: accuracy = .* in \[-1, 1\]"
        ):
            load_collection(path)

    def test_a_cost_beyond_all_arithmetic_is_named(self, tmp_path: Path) -> None:
        path = written(tmp_path, {"costs": {"forward": 1e308}})
        with pytest.raises(ValueError, match=r"costs\.forward should be a finite number, got 1e"):
            load_collection(path)

    def test_a_number_that_no_tensor_takes_is_the_files_fault(self) -> None:
        with pytest.raises(ValueError, match=r"x\.json is damaged: "), blaming("x.json"):
            torch.tensor([10**30], dtype=torch.int64)

    @pytest.mark.parametrize(
        "code", [{}, "1.0", {"version": [], "commit": None, "digest": "x"}], ids=str
    )
    def test_code_that_nothing_can_be_made_of_is_named(self, tmp_path: Path, code: Any) -> None:
        path = written(tmp_path, {"code": code})
        with pytest.raises(ValueError, match=r"x\.json, run 1 is damaged: .*version, commit and"):
            load_collection(path)
