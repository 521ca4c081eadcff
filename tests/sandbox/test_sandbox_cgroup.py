"""Control groups: found where they are handed on, limited run by run, absent where not allowed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sphere_replay.sandbox import Limits
from sphere_replay.sandbox.cgroup import ControlGroup
from sphere_replay.sandbox.sandbox import tried


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Path]:
    """A tree of groups as the kernel shows it, and where this process is in it."""
    root, own = tmp_path / "groups", tmp_path / "own"
    leaf = root / "user" / "app" / "leaf"
    leaf.mkdir(parents=True)
    for folder, controllers in ((root, "cpu memory pids"), (root / "user", "memory pids")):
        (folder / "cgroup.subtree_control").write_text(controllers)
    (root / "user" / "app" / "cgroup.subtree_control").write_text("cpu")
    own.write_text("4:memory:/old\n0::/user/app/leaf\n")
    return root, own


@pytest.fixture
def real() -> Iterator[ControlGroup]:
    """A group of this machine's kernel, that allows 64 MiB and ten processes."""
    group = ControlGroup.make()
    if group is None:
        pytest.skip("no control group of version 2 may be made here")
    group.limit(Limits(memory=1 << 26, processes=4))
    yield group
    group.close()
    assert not group.folder.exists()


def made(tree: tuple[Path, Path]) -> tuple[ControlGroup, Path]:
    group = ControlGroup.make(*tree)
    assert group is not None
    (folder,) = (tree[0] / "user").glob("sphere-*")
    return group, folder


def test_it_lies_in_the_nearest_folder_that_hands_memory_on(tree: tuple[Path, Path]) -> None:
    _, folder = made(tree)
    assert folder.is_dir()
    (tree[0] / "user" / "cgroup.subtree_control").write_text("cpu")
    assert ControlGroup.make(*tree) is not None
    assert len(list(tree[0].glob("sphere-*"))) == 1


def test_none_without_the_second_version_or_the_right_to(tree: tuple[Path, Path]) -> None:
    root, own = tree
    assert ControlGroup.make(root, root / "none") is None
    own.write_text("4:memory:/old\n")
    assert ControlGroup.make(root, own) is None
    own.write_text("0::/user/app/leaf\n")
    for folder in (root, root / "user"):
        (folder / "cgroup.subtree_control").write_text("cpu")
    assert ControlGroup.make(root, own) is None


def test_limits_are_those_of_the_run_and_what_the_worker_holds(tree: tuple[Path, Path]) -> None:
    group, folder = made(tree)
    (folder / "memory.current").write_text("1000\n")
    (folder / "pids.current").write_text("3\n")
    group.settle()
    group.limit(Limits(memory=1 << 26, processes=8))
    assert (folder / "memory.max").read_text() == str((1 << 26) + 1000)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "21"
    assert group.kills() == 0
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.kills() == 2


def test_a_command_joins_before_it_starts(tree: tuple[Path, Path]) -> None:
    group, folder = made(tree)
    ended = subprocess.run(group.joined(["echo", "a b"]), capture_output=True, text=True)
    assert ended.stdout == "a b\n"
    assert (folder / "cgroup.procs").read_text().strip().isdigit()


def test_it_is_removed(tree: tuple[Path, Path]) -> None:
    group, folder = made(tree)
    group.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("size", "code", "kills"), [(1 << 25, 0, 0), (1 << 27, -9, 1)], ids=["below", "beyond"]
)
def test_the_kernel_kills_who_needs_more(
    real: ControlGroup, size: int, code: int, kills: int
) -> None:
    program = (
        f"import mmap\nm = mmap.mmap(-1, {size})\nwhile m.tell() < {size}: m.write(bytes(4096))"
    )
    assert subprocess.run(real.joined([sys.executable, "-c", program])).returncode == code
    assert real.kills() == kills


def test_the_kernel_counts_processes(real: ControlGroup) -> None:
    program = (
        "import os, time\n"
        "for made in range(20):\n"
        "    try:\n"
        "        os.fork() or (time.sleep(5), os._exit(0))\n"
        "    except BlockingIOError:\n"
        "        break\n"
        "print(made)"
    )
    ended = subprocess.run(
        real.joined([sys.executable, "-c", program]), capture_output=True, text=True
    )
    assert ended.stdout == "9\n"


def test_a_worker_says_that_it_lives_in_one(real: ControlGroup, isolation: str) -> None:
    worker = tried(isolation)
    try:
        assert "control group" in worker.memory
        hungry = b"import os, time\nos.fork()\nheld = b'x' * (48 << 20)\ntime.sleep(5)\n"
        tests = "import solution\n\ndef test_nothing():\n    pass\n"
        answer = worker.ask(hungry, tests, None, Limits(memory=1 << 26))
        assert answer["ending"] == "memory"
    finally:
        worker.close()
