"""Results of many runs in one small file, for keeping beside the code and for making tables."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sphere_replay.codebase import Code
from sphere_replay.config import Pair
from sphere_replay.errors import DataError, UserError
from sphere_replay.reports.courses import shortened
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.intact import blaming, check_entry
from sphere_replay.runs.launch import run_folder
from sphere_replay.runs.table import Table
from sphere_replay.runs.table_runs import TableRun
from sphere_replay.storage.checksums import EditedError, seal_broken, sealed
from sphere_replay.storage.files import read_json, write_atomically

_DIGITS = 6
_AND = " && "
EDITED = "edited"
"""The mark of an entry that was accepted although it was edited."""
_PARTS = ("metrics", "replay", "reward", "costs")
"""Of a run's results; rewards are those of reinforcement learning."""


class OtherProtocolError(UserError, ValueError):
    """A file holds results that the new ones must not be mixed with."""


@dataclass(frozen=True)
class FinishedRun:
    """A run of a table and what came out of it."""

    method: str
    """As it is to be read: `ER`, `ER + SPHERE`."""
    column: str
    """The setting that is compared across, e.g. the share of wrong labels, `40%`."""
    pair: Pair
    """What it shares with the runs of other methods: its seed, if nothing else is said."""
    results: Mapping[str, Any]
    """The content of its `results.json`, or what a collection keeps of it."""
    edited: bool = False
    """Whether it was changed after the run, and accepted all the same."""


@dataclass(frozen=True)
class Collection:
    """A saved file: results of a table, all made in one way."""

    table: str
    command: str
    """What made them; several commands are joined as a shell would."""
    protocol: Mapping[str, Any]
    """Preset and settings of all runs, beyond what the table says."""
    runs: list[dict[str, Any]]
    """One entry each."""


def read_finished(runs: Iterable[TableRun], out: Path) -> list[FinishedRun]:
    """The finished ones among the runs, with all their results."""
    return [
        FinishedRun(run.method, run.column, run.config.pair, measured(folder))
        for run in runs
        if (folder := run_folder(run.config, out)).finished
    ]


def measured(folder: RunFolder) -> dict[str, Any]:
    """The results of a finished run, which must have metrics: nothing else fills a table."""
    results = folder.results
    if "metrics" not in results:
        raise DataError(
            f"{folder.path / 'results.json'} is damaged: it has no metrics; delete the folder and "
            "run again"
        )
    return results


def to_entries(
    runs: Iterable[TableRun], out: Path, *, accept_edited: bool = False
) -> list[dict[str, Any]]:
    """What a collection keeps of the finished ones among the runs, one small entry each.

    One that was edited is an error, or is marked if it is to be accepted.
    """
    entries = []
    for run in runs:
        folder = run_folder(run.config, out, accept_edited=accept_edited)
        if not folder.finished:
            continue
        results = measured(folder)
        with blaming(folder.path):
            entry = {
                "method": run.method,
                "column": run.column,
                "seed": run.config.seed,
                "pair": run.config.pair,
                "identity": results["identity"],
            }
            entry |= {"code": asdict(code)} if (code := folder.made_by) else {}
            entry |= {part: _rounded(results[part]) for part in _PARTS if part in results}
            entry |= {"course": course} if (course := shortened(results)) else {}
        check_entry(entry, folder.path)
        entries.append(entry | ({EDITED: True} if accept_edited and folder.edited else {}))
    return entries


def made_by(entries: Iterable[Mapping[str, Any]]) -> list[Code | None]:
    """The states of this package that made entries of a collection; None where none is named."""
    return [Code(**entry["code"]) if "code" in entry else None for entry in entries]


def from_entries(entries: Iterable[Mapping[str, Any]]) -> list[FinishedRun]:
    """The runs that entries of a collection tell of."""
    return [FinishedRun(*_place(entry), entry, EDITED in entry) for entry in entries]


def unsealed(entries: Iterable[Mapping[str, Any]]) -> int:
    """How many entries were saved before there were checksums."""
    return sum(seal_broken(entry) is None for entry in entries)


def save_collection(
    path: Path, table: str, command: str, protocol: Mapping[str, Any], runs: list[dict[str, Any]]
) -> None:
    """Write runs with the command that made them, one line per run: changes stay readable.

    A file keeps the runs that are not among the new ones, and the commands they came from: a large
    table can be filled part by part. It must be of the same table and protocol.
    """
    head = {"table": table, "command": command, "protocol": dict(protocol)}
    runs = [sealed(run) for run in runs]
    if saved := check_extends(path, table, protocol):
        known = {_place(run) for run in runs}
        kept = [run for run in saved.runs if _place(run) not in known]
        if kept:
            commands = [*saved.command.split(_AND), command]
            head["command"] = _AND.join(dict.fromkeys(commands))
        runs = [*kept, *runs]
    text = json.dumps(head, indent=1)
    lines = ",\n".join(json.dumps(run, sort_keys=True) for run in runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text[:-2] + f',\n "runs": [\n{lines}\n]}}\n').encode())


def check_extends(path: Path, table: str, protocol: Mapping[str, Any]) -> Collection | None:
    """What a file holds, if there is one; it must be of this table and protocol."""
    if not path.exists():
        return None
    saved = load_collection(path)
    if (saved.table, saved.protocol) != (table, protocol):
        raise OtherProtocolError(
            f"{path} holds {_described(saved.table, saved.protocol)}, not "
            f"{_described(table, protocol)}: save to another file"
        )
    return saved


def load_collection(path: Path, *, accept_edited: bool = False) -> Collection:
    """A saved collection; entries that were edited are an error, or marked if accepted."""
    content = read_json(path)
    kinds = {"table": str, "command": str, "protocol": dict, "runs": list}
    if set(content) != set(kinds) or not all(
        isinstance(content[name], kind) for name, kind in kinds.items()
    ):
        raise DataError(
            f"{path} is not a file of `sphere sweep --save`, which has "
            f"{', '.join(kinds)}; make it again"
        )
    if not isinstance(content["protocol"].get("preset", ""), str):
        raise DataError(f"{path} is damaged: its preset should be a name; make it again")
    for number, entry in enumerate(content["runs"], start=1):
        where = f"{path}, run {number}"
        check_entry(entry, where)
        if seal_broken(entry):
            if not accept_edited:
                raise EditedError(
                    f"{where} ({entry['method']}, {entry['column']}, seed {entry['seed']}) was "
                    "edited, its checksum no longer fits: restore it, or make it again (`sphere "
                    "table --accept-edited` shows it as it is, marked)"
                )
            entry[EDITED] = True
    return Collection(**content)


def marked(table: Table, runs: Iterable[FinishedRun]) -> Table:
    """The table, whose title says so if some of its runs were edited."""
    edited = sum(run.edited for run in runs)
    if not edited:
        return table
    return replace(table, title=f"{table.title} (EDITED: {edited} runs do not fit their checksums)")


def _place(entry: Mapping[str, Any]) -> tuple[str, str, Pair]:
    """Method, column and what pairs an entry with those of other methods."""
    return entry["method"], entry["column"], entry.get("pair", entry["seed"])


def _described(table: str, protocol: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in protocol.items())
    return f"table {table} ({settings})" if settings else f"table {table}"


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _shorter(value) for name, value in values.items()}


def _shorter(value: Any) -> Any:
    if isinstance(value, list):
        return [_shorter(entry) for entry in value]
    return round(value, _DIGITS) if isinstance(value, float) else value
