"""Damaged files: whatever became of them, a command answers with a sentence."""

import atexit
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.found import Found
from sphere_replay.cli import main
from sphere_replay.storage.checksums import NAME, SEAL

_RUN = ["digits", "--limit", "40", "--quiet", "--set", "capacity=20"]
_OF_RUN = ("config.json", "manifest.json", "results.json", "log.jsonl", NAME)
_SAVED = "digits.json"
_WORST: tuple[Any, ...] = (None, True, -1, 0, 2.5, 1e308, 10**30, "x", "", [], {}, [[1]], {"a": []})


@cache
def _original() -> Path:
    """A finished run, and a file of its results."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    words = ["sweep", "digits", "--limit", "40", "--set", "capacity=20", "--seeds", "1", "--quiet"]
    words += ["--methods", "ER", "ER + SPHERE", "--columns", "40%", "--out", str(home / "runs")]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main([*words, "--save", str(home / _SAVED)])
    assert code == 0
    return home


def look(seed: int) -> Found:
    """Damage one file, ask a command about it: it must end, by itself, with a word on the file."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-files-") as place:
        home = Path(place) / "home"
        shutil.copytree(_original(), home)
        run = dice.choice(sorted((home / "runs").glob("*/results.json"))).parent
        path = dice.choice([*(run / name for name in _OF_RUN), *[home / _SAVED] * 3])
        if dice.random() < 0.5:  # as if it came from before there were checksums
            (run / NAME).unlink()
            _without_seals(home / _SAVED)
        if path.exists():
            _damage(dice, path)
        return Found(_answered(_asked(dice, home, run, path)), 1)


def _asked(dice: random.Random, home: Path, run: Path, path: Path) -> list[str]:
    """A command that has to do with the file."""
    page = ["--out", str(home / "page.html")]
    accept = dice.choice([[], ["--accept-edited"]])
    if path.name == _SAVED:
        return dice.choice(
            [
                ["table", "digits", "--results", str(home), *accept],
                ["compare", str(path), *accept],
                ["report", str(path), *page, *accept],
            ]
        )
    table = ["--limit", "40", "--set", "capacity=20", "--seeds", "1"]
    return dice.choice(
        [
            ["report", str(run), *page, *accept],
            ["table", "digits", "--runs", str(home / "runs"), *table, *accept],
            ["show", str(run / "config.json")],
            ["validate", str(run / "config.json")],
            ["plot", "digits", "--runs", str(home / "runs"), *table, "--out", str(home / "x.svg")],
        ]
    )


def _answered(words: list[str]) -> list[str]:
    out, said = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = main(words)
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    except BaseException as error:
        return [f"sphere {' '.join(words)}: {type(error).__name__}: {str(error)[:200]}"]
    if code and not said.getvalue().startswith("sphere"):
        return [f"sphere {' '.join(words)} ends with {code} and without a sentence"]
    return []


def _without_seals(path: Path) -> None:
    content = json.loads(path.read_text())
    for entry in content["runs"]:
        entry.pop(SEAL, None)
    path.write_text(json.dumps(content))


def _damage(dice: random.Random, path: Path) -> None:
    ways: list[Callable[[random.Random, Path], None]] = [
        _shortened,
        _flipped,
        _deleted,
        _nested,
        *[_replaced] * 6,
    ]
    dice.choice(ways)(dice, path)


def _shortened(dice: random.Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(len(content) + 1)])


def _flipped(dice: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice([1, 1, 5, 50])):
        content[dice.randrange(len(content))] = dice.randrange(256)
    path.write_bytes(bytes(content))


def _deleted(dice: random.Random, path: Path) -> None:
    path.unlink()


def _nested(dice: random.Random, path: Path) -> None:
    deep = dice.choice([100, 100_000])
    path.write_text('{"runs": ' + "[" * deep + "]" * deep + "}\n")


def _replaced(dice: random.Random, path: Path) -> None:
    """One value becomes another, or goes; in a log it is one of a line."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = dice.randrange(len(lines))
    content = json.loads(lines[number])
    place, key = dice.choice(list(_places(content)))
    if dice.random() < 0.3:
        del place[key]
    else:
        place[key] = dice.choice(_WORST)
    lines[number] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n")


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found: list[tuple[Any, Any]] = []
    for key in list(keys)[:60]:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found += _places(value[key])
    return found


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(number, look(number).problems)
