"""Allocations by an earlier source tree, to be timed in turns with those of this one.

A process cannot import two versions of a package: the earlier one has a process of its own, which
is told by a line when to allocate and says by a line that it has.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.inputs import inputs
from sphere_replay.errors import UsageError

_HERE = Path(__file__).resolve().parent.parent


@contextmanager
def allocations(tree: Path, size: int, dim: int) -> Iterator[Callable[[], None]]:
    """A call that has the tree allocate m memories of d features with `Sphere.vision()`."""
    task = json.dumps({"size": size, "dim": dim, "threads": torch.get_num_threads()})
    path = os.pathsep.join([str(tree.resolve()), str(_HERE), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import _serve; _serve()", task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, told = process.stdin, process.stdout
        source = told.readline().strip()
        if not source or not Path(source).is_relative_to(tree.resolve()):
            raise UsageError(
                f"--before {tree}: python imports sphere_replay from {source or 'nowhere'} there; "
                "give the folder that holds sphere_replay/, usually src"
            )

        def call() -> None:
            asked.write("\n")
            if not told.readline():
                raise RuntimeError(f"an allocation by {tree} failed: see above")

        yield call


def described(tree: Path) -> str:
    """Which commit a tree is of, or else what its folder is called."""
    log = ["git", "-C", str(tree), "log", "-1", "--format=commit %h of %as"]
    found = subprocess.run(log, capture_output=True, text=True, check=False).stdout.strip()
    return found or tree.name


def _serve() -> None:
    """The other end of `allocations`: says where it is from, then allocates whenever it is told."""
    import sphere_replay
    from sphere_replay.allocation import Sphere, allocate

    task = json.loads(sys.argv[1])
    torch.set_num_threads(task["threads"])
    increments, features = inputs(task["size"], task["dim"])
    recipe = Sphere.vision()
    print(Path(sphere_replay.__file__).resolve(), flush=True)
    for _ in sys.stdin:
        allocate(increments, features, recipe)
        print(flush=True)
