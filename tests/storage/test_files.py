"""Files and folders that are there whole, or not at all."""

from pathlib import Path

import pytest

from sphere_replay.storage.files import entry_name, replacing, write_atomically


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"old", b"new"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_on_the_way_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_takes_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "content").write_text("whole")
        assert not path.exists()
    assert (path / "content").read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_names_of_entries_depend_on_the_origin_and_stay_what_they_were() -> None:
    assert entry_name("mnist", [1, "mnist", "hub:ylecun/mnist"]) == "mnist-03da996a0c5e5181"
    assert entry_name("entry", {"b": 1, "a": 2}) == entry_name("entry", {"a": 2, "b": 1})
    assert entry_name("entry", {"a": 1}) != entry_name("entry", {"a": 2})
