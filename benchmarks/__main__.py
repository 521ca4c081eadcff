"""Measure how fast the library is on this machine, as ratios that travel to others.

Examples:
  python -m benchmarks allocate --quick
  python -m benchmarks allocate --sizes 2000 4000 --dims 512
  python -m benchmarks train --data DIR --markdown docs/performance-train.md
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from benchmarks import harness
from sphere_replay.errors import UserError

BENCHMARKS = {
    "allocate": "time an allocation against the naive transcription and a bare GEMM",
    "large": "a million memories: time, peak, and approximate weights against exact ones",
    "train": "time training steps against a bare loop, and rescorings against plain forwards",
    "hosts": "time a stream step of every host against ER, and SPHERE inside it",
    "economy": "what SPHERE costs beside ER, and what it brings, by both schedules",
    "instruct": "time updates of a language model with and without SPHERE",
    "scoring": "what each measure saves in a forward over the memory",
    "augmentation": "strong views of a batch against a loop over images",
    "sandbox": "programs a second in the sandbox, against a fresh pytest for each",
    "coding": "divide the time of an update of code generation",
    "hollow": "whether neighbours tell hollow rewards of programs apart",
}
"""Modules beside this one; a new benchmark is one module and one line here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Load the benchmark that is named, and no other; run it and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, summary in BENCHMARKS.items():
        command = commands.add_parser(name, help=summary)
        if name in words[:1]:
            module = importlib.import_module(f"benchmarks.{name}")
            command.description = module.__doc__
            harness.add_options(command, module.BENCHMARK)
    arguments = parser.parse_args(words)
    try:
        harness.run(arguments.benchmark, module.BENCHMARK, arguments)
    except UserError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
