"""The log: torn lines, resuming, and what may differ between two runs."""

import math
from pathlib import Path

import pytest
import torch

from sphere_replay.runs.log import RunLog, read_log


def _write(path: Path, first: int, last: int, position: int = 0) -> int:
    with RunLog(path, position=position) as log:
        for step in range(first, last):
            log.append({"step": step, "loss": 1 / (step + 1)}, seconds={"step": 0.1 * step})
        return log.sync()


def test_lines_come_back_with_times_apart(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert _write(path, 0, 3) == 3
    lines = read_log(path)
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[2]["loss"] == 1 / 3
    assert lines[2]["time"]["step"] == 0.2
    assert lines[2]["time"]["unix"] > 1.6e9
    assert read_log(path, times=False)[0] == {"step": 0, "loss": 1.0}


def test_a_line_is_on_its_way_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.append({"step": 0})
        assert len(read_log(path)) == 1


@pytest.mark.parametrize("tail", [b"", b'{"step": 5, "lo', b'{"step": 5}', b"\xff\xfe"])
def test_a_torn_last_line_is_no_line(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "log.jsonl"
    _write(path, 0, 5)
    with path.open("ab") as file:
        file.write(tail)
    assert [line["step"] for line in read_log(path)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("tail", [b"", b'{"step": 5, "lo'])
def test_resuming_continues_the_log_of_an_uninterrupted_run(tmp_path: Path, tail: bytes) -> None:
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    _write(whole, 0, 9)
    position = _write(killed, 0, 3)  # the checkpoint
    _write(killed, 3, 5, position)  # lost with the kill
    with killed.open("ab") as file:
        file.write(tail)
    assert _write(killed, 3, 9, position) == 9
    assert read_log(killed, times=False) == read_log(whole, times=False)


def test_starting_again_empties_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    _write(path, 0, 5)
    RunLog(path).close()
    assert path.read_bytes() == b""


def test_a_log_shorter_than_its_checkpoint_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    _write(path, 0, 2)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"has 2 complete lines, but .* after 3"):
        RunLog(path, position=3)
    assert path.read_bytes() == before


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 0, "time": {}}\n{"st\n{"step": 2, "time": {}}\n')
    with pytest.raises(ValueError, match="line 2 is damaged"):
        read_log(path)


def test_losses_that_are_not_finite_are_spelled_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.append({"loss": math.nan, "quantiles": [1.0, math.inf, -math.inf]})
    assert read_log(path, times=False) == [{"loss": "nan", "quantiles": [1.0, "inf", "-inf"]}]


def test_what_a_line_cannot_hold_is_refused(tmp_path: Path) -> None:
    with RunLog(tmp_path / "log.jsonl") as log:
        with pytest.raises(ValueError, match="seconds="):
            log.append({"time": 3.0})
        with pytest.raises(TypeError, match=r"log\.loss is a Tensor.*\.item\(\)"):
            log.append({"loss": torch.tensor(1.0)})
        assert log.sync() == 0
