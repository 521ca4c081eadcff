"""Files and folders that are there whole, or not at all."""

import multiprocessing
from pathlib import Path

import pytest

from sphere_replay.storage.files import cached_folder, entry_name, replacing, write_atomically


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


def _build_slowly(home: Path, queue: "multiprocessing.Queue[str]") -> None:
    def build(folder: Path) -> None:
        with open(home / "built", "a") as record:
            record.write("x")
        (folder / "content").write_text("whole")

    queue.put(str(cached_folder(home, "entry", {"a": 1}, build)))


def test_two_processes_that_start_at_once_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_build_slowly, args=(tmp_path, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    folders = {queue.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(folders) == 1
    assert (tmp_path / "built").read_text() == "x"
    assert (Path(folders.pop()) / "content").read_text() == "whole"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        cached_folder(tmp_path, "entry", {}, fail)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
