"""Checkpoints survive a crash after every single file operation, and tell damage from truth."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from sphere_replay.runs.checkpoint import CheckpointError, load_latest, save

FILES = ["checkpoint.json", "checkpoint.safetensors", "previous.json", "previous.safetensors"]


class Crash(BaseException):
    """Stands for kill -9: nothing after it runs, and no handler may catch it by accident."""


def _save(folder: Path, value: int) -> None:
    tensors = {"x": torch.full((3,), value), "y": torch.zeros(0)}
    save(folder, {**tensors, "value": value, "t": [0.1]})


def _load(folder: Path) -> int | None:
    """The value of the checkpoint; its tensors and its JSON must be of the same save."""
    found = load_latest(folder)
    if found is None:
        return None
    assert found.tree["x"].tolist() == [found.tree["value"]] * 3
    assert found.tree["t"] == [0.1]
    return int(found.tree["value"])


@contextmanager
def _crash_at(monkeypatch: pytest.MonkeyPatch, operation: int) -> Iterator[None]:
    """Crash just before the numbered fsync or replace; after the last one, not at all."""
    done = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal done
            if done == operation:
                raise Crash
            done += 1
            return original(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted(os.fsync))
        patch.setattr(os, "replace", counted(os.replace))
        yield


def _try_save(folder: Path, value: int, patch: pytest.MonkeyPatch, operation: int) -> bool:
    """Whether the save came to its end."""
    with _crash_at(patch, operation):
        try:
            _save(folder, value)
        except Crash:
            return False
    return True


def _damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    if kind == "flipped":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif kind == "truncated":
        path.write_bytes(content[:-1])
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


def test_the_newest_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    for value in range(4):
        _save(tmp_path, value)
        assert _load(tmp_path) == value
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    for name in FILES[:2]:
        (tmp_path / name).unlink()
    assert _load(tmp_path) == 2


@pytest.mark.parametrize(("saves", "damaged"), [(0, False), (1, False), (2, False), (2, True)])
def test_a_crash_after_any_operation_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int, damaged: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # counted below, not timed
    start = tmp_path / "start"
    start.mkdir()
    for value in range(saves):
        _save(start, value)
    if damaged:
        _damage(start / "checkpoint.safetensors", "flipped")
    before = _load(start)
    crashes = 0
    for first in range(100):
        once = tmp_path / f"{first}"
        shutil.copytree(start, once)
        finished = _try_save(once, 50, monkeypatch, first)
        after = _load(once)
        assert after == 50 if finished else after in (before, 50)
        # A second crash, on the way back from the first, does no harm either.
        for second in range(100):
            twice = tmp_path / f"{first}-{second}"
            shutil.copytree(once, twice)
            done = _try_save(twice, 60, monkeypatch, second)
            assert _load(twice) == 60 if done else _load(twice) in (after, 60)
            _save(twice, 70)
            assert _load(twice) == 70
            assert not list(twice.glob("*.tmp"))
            shutil.rmtree(twice)
            if done:
                break
        crashes += not finished
        if finished:
            break
    # 2 files staged, then each rename and its directory; rotating adds two renames.
    assert crashes == (6 if saves == 0 or damaged else 10)


@pytest.mark.parametrize("kind", ["flipped", "truncated", "empty", "missing"])
def test_damaged_tensors_are_noticed_and_the_previous_is_used(tmp_path: Path, kind: str) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    _damage(tmp_path / "checkpoint.safetensors", kind)
    assert _load(tmp_path) == 1
    found = load_latest(tmp_path)
    assert found is not None
    assert len(found.problems) == 1
    assert "checkpoint.safetensors" in found.problems[0]
    _save(tmp_path, 3)
    assert _load(tmp_path) == 3
    _damage(tmp_path / "checkpoint.safetensors", kind)
    assert _load(tmp_path) == 1  # the damaged 2 never took the place of the previous one


@pytest.mark.parametrize("kind", ["flipped", "truncated", "empty"])
def test_damaged_json_is_noticed(tmp_path: Path, kind: str) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    _damage(tmp_path / "checkpoint.json", kind)
    found = load_latest(tmp_path)
    assert found is not None
    assert found.tree["value"] == 1
    assert "checkpoint.json" in found.problems[0]


def test_every_flipped_bit_of_the_json_is_noticed(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    path = tmp_path / "checkpoint.json"
    content = path.read_bytes()
    for index in range(len(content)):
        path.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
        assert _load(tmp_path) == 1, index


def test_nothing_intact_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    _damage(tmp_path / "checkpoint.safetensors", "truncated")
    _damage(tmp_path / "previous.safetensors", "flipped")
    with pytest.raises(CheckpointError) as raised:
        load_latest(tmp_path)
    message = str(raised.value)
    assert "checkpoint.safetensors has" in message
    assert "previous.safetensors is damaged" in message
    assert "delete checkpoint.* and previous.*" in message


def test_half_written_temporary_files_are_ignored_and_replaced(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    for name in FILES[:2]:
        (tmp_path / f"{name}.tmp").write_bytes(b"half")
    assert _load(tmp_path) == 1
    _save(tmp_path, 2)
    assert _load(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_an_interrupted_rotation_is_no_problem_worth_reporting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path, 1)
    assert not _try_save(tmp_path, 2, monkeypatch, 3)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    found = load_latest(tmp_path)
    assert found is not None
    assert (found.tree["value"], found.problems) == (1, ())


def test_a_newer_format_is_not_guessed_at(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(CheckpointError, match="has format 2, this version reads 1"):
        load_latest(tmp_path)


def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="x is a set"):
        save(tmp_path, {"x": {1}})
    assert list(tmp_path.iterdir()) == []
