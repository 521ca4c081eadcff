"""Whether two source trees compute the same: the same runs with both, compared to the last bit.

Results must be equal apart from the identity, logs apart from times. What only the tree after has
to say is listed, as are the keys in which configurations differ: they may be spelled differently.
A run that is finished is not repeated.

Examples:
  python -m benchmarks.equality BEFORE/src AFTER/src --out DIR --data DATA
  python -m benchmarks.equality AFTER/src --before-runs DIR/before --out DIR --only vision
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphere_replay.errors import DataError, UsageError, UserError

SELECTIONS = (
    *("loss", "mir", "mir-top", "mir-matched", "sphere-identity", "sphere-consensus"),
    *("sphere-no-transport", "sphere-permuted", "sphere-no-floor"),
)
"""Of ER, beside uniform and sphere."""
SHOWN = 3
"""Places that are named where a run differs."""


@dataclass(frozen=True)
class Run:
    """One run, as both trees are asked for it."""

    preset: str
    host: str
    select: str = "uniform"
    seed: int = 0
    noise: float | None = None
    settings: tuple[str, ...] = ()
    """What `--set` is given."""

    @property
    def group(self) -> str:
        """What `--only` calls it."""
        return {"digits": "vision"}.get(self.preset, self.preset.partition("-")[0])

    def __str__(self) -> str:
        return " ".join([self.preset, self.host, self.select, f"seed {self.seed}", *self.settings])

    def words(self) -> list[str]:
        """The arguments of `sphere run`."""
        words = [self.preset, "--host", self.host, "--select", self.select]
        words += ["--seed", str(self.seed)]
        words += [] if self.noise is None else ["--noise", str(self.noise)]
        for setting in self.settings:
            words += ["--set", setting]
        return words

    def made(self, name: str, config: Mapping[str, Any]) -> bool:
        """Whether a finished folder of the tree before has the name and the values of this run."""
        asked: dict[str, Any] = {"host": self.host, "select": self.select, "seed": self.seed}
        asked |= {} if self.noise is None else {"noise": self.noise}
        asked |= {
            key: json.loads(value) for key, _, value in (s.partition("=") for s in self.settings)
        }
        return name.startswith(f"{self.preset}-") and asked == {
            key: config.get(key) for key in asked
        }


def runs() -> list[Run]:
    """Every host and selection on digits, unusual settings, and the other domains."""
    hosts = ("er", "er-ace", "der-pp", "xder", "puridiver")
    digits = [
        *itertools.product(hosts, ("uniform", "sphere")),
        *itertools.product(("none", "gdumb", "abs"), ("uniform",)),
        *itertools.product(("er",), SELECTIONS),
    ]
    mnist = [
        *itertools.product(("er", "er-ace", "der-pp"), ("uniform", "sphere", "sphere-calibrated")),
        ("er", "mir"),
    ]
    drawn = ("pool=60", "every=3", "replacement=true", "unit_mass=true")
    averaged = 'options={"select_stream": 0, "joint_batch": 1}'
    return [
        *(Run("digits", *pair, seed=3, noise=0.4) for pair in digits),
        Run("digits", "er", "sphere", 3, 0.4, drawn),
        Run("digits", "puridiver", "sphere", 3, 0.4, (averaged,)),
        *(Run("mnist", *pair, noise=0.4) for pair in mnist),
        Run("instruct-tiny", "er", "sphere"),
        Run("instruct-tiny", "er", "mir-top"),
        Run("instruct-tiny", "none"),
        Run("coding-micro", "er", "sphere"),
        Run("coding-micro", "er", "uniform", settings=("train=8", "passes=1")),
    ]


RUNS = runs()

Source = Callable[[Run], Path]
"""Finds or makes the folder of a run."""


@dataclass(frozen=True)
class Tree:
    """A source tree, whose runs are made in a process of their own."""

    source: Path
    out: Path
    data: Path | None

    def check(self) -> None:
        """Refuse a tree that is not what a process of its own would import."""
        code = "import sphere_replay; print(sphere_replay.__file__)"
        found = self._python("-c", code).stdout.strip()
        if not Path(found).resolve().is_relative_to(self.source.resolve()):
            raise UsageError(
                f"{self.source}: python imports sphere_replay from {found or 'nowhere'} instead; "
                "give the folder that holds sphere_replay/, usually src"
            )

    def __call__(self, run: Run) -> Path:
        """The folder of a run, which is made unless it is finished."""
        place = ["--out", str(self.out.resolve())]
        place += [] if self.data is None else ["--data", str(self.data.resolve())]
        words = [*run.words(), *place, "--quiet", "--json"]
        made = self._python("-m", "sphere_replay", "run", *words)
        if made.returncode != 0:
            said = made.stderr.strip().splitlines() or ["nothing was said"]
            raise DataError(f"exit code {made.returncode} with {self.source}: {said[-1]}")
        return Path(json.loads(made.stdout)["folder"])

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        self.out.mkdir(parents=True, exist_ok=True)
        # One thread: how a sum is divided among several may change its last bit.
        env = {**os.environ, "PYTHONPATH": str(self.source.resolve()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *words]
        return subprocess.run(command, env=env, cwd=self.out, capture_output=True, text=True)


def finished(folder: Path) -> Source:
    """Runs of the tree before that were made earlier, found by their configurations.

    A folder with the settings of several runs belongs to the one that asks for most.
    """
    configs = {path.parent: _json(path) for path in sorted(folder.glob("*/config.json"))}
    taken: dict[Run, list[Path]] = {}
    for path, config in configs.items():
        makers = [run for run in RUNS if run.made(path.name, config)]
        if makers and (path / "results.json").is_file():
            taken.setdefault(max(makers, key=lambda run: len(run.settings)), []).append(path)

    def find(run: Run) -> Path:
        paths = taken.get(run, [])
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths) or "none"
            raise DataError(f"{folder} should hold one finished run of this, but has {names}")
        return paths[0]

    return find


def differences(before: object, after: object, where: str = "") -> Iterator[str]:
    """Places where two values of JSON differ, as `costs.forward: 10 -> 12`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            place = f"{where}.{key}" if where else key
            yield from differences(before.get(key, _ABSENT), after.get(key, _ABSENT), place)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{where}: {len(before)} -> {len(after)} entries"
        for index, pair in enumerate(zip(before, after, strict=False)):
            yield from differences(*pair, f"{where}[{index}]")
    elif _text(before) != _text(after):  # as text: 1 is not 1.0, and NaN is NaN
        yield f"{where}: {_text(before)} -> {_text(after)}"


