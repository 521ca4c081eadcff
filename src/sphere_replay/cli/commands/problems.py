"""Prepare programming problems for reinforcement learning: examine, deduplicate, split.

Every reference runs twice in the sandbox. SOURCE is micro (generated, needs no data), kodcode,
kodcode-demo, mbpp, humaneval, leetcode, or a Parquet file with KodCode's columns.

Examples:
  sphere problems prepare micro --out micro.jsonl
  sphere problems prepare kodcode --out problems.jsonl --workers 4
"""

import argparse
import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.cli.options import add_options
from sphere_replay.errors import UsageError

if TYPE_CHECKING:
    from sphere_replay.coding.problems import Drop, Prepared, Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommand and its options."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    prepare = commands.add_parser(
        "prepare",
        help="make a file of problems in splits",
        description="Examine the problems of a source in the sandbox and write the good ones.",
        epilog="Example: sphere problems prepare micro --out micro.jsonl",
    )
    prepare.add_argument("source", metavar="SOURCE", help="micro, kodcode, mbpp, ..., or a file")
    prepare.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    prepare.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of Parquet files (default: $SPHERE_DATA)"
    )
    prepare.add_argument("--seed", type=int, default=0, help="fixes the splits (default: 0)")
    prepare.add_argument(
        "--nodes", metavar="A-B", help="collectible nodes of a problem (default: the source's)"
    )
    prepare.add_argument(
        "--enough", type=int, metavar="N", help="stop a stage at so many good ones (default: 400)"
    )
    prepare.add_argument(
        "--dropped", type=Path, metavar="FILE", help="also write what was dropped, and why"
    )
    prepare.add_argument(
        "--shared",
        action="store_true",
        help="also keep problems whose tests need the program in their own interpreter",
    )
    prepare.add_argument("--workers", type=int, default=2, help="programs at a time (default: 2)")
    prepare.add_argument(
        "--unsafe", action="store_true", help="run references even where nothing confines them"
    )
    add_options(prepare, "--quiet", "--json")


def run(arguments: argparse.Namespace) -> int:
    """Prepare a source."""
    from sphere_replay.coding.problems import load_candidates, prepare, write_problems
    from sphere_replay.runs.progress import step_progress
    from sphere_replay.sandbox import Sandbox, SandboxError
    from sphere_replay.storage.files import write_atomically

    for path in filter(None, (arguments.out, arguments.dropped)):
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: name a file in a folder that exists")
    try:
        candidates = load_candidates(arguments.source, arguments.data)
        settings = _settings(arguments, candidates.settings)
        with (
            Sandbox(workers=arguments.workers, unsafe=arguments.unsafe) as sandbox,
            step_progress("prepare", hidden=arguments.quiet or arguments.json) as report,
        ):
            prepared = prepare(candidates.problems, sandbox, settings, report=report)
    except (SandboxError, ValueError) as error:
        raise UsageError(str(error)) from error
    dropped = [*candidates.dropped, *prepared.dropped]
    if arguments.dropped is not None:
        lines = [json.dumps(asdict(drop)) + "\n" for drop in dropped]
        write_atomically(arguments.dropped, "".join(lines).encode())
    if not prepared.problems:
        raise UsageError(f"no problem of {arguments.source} is left: {_summary(dropped)}")
    write_problems(arguments.out, prepared.problems)
    _print(arguments, prepared, dropped, settings)
    return 0


def _settings(arguments: argparse.Namespace, settings: "Settings") -> "Settings":
    settings = replace(settings, seed=arguments.seed, shared=arguments.shared)
    if arguments.enough is not None:
        settings = replace(settings, enough=arguments.enough)
    if arguments.nodes is not None:
        fewest, _, most = arguments.nodes.partition("-")
        if not (fewest.isdecimal() and most.isdecimal()):
            raise UsageError(f"--nodes takes two numbers such as 4-12, got {arguments.nodes!r}")
        settings = replace(settings, fewest=int(fewest), most=int(most))
    return settings


def _print(
    arguments: argparse.Namespace,
    prepared: "Prepared",
    dropped: "list[Drop]",
    settings: "Settings",
) -> None:
    from sphere_replay.coding.problems import digest
    from sphere_replay.sandbox import JUDGES

    kept = Counter((problem.stage, problem.split) for problem in prepared.problems)
    lost = Counter((drop.stage, drop.reason) for drop in dropped)
    stages = list(dict.fromkeys(stage for stage, _ in (*kept, *lost)))
    code = digest(prepared.problems)
    judges = {name: sum(p.judge == name for p in prepared.problems) for name in JUDGES}
    if arguments.json:
        result = {
            "out": str(arguments.out),
            "digest": code,
            "nodes": [settings.fewest, settings.most],
            "unstable_nodes": prepared.unstable_nodes,
            "judges": judges,
            "kept": {stage: _row(kept, stage) for stage in stages},
            "dropped": {stage: _row(lost, stage) for stage in stages},
        }
        print(json.dumps(result))
        return
    names = [stage or "(unknown)" for stage in stages]
    splits = list(dict.fromkeys(split for _, split in kept))
    reasons = list(dict.fromkeys(reason for _, reason in lost))
    width = max(len(name) for name in ("problems", *splits, *reasons))
    print(" " * width + "".join(f"  {name:>8}" for name in names))
    for counts, rows in ((kept, splits), (lost, reasons)):
        print(f"{'kept' if counts is kept else 'dropped'}")
        for row in rows:
            cells = [
                f"  {counts[stage, row]:>{max(8, len(name))}}"
                for stage, name in zip(stages, names, strict=True)
            ]
            print(f"{row:<{width}}{''.join(cells)}")
    print(
        f"\n{len(prepared.problems)} problems with {settings.fewest}-{settings.most} nodes in "
        f"{arguments.out} ({prepared.unstable_nodes} unstable nodes excluded; "
        f"SHA-256 {code[:16]})"
    )
    print("judged " + ", ".join(f"{name}: {count}" for name, count in judges.items()))


def _row(counts: Counter[tuple[str, str]], stage: str) -> dict[str, int]:
    return {row: count for (name, row), count in counts.items() if name == stage}


def _summary(dropped: "list[Drop]") -> str:
    if not dropped:
        return "it has none"
    counts = Counter(drop.reason for drop in dropped)
    first = next((drop for drop in dropped if drop.detail), dropped[0])
    parts = [f"{reason} {count}" for reason, count in counts.most_common()]
    return f"{', '.join(parts)} (first: {first.id}, {first.reason}, {first.detail})"
