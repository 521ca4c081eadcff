"""Run programs that nobody has read, confined, against their tests.

Sizes are in MiB, or carry their unit: 256, 256M, 1G, 64K.

Examples:
  sphere sandbox check
  sphere sandbox run program.py test_program.py --wall 5 --memory 256 --json
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import Field, asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphere_replay.cli.options import add_options, check_known
from sphere_replay.errors import UsageError
from sphere_replay.extras import how_to_get
from sphere_replay.sandbox.hostile import CLASSES
from sphere_replay.sandbox.limits import JUDGES, Limits, Verdict, printable

_SIZES = ("memory", "file_size", "scratch", "output")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LARGEST = 1 << 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two subcommands."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = commands.add_parser(
        "check",
        help="which isolation this machine offers, proved by hostile programs",
        description="Let hostile programs loose under every isolation that this machine offers.",
        epilog="Example: sphere sandbox check --json",
    )
    check.add_argument("--isolation", help="only this one: bubblewrap or landlock")
    check.add_argument(
        "--class",
        dest="kinds",
        action="append",
        choices=CLASSES,
        metavar="NAME",
        help=f"only programs of this class; repeatable: {', '.join(CLASSES)}",
    )
    check.add_argument("--all", action="store_true", help="a line for every program")
    add_options(check, "--json")
    check.set_defaults(act=_check)
    run = commands.add_parser(
        "run",
        help="run one program against a pytest file",
        description="Run a program, imported as `solution`, against a pytest file.",
        epilog="Example: sphere sandbox run program.py test_program.py --wall 5 --memory 256",
    )
    run.add_argument("program", metavar="PROGRAM", type=Path, help="imported as `solution`")
    run.add_argument("tests", metavar="TEST_FILE", type=Path, help="a pytest file")
    run.add_argument(
        "--judge",
        default="strict",
        choices=JUDGES,
        help="tests in a process of their own (strict, the default), or with the program (shared)",
    )
    run.add_argument("--node", action="append", metavar="NAME", help="only this node; repeatable")
    run.add_argument(
        "--isolation", default="auto", help="auto (default), bubblewrap, landlock or none"
    )
    run.add_argument(
        "--unsafe", action="store_true", help="run even where nothing confines the program"
    )
    run.add_argument("--cache", type=Path, metavar="DIR", help="keep verdicts here, reuse them")
    for limit in fields(Limits):
        run.add_argument(
            f"--{limit.name.replace('_', '-')}",
            metavar=_unit(limit),
            help=f"{limit.metadata['help']} (default: {_shown(limit)})",
        )
    add_options(run, "--json")
    run.set_defaults(act=_run)


def run(arguments: argparse.Namespace) -> int:
    """Check or run."""
    code: int = arguments.act(arguments)
    return code


def _run(arguments: argparse.Namespace) -> int:
    from sphere_replay.sandbox import Sandbox, SandboxError

    limits = _limits(arguments)
    program, tests = _read(arguments.program), _read(arguments.tests)
    try:
        source = tests.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{arguments.tests} is not a UTF-8 text: {error}") from None
    try:
        with Sandbox(
            arguments.isolation, limits, cache=arguments.cache, unsafe=arguments.unsafe
        ) as sandbox:
            verdict = sandbox.run(program, source, arguments.node, arguments.judge)
            isolation = sandbox.isolation
    except (SandboxError, ValueError) as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        print(json.dumps({**asdict(verdict), "isolation": isolation}))
    else:
        _print_verdict(verdict, isolation)
    return 0 if verdict.passed else 1


def _print_verdict(verdict: Verdict, isolation: str) -> None:
    for node, outcome in verdict.nodes.items():
        message = verdict.messages.get(node, "").splitlines()
        print(
            f"{outcome:<8} {printable(node)}" + (f"   {printable(message[0])}" if message else "")
        )
    if verdict.why:
        print(f"{verdict.ending}: {printable(verdict.why)}")
    passed = sum(outcome == "passed" for outcome in verdict.nodes.values())
    cached = ", from the cache" if verdict.cached else ""
    print(
        f"{passed} of {len(verdict.nodes)} passed in {verdict.seconds:.2f} s "
        f"(isolation: {isolation}{cached})"
    )


def _check(arguments: argparse.Namespace) -> int:
    from sphere_replay.sandbox.isolation import ISOLATIONS

    wanted = ISOLATIONS if arguments.isolation is None else (arguments.isolation,)
    check_known("isolation", wanted, ISOLATIONS)
    results = [_prove(name, arguments.kinds or ()) for name in wanted]
    used = next((result["name"] for result in results if result["works"]), None)
    if arguments.json:
        print(json.dumps({"uses": used, "isolations": results}))
    else:
        _print_check(results, used, every=arguments.all)
    proved = [result for result in results if result["works"]]
    whole = all(finding["contained"] for result in proved for finding in result["findings"])
    return 0 if proved and whole else 1


def _prove(name: str, kinds: Sequence[str]) -> dict[str, Any]:
    """Whether an isolation works here, and what became of the hostile programs, if any ran."""
    from sphere_replay.runs.progress import step_progress
    from sphere_replay.sandbox.battery import prove
    from sphere_replay.sandbox.isolation import missing, starts
    from sphere_replay.sandbox.sandbox import tried
    from sphere_replay.sandbox.worker import WorkerError

    why, findings, memory = missing(name), [], ""
    if why is None and find_spec("pytest") is None:  # which judges programs
        works = starts(name)
        why = f"starts here; proof: {how_to_get('pytest')}" if works else "does not start here"
        return {"name": name, "works": works, "why": why, "memory": "", "findings": []}
    if why is None:
        try:
            with closing(tried(name)) as worker:
                memory = worker.memory
                for judge in JUDGES:
                    with step_progress(f"{name}, {judge}", hidden=False) as report:
                        found = prove(worker, report, judge, kinds)
                    findings += [{**asdict(finding), "judge": judge} for finding in found]
        except WorkerError as error:
            why = str(error)
    proved = {"name": name, "works": why is None, "why": why or ""}
    return {**proved, "memory": memory, "findings": findings}


def _print_check(results: list[dict[str, Any]], used: str | None, *, every: bool) -> None:
    tried = [result for result in results if result["findings"]]
    if tried:
        rows = _rows_of(tried, every)
        width = max(len(label) for label in rows)
        heads = [f"{result['name']:<24}" for result in tried]
        print("  ".join([f"{'hostile programs':<{width}}", *heads]).rstrip())
        for label, cells in rows.items():
            print("  ".join([f"{label:<{width}}", *(f"{cell:<24}" for cell in cells)]).rstrip())
        print()
    for result in results:
        loose = [finding for finding in result["findings"] if not finding["contained"]]
        count = len(result["findings"])
        summary = f"contains {count - len(loose)} of {count} hostile programs"
        print(f"{result['name']:<11} {summary if result['findings'] else result['why']}")
        for finding in loose:
            print(
                f"            {finding['name']} ({finding['judge']}): {printable(finding['why'])}"
            )
        if result["memory"]:
            print(f"            memory is limited by {result['memory']}")
    print(
        f"Programs run under {used}."
        if used is not None
        else "Programs are not run here unless you pass --unsafe."
    )


def _rows_of(results: list[dict[str, Any]], every: bool) -> dict[str, list[str]]:
    """A row for every class, or for every program, with a cell for each isolation."""
    rows: dict[str, list[str]] = {}
    for result in results:
        groups: dict[str, list[dict[str, Any]]] = {}
        for finding in result["findings"]:
            label = finding["name"] if every else finding["kind"]
            groups.setdefault(f"{label}, {finding['judge']}", []).append(finding)
        for label, findings in groups.items():
            contained = sum(finding["contained"] for finding in findings)
            cell = f"{contained} of {len(findings)} contained"
            if every:
                cell = f"{'contained' if contained else 'NOT CONTAINED'} {findings[0]['ending']}"
            rows.setdefault(label, []).append(cell)
    return rows


def _limits(arguments: argparse.Namespace) -> Limits:
    given = {
        limit.name: _number(limit, value)
        for limit in fields(Limits)
        if (value := getattr(arguments, limit.name)) is not None
    }
    try:
        return Limits(**given)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _number(limit: "Field[Any]", text: str) -> Any:
    option = f"--{limit.name.replace('_', '-')}"
    digits, unit = text, 1
    if limit.name in _SIZES:
        unit = _UNITS["M"]
        if text[-1:].upper() in _UNITS:
            digits, unit = text[:-1], _UNITS[text[-1].upper()]
    try:
        value = float(digits) * unit
        number = value if limit.type is float else int(value)
    except (ValueError, OverflowError):
        raise UsageError(f"{option} takes {_unit(limit)}, got {text!r}") from None
    if limit.name in _SIZES and number > _LARGEST:
        raise UsageError(f"{option} {text} is more than any machine has: plain numbers are MiB")
    return number


def _unit(limit: "Field[Any]") -> str:
    if limit.name in _SIZES:
        return "SIZE"
    return "SECONDS" if limit.type is float else "N"


def _shown(limit: "Field[Any]") -> str:
    default = getattr(Limits(), limit.name)
    return f"{default >> 20}" if limit.name in _SIZES else f"{default:g}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"{path} is not a file that can be read") from None