@dataclass(frozen=True)
class Comparison:
    """What two folders of a run have to say differently."""

    places: tuple[str, ...] = ()
    """Of results and logs: they should be equal."""
    added: tuple[str, ...] = ()
    """Names in the results and the log after that there were none of before."""
    keys: tuple[str, ...] = ()
    """Of configurations."""


def compare(before: Path, after: Path) -> Comparison:
    """Compare the folders of a run, made by two trees."""
    configs = [_json(folder / "config.json") for folder in (before, after)]
    places = [
        *differences(_results(before), _results(after), "results"),
        *differences(_log(before), _log(after), "log"),
    ]
    new = [place for place in places if _NEW in place]
    # Every line of a log may have it: its name once.
    names = (re.sub(r"\[\d+\]", "", place.partition(_NEW)[0]) for place in new)
    keys = sorted(key for key in {*configs[0], *configs[1]} if _differs(key, *configs))
    return Comparison(
        tuple(place for place in places if _NEW not in place),
        tuple(dict.fromkeys(names)),
        tuple(keys),
    )


_ABSENT = object()
_NEW = ": absent -> "


def _text(value: object) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)


def _differs(key: str, before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    return any(differences(before.get(key, _ABSENT), after.get(key, _ABSENT)))


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _results(folder: Path) -> dict[str, Any]:
    return {
        key: value for key, value in _json(folder / "results.json").items() if key != "identity"
    }


def _log(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    records = map(json.loads, lines)
    return [{key: value for key, value in line.items() if key != "time"} for line in records]


def verdict(run: Run, before: Source, after: Source) -> tuple[bool, str]:
    """Whether a run came out equal, and what to say about it."""
    try:
        found = compare(before(run), after(run))
    except (UserError, OSError) as error:
        return False, f"failed: {error}"
    notes = f" (new: {', '.join(found.added)})" if found.added else ""
    notes += f" (config differs in {', '.join(found.keys)})" if found.keys else ""
    if not found.places:
        return True, f"equal{notes}"
    more = f"; and {len(found.places) - SHOWN} more" if len(found.places) > SHOWN else ""
    return False, f"differs in {'; '.join(found.places[:SHOWN])}{more}{notes}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare all runs that were asked for; 1 if any differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.equality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trees", nargs="+", type=Path, metavar="SRC", help="before, then after")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where runs go")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of mnist (default: $SPHERE_DATA)")
    parser.add_argument("--before-runs", type=Path, metavar="DIR", help="in place of a tree before")
    groups = list(dict.fromkeys(run.group for run in RUNS))
    parser.add_argument("--only", choices=groups, help="compare only these runs")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default: 1)")
    arguments = parser.parse_args(argv)
    try:
        before, after = _sources(arguments)
    except UserError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    wanted = [run for run in RUNS if arguments.only in (None, run.group)]
    equal = 0
    with ThreadPoolExecutor(arguments.workers) as pool:
        verdicts = pool.map(lambda run: verdict(run, before, after), wanted)
        for number, (run, (same, words)) in enumerate(zip(wanted, verdicts, strict=True), start=1):
            print(f"{number}/{len(wanted)}  {run}  {words}", flush=True)
            equal += same
    print(f"{equal} of {len(wanted)} runs are equal")
    return int(equal < len(wanted))


def _sources(arguments: argparse.Namespace) -> tuple[Source, Source]:
    """Where runs before and after come from."""
    expected = 2 if arguments.before_runs is None else 1
    if len(arguments.trees) != expected:
        raise UsageError("give two source trees, or --before-runs and the tree after")
    *earlier, later = arguments.trees
    after = Tree(later, arguments.out / "after", arguments.data)
    after.check()
    if not earlier:
        return finished(arguments.before_runs), after
    before = Tree(earlier[0], arguments.out / "before", arguments.data)
    before.check()
    return before, after


if __name__ == "__main__":
    sys.exit(main())
