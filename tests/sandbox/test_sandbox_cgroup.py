"""Control groups: found where they are handed on, limited run by run, absent where not allowed."""

import subprocess
from pathlib import Path

import pytest

from sphere_replay.sandbox import Limits
from sphere_replay.sandbox.cgroup import ControlGroup


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
