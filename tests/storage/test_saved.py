"""A tree in a pair of files: back as it was, or an error that says why not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sphere_replay.errors import DataError
from sphere_replay.storage.saved import load_tree, save_tree
from states import spelled


def tree(value: int) -> dict[str, Any]:
    return {
        "x": torch.full((3,), value),
        "empty": torch.zeros(0, 2),
        "nested": {"none": None, 7: (1, 0.5, "text"), "more": [torch.tensor(value), float("inf")]},
    }


def test_head_and_tree_come_back(tmp_path: Path) -> None:
    save_tree(tmp_path, "state", tree(1), head={"arguments": {"alpha": 0.5, "sizes": (1, 2)}})
    head, loaded = load_tree(tmp_path, "state")
    assert head == {"arguments": {"alpha": 0.5, "sizes": [1, 2]}}
    assert spelled(loaded) == spelled(tree(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.json", "state.safetensors"]


def test_a_head_is_not_needed_and_names_do_not_meet(tmp_path: Path) -> None:
    save_tree(tmp_path, "one", tree(1))
    save_tree(tmp_path, "two", tree(2))
    save_tree(tmp_path, "one", tree(3))
    for name, value in (("one", 3), ("two", 2)):
        head, loaded = load_tree(tmp_path, name)
        assert head == {}
        assert spelled(loaded) == spelled(tree(value))


def test_the_files_are_the_same_bytes_for_equal_trees(tmp_path: Path) -> None:
    save_tree(tmp_path, "one", tree(1), head={"seed": 0})
    save_tree(tmp_path, "two", tree(1), head={"seed": 0})
    for kind in ("json", "safetensors"):
        one, two = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("one", "two"))
        assert one == two


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"state\.json does not exist: nothing was saved"):
        load_tree(tmp_path, "state")
    save_tree(tmp_path, "state", tree(1))
    (tmp_path / "state.safetensors").unlink()
    with pytest.raises(DataError, match=r"state\.safetensors is missing"):
        load_tree(tmp_path, "state")


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_every_kind_of_damage_is_noticed(kind: str, tmp_path: Path) -> None:
    save_tree(tmp_path, "state", tree(1), head={"seed": 0})
    path = tmp_path / f"state.{kind}"
    content = path.read_bytes()
    for index in range(len(content)):
        path.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
        with pytest.raises(DataError, match=r"state\.(json|safetensors) (is|has) "):
            load_tree(tmp_path, "state")
    for part in (b"", content[:-1], content + b" " if kind == "safetensors" else b"[]"):
        path.write_bytes(part)
        with pytest.raises(DataError, match=rf"state\.{kind} (is damaged|has \d+ bytes)"):
            load_tree(tmp_path, "state")


def test_a_newer_format_is_not_guessed_at(tmp_path: Path) -> None:
    save_tree(tmp_path, "state", tree(1))
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(DataError, match=r"has format 2, this version reads 1: update"):
        load_tree(tmp_path, "state")


class Crash(BaseException):
    """Stands for kill -9."""


@pytest.mark.parametrize("again", [False, True])
def test_a_save_cut_short_is_never_taken_for_a_whole_one(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each fsync and rename: the old tree, the new one, or an error; no mixture."""
    expected = {spelled(tree(value)) for value in (1, 2)}
    crashes = refused = 0
    for operation in range(100):
        folder = tmp_path / str(operation)
        folder.mkdir()
        if again:
            save_tree(folder, "state", tree(1))
        left = operation
        finished = True

        def counted(original: Any) -> Any:
            def call(*arguments: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Crash
                left -= 1
                return original(*arguments)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", counted(os.fsync))
            patch.setattr(os, "replace", counted(os.replace))
            try:
                save_tree(folder, "state", tree(2))
            except Crash:
                finished = False
        assert not list(folder.glob("*.tmp"))
        try:
            assert spelled(load_tree(folder, "state")[1]) in expected
        except DataError:
            refused += 1
            assert not finished
        crashes += not finished
        if finished:
            break
    assert crashes == 6  # two files: content, rename and folder of each
    assert refused == (3 if again else 5)


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="x is a set"):
        save_tree(tmp_path, "state", {"x": {1}})
    with pytest.raises(TypeError, match=r"head\.x is a Tensor"):
        save_tree(tmp_path, "state", tree(1), head={"x": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []
