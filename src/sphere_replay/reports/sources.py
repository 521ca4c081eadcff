"""What a report is made of: saved results and run folders, each turned into a filled table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sphere_replay.codebase import Code
from sphere_replay.config import Pair
from sphere_replay.errors import ConfigError, DataError, UsageError
from sphere_replay.reports.collection import (
    Collection,
    FinishedRun,
    from_entries,
    load_collection,
    made_by,
    marked,
    measured,
)
from sphere_replay.runs import domains
from sphere_replay.runs.experiment import SUFFIX, load_experiment
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.intact import blaming
from sphere_replay.runs.launch import run_folder
from sphere_replay.runs.metrics import METRICS
from sphere_replay.runs.table import SMALL_ENDING, Measure, Table, TableRow
from sphere_replay.runs.table_runs import (
    DEVELOPMENT_SEEDS,
    nothing_of,
    runs_of,
    seeds_in,
    seeds_of,
)

_BY_CHANCE = ("seed", "order")
_OWN_PLACES = ("host", "select", "noise", *_BY_CHANCE)
"""Settings that say the method, the column or the pair of a run."""


@dataclass(frozen=True)
class Comparison:
    """Runs that are compared with each other, and the table that they fill."""

    table: Table
    runs: Sequence[FinishedRun]
    origin: str
    """The file or folder they come from."""
    command: str
    """What made them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What all runs have beyond their preset and the table."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """A saved configuration of each method, where runs come from folders."""
    folders: Sequence[Path] = ()
    """Of the runs, in their order; none for saved results."""
    made_by: Sequence[Code | None] = ()
    """The code behind each run, where that is known."""


def read_sources(
    paths: Sequence[Path], runs_in: Path = Path("runs"), *, accept_edited: bool = False
) -> list[Comparison]:
    """Comparisons from files of `sphere sweep --save`, run folders, or folders of either.

    An experiment's file stands for its finished runs in the folder `runs_in`. Results that were
    edited are an error; accepted, they are marked in the titles of their tables.
    """
    files: list[Path] = []
    folders: list[Path] = []
    found: list[Comparison] = []
    for path in paths:
        if path.suffix == SUFFIX:
            found.append(_of_experiment(path, runs_in))
        elif path.is_file():
            files.append(path)
        elif (path / "config.json").is_file():
            folders.append(path)
        elif path.is_dir():
            runs = sorted(found.parent for found in path.glob("*/config.json"))
            folders += runs
            files += [] if runs else sorted(path.glob("*.json"))
        else:
            raise UsageError(f"{path} does not exist: name saved results, or folders of runs")
    for path in files:
        found += _of_collection(load_collection(path, accept_edited=accept_edited), path)
    places = [RunFolder(folder, accept_edited=accept_edited) for folder in folders]
    found += _of_folders(place for place in places if place.finished)
    if not found:
        raise UsageError(
            "nothing to report: no finished run and no saved result in "
            f"{', '.join(map(str, paths)) or 'no place'}"
        )
    return [replace(each, table=marked(each.table, each.runs)) for each in found]


def _of_experiment(path: Path, runs_in: Path) -> Comparison:
    table = load_experiment(path)
    command = f"sphere sweep {path} --out {runs_in}"
    wanted = runs_of(table, seeds_in(table, seeds_of(table), runs_in))
    places = [run_folder(run.config, runs_in) for run in wanted]
    made = [(run, place) for run, place in zip(wanted, places, strict=True) if place.finished]
    if not made:
        raise nothing_of(wanted, runs_in, command)
    return Comparison(
        table,
        [FinishedRun(r.method, r.column, r.config.pair, measured(place)) for r, place in made],
        origin=str(path),
        command=command,
        folders=[place.path for _, place in made],
        made_by=[place.made_by for _, place in made],
    )


def _of_collection(saved: Collection, path: Path) -> list[Comparison]:
    if not saved.runs:
        return []
    with blaming(path):
        runs = from_entries(saved.runs)
        table = _table_of(saved.table, runs)
        table = table.with_preset(saved.protocol.get("preset", table.preset))
        development = all(run["seed"] in DEVELOPMENT_SEEDS for run in saved.runs)
        if not development:
            kept = [run for run in saved.runs if run["seed"] not in DEVELOPMENT_SEEDS]
            runs = from_entries(kept)
    settings = {k: v for k, v in saved.protocol.items() if k != "preset"}
    origin = f"{path}, development seeds" if development else str(path)
    codes = made_by(saved.runs)
    return [Comparison(table, runs, origin, saved.command, settings, made_by=codes)]


def _table_of(name: str, runs: Sequence[FinishedRun]) -> Table:
    """The table of a name; one that is not known any more is made of its runs."""
    known = domains.tables()
    if name in known:
        return known[name]
    try:
        small = name.endswith(SMALL_ENDING)
        return domains.table_named(name.removesuffix(SMALL_ENDING), small=small)
    except ConfigError:
        methods = {run.method: run.method.partition(" + ")[0] for run in runs}
        rows = [
            TableRow(method, host, "", host if host != method and host in methods else None)
            for method, host in methods.items()
        ]
        return _made_table(name, rows, runs)


def _made_table(name: str, rows: Sequence[TableRow], runs: Sequence[FinishedRun]) -> Table:
    measured = set().union(*(run.results["metrics"] for run in runs))
    measures = tuple(Measure(metric) for metric in METRICS if metric in measured)
    columns: dict[str, dict[str, Any]] = {run.column: {} for run in runs}
    return Table(name, f"Runs of {name}", name, tuple(rows), columns, measures[:1])


def _of_folders(folders: Iterable[RunFolder]) -> list[Comparison]:
    """One comparison for each dataset, or other kind of stream, among the runs."""
    groups: dict[str, list[tuple[RunFolder, dict[str, Any]]]] = {}
    for folder in folders:
        config = folder.config
        kinds = {"host": str, "select": str, "seed": int}
        if not all(isinstance(config.get(name), kind) for name, kind in kinds.items()):
            raise DataError(
                f"{folder.path / 'config.json'} is damaged: it should say {', '.join(kinds)}; "
                "restore it from a copy, or delete the folder and run again"
            )
        groups.setdefault(_stream_of(config), []).append((folder, config))
    return [_of_group(name, members) for name, members in groups.items()]


def _stream_of(config: Mapping[str, Any]) -> str:
    """What a run learns, in a word."""
    for name in ("dataset", "corpus", "stages", "model"):
        if isinstance(config.get(name), str) and config[name]:
            encoder = ", frozen features" if config.get("encoder") else ""
            return f"{config[name]}{encoder}"
    return "runs"


def _of_group(name: str, members: Sequence[tuple[RunFolder, Mapping[str, Any]]]) -> Comparison:
    names = _method_names([config for _, config in members])
    runs = []
    for method, (folder, config) in zip(names, members, strict=True):
        results = measured(folder)
        with blaming(folder.path):
            place = method, _column_of(config), _pair_of(config)
        runs.append(FinishedRun(*place, results, edited=bool(folder.edited)))
    configs = dict(zip(names, (config for _, config in members), strict=True))
    # Uniform first: it is what the others are compared with.
    order = sorted(configs, key=lambda name: (configs[name]["select"] != "uniform", name))
    rows = [_row(method, configs) for method in order]
    columns = sorted({run.column for run in runs}, key=lambda text: (text != "Clean", text))
    runs_by_column = sorted(runs, key=lambda run: columns.index(run.column))
    places = [str(folder.path.parent) for folder, _ in members]
    return Comparison(
        _made_table(name, rows, runs_by_column),
        runs,
        origin=", ".join(dict.fromkeys(places)),
        command=_repeating(name, members[0][0].path),
        configs=configs,
        folders=[folder.path for folder, _ in members],
        made_by=[folder.made_by for folder, _ in members],
    )


def _repeating(name: str, folder: Path) -> str:
    preset = name.partition(",")[0]
    if preset in domains.all_presets():
        return f"sphere run {preset} --host HOST --select SELECTION --seed SEED"
    return f"sphere run {folder}/config.json --seed SEED"


def _method_names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Host and selection, and whatever else tells apart runs that share both."""
    names = []
    for config in configs:
        alike = [
            c for c in configs if (c["host"], c["select"]) == (config["host"], config["select"])
        ]
        varying = [
            setting
            for setting, value in config.items()
            if setting not in (*_OWN_PLACES, "constants")
            and any(other.get(setting) != value for other in alike)
        ]
        name = config["host"] + ("" if config["select"] == "uniform" else f" + {config['select']}")
        told = [word for s in varying for word in _told(s, config[s], [c.get(s) for c in alike])]
        names.append(", ".join([name, *told]))
    return names


def _told(setting: str, value: Any, values: Sequence[Any]) -> list[str]:
    """A setting that tells runs apart, in words; of several options those that do."""
    if not isinstance(value, dict):
        return [f"{setting} {value}"]
    others = [other if isinstance(other, dict) else {} for other in values]
    return [
        f"{option} code {entry[:6]}" if setting == "code" else f"{option} {entry}"
        for option, entry in value.items()
        if any(other.get(option) != entry for other in others)
    ]


def _row(method: str, configs: Mapping[str, Mapping[str, Any]]) -> TableRow:
    config = configs[method]
    _, comma, rest = method.partition(", ")
    host = config["host"]
    candidates = (f"{host}{comma}{rest}", host)
    found = [each for each in candidates if each in configs and each != method]
    return TableRow(method, host, config["select"], found[0] if found else None)


def _column_of(config: Mapping[str, Any]) -> str:
    noise = config.get("noise")
    if noise is None:
        return "all runs"
    return "Clean" if noise == 0 else f"{100 * noise:g}%"


def _pair_of(config: Mapping[str, Any]) -> Pair:
    order = config.get("order")
    return config["seed"] if order is None else f"order {order}, seed {config['seed']}"
