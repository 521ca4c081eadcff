"""What is loaded, and when: the front door needs Python alone, listing and showing need torch."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import sphere_replay
from sphere_replay.cli import COMMANDS
from sphere_replay.sandbox.isolation import ISOLATIONS, missing

SOURCE = Path(sphere_replay.__file__).parents[1]
MAIN = "from sphere_replay.cli import main; code = main(sys.argv[1:])"
FORKED = """
import io, json, os, warnings
with warnings.catch_warnings(action="ignore"):  # of NumPy, which is not there
    import torch
from contextlib import redirect_stderr, redirect_stdout
for line in sys.argv[1:]:
    sys.stdout.flush()
    if not os.fork():
        from sphere_replay.cli import main
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            try:
                code = main(line.split())
            except SystemExit as stop:
                code = stop.code or 0
        print(json.dumps([line, code, out.getvalue(), err.getvalue(), list(sys.modules)]))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
"""Commands after an import of torch that they share, each in a process of its own."""
ASKS_THE_DOMAINS = ("show", "run", "search")
"""Commands whose options are partly the domains' own."""
SHOWN = {
    "ls": "instruct-tiny  coding-qwen",
    "show mnist --host xder": "  eta  ",
    "show coding-micro --json": '"model": "micro"',
}
FRONT = {"sphere_replay", "sphere_replay.cli", "sphere_replay.errors", "sphere_replay.extras"}


@dataclass(frozen=True)
class Ended:
    """An interpreter that has ended: what it printed, and the modules it had loaded by then."""

    code: int
    out: str
    err: str
    modules: set[str]

    @property
    def ours(self) -> set[str]:
        return {name for name in self.modules if name.partition(".")[0] == "sphere_replay"}


def python(script: str, *words: str, folder: Path | None = None) -> Ended:
    """Run a script where only the standard library, this package and a folder can be imported."""
    paths = [str(path) for path in (SOURCE, folder) if path]
    start = (
        f"import atexit, sys; sys.path += {paths}; code = 0\n"
        "atexit.register(lambda: print('\\n', *sys.modules))\n"
        f"{script}\nsys.exit(code)"
    )
    command = [sys.executable, "-I", "-S", "-c", start, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    out, _, modules = done.stdout.rpartition("\n\n")
    return Ended(done.returncode, out, done.stderr, set(modules.split()))


def with_requirements(name: str) -> set[str]:
    """A distribution and all that it requires on this machine, extras aside."""
    waiting, found = [name], set[str]()
    while waiting:
        name = waiting.pop()
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:  # for another platform
            continue
        if name not in found:
            found.add(name)
            needed = [line for line in lines if "extra ==" not in line]
            waiting += [re.split(r"[^\w.-]", line)[0] for line in needed]
    return found


def only(name: str, folder: Path) -> Path:
    """Fill a folder to import a distribution from, with what it requires and nothing else."""
    for entry in map(distribution, with_requirements(name)):
        for top in {file.parts[0] for file in entry.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(entry.locate_file(top))))
    return folder


@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return only("torch", tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def ended_with_torch(torch_alone: Path) -> dict[str, Ended]:
    """How commands end that load torch, by their words."""
    first, *others = [*SHOWN, *(f"{command} --help" for command in ASKS_THE_DOMAINS)]
    alone = python(MAIN, *first.split(), folder=torch_alone)  # and is not warned of NumPy
    assert "torch" in alone.modules
    forked = python(FORKED, *others, folder=torch_alone)
    assert (forked.code, forked.err) == (0, "")
    told = [json.loads(line) for line in forked.out.splitlines()]
    return {first: alone} | {
        line: Ended(code, out, err, set(names)) for line, code, out, err, names in told
    }


def test_importing_the_package_loads_nothing() -> None:
    assert python("import sphere_replay").ours == {"sphere_replay"}


def test_public_names_need_torch_alone(torch_alone: Path) -> None:
    ended = python("from sphere_replay import *; allocate, Sphere", folder=torch_alone)
    assert (ended.code, "torch" in ended.modules) == (0, True)
    assert not [name for name in ended.ours if re.search(r"\.(runs|hosts|vision|cli)\b", name)]


def test_public_names_are_seen_and_others_refused() -> None:
    assert set(sphere_replay.__all__) <= set(dir(sphere_replay))
    for name in sphere_replay.__all__:
        assert getattr(sphere_replay, name)
    with pytest.raises(AttributeError, match="has no attribute 'Spheer'"):
        getattr(sphere_replay, "Spheer")  # noqa: B009  # a type checker knows that it is not there


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_the_front_door_needs_python_alone(word: str) -> None:
    ended = python(MAIN, word)
    assert (ended.code, ended.err) == (0, "")
    assert ended.ours == FRONT


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_explains_itself_with_torch_at_most(
    command: str, torch_alone: Path, request: pytest.FixtureRequest
) -> None:
    if command in ASKS_THE_DOMAINS:
        ended = request.getfixturevalue("ended_with_torch")[f"{command} --help"]
    else:
        ended = python(MAIN, command, "--help", folder=torch_alone)
        assert "torch" not in ended.modules
    assert (ended.code, ended.err) == (0, "")
    assert "Example" in ended.out
    commands = {name for name in ended.ours if name.startswith("sphere_replay.cli.commands.")}
    assert commands == {f"sphere_replay.cli.commands.{command}"}


@pytest.mark.parametrize("words", SHOWN)
def test_listing_and_showing_need_torch_alone(
    words: str, ended_with_torch: dict[str, Ended]
) -> None:
    ended = ended_with_torch[words]
    assert (ended.code, ended.err) == (0, "")
    assert SHOWN[words] in ended.out
    command = words.partition(" ")[0]
    running = rf"\.(session|trainer|learner|vision\.job|sweep|commands\.(?!{command}$))\b"
    assert not [name for name in ended.ours if re.search(running, name)]


def test_a_broken_numpy_is_not_hushed_up() -> None:
    script = "import warnings; warnings.warn('Failed to initialize NumPy: it is broken')"
    assert "it is broken" in python(f"{MAIN}; {script}", "ls").err


@pytest.mark.skipif(all(missing(name) for name in ISOLATIONS), reason="no isolation here")
def test_the_sandbox_is_checked_with_torch_alone_and_proved_with_pytest_alone(
    tmp_path: Path, torch_alone: Path
) -> None:
    fewer = "from sphere_replay.sandbox import battery as b; every = b.battery"
    fewer += "; b.battery = lambda facts: every(facts)[:3]"
    ended = python(f"{fewer}; {MAIN}", "sandbox", "check", folder=only("pytest", tmp_path))
    assert (ended.code, ended.err) == (0, "")
    assert "contains 3 of 3 hostile programs" in ended.out
    ended = python(MAIN, "sandbox", "check", folder=torch_alone)
    assert (ended.code, ended.err) == (0, "")
    assert "starts here; proof: this needs pytest: pip install 'sphere-replay[c" in ended.out
    ended = python(MAIN, "sandbox", "run", __file__, __file__, folder=torch_alone)
    assert ended.code == 2
    assert ended.err == "sphere: this needs pytest: pip install 'sphere-replay[coding]'\n"
