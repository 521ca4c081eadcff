"""Fair measurements: contestants timed in turns, and peaks of memory each in its own process."""

import gc
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

PROCESS = Path("/proc/self")
"""Where Linux describes the running process; elsewhere peaks of memory are not measured."""


@dataclass(frozen=True)
class Timing:
    """Median seconds of each contestant over the same rounds."""

    seconds: dict[str, float]
    rounds: int

    def cell(self, name: str, other: str, /, **more: Any) -> dict[str, Any]:
        """The time of a contestant, and how many times as long as another one's it is."""
        seconds = self.seconds[name]
        ratio = seconds / self.seconds[other]
        times = {"rounds": self.rounds, "seconds": seconds, "ratio": ratio}
        return {"figure": name, "against": other, **times, **more}


def interleave(
    contestants: Mapping[str, Callable[[], object]],
    *,
    least_rounds: int = 3,
    least_seconds: float = 1.0,
    warm_up: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time contestants round-robin, so that a slow moment of the machine strikes all of them.

    What a call returns is freed within its time: memory that was asked for has to be given back.

    Args:
        contestants: Calls by name.
        least_rounds: Rounds that are always played.
        least_seconds: Rounds go on until they took this long per contestant, on average.
        warm_up: Play a first round that does not count.
        clock: Seconds from any starting point.
    """
    if warm_up:
        for call in contestants.values():
            call()
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    rounds, spent = 0, 0.0
    gc.collect()
    while rounds < least_rounds or spent < least_seconds * len(contestants):
        for name, call in contestants.items():
            start = clock()
            call()
            taken[name].append(clock() - start)
            spent += taken[name][-1]
        rounds += 1
    return Timing({name: median(values) for name, values in taken.items()}, rounds)


def milliseconds(seconds: float) -> str:
    """For a table: three digits that count, and no exponent."""
    return f"{float(f'{1e3 * seconds:.3g}'):g}"


def peak_memory(
    workload: str, arguments: Mapping[str, object], warm_up: Mapping[str, object]
) -> float | None:
    """MiB that a call needs at its peak, beyond what was there before it.

    Measured in a fresh process, so that nothing that ran earlier can lend it memory.

    Args:
        workload: `module:function`. The function makes the inputs and returns the call.
        arguments: Keywords of the function, as JSON can carry them.
        warm_up: Keywords of a small workload, which loads libraries and starts threads first.

    Returns:
        The peak; None where the system does not tell.
    """
    if not (PROCESS / "clear_refs").exists():
        return None
    task = json.dumps(
        {
            "workload": workload,
            "arguments": dict(arguments),
            "warm_up": dict(warm_up),
            "threads": torch.get_num_threads(),
        }
    )
    code = f"from {__name__} import _report_peak; _report_peak()"
    worker = subprocess.run(
        [sys.executable, "-c", code],
        input=task,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if worker.returncode != 0:
        raise RuntimeError(
            f"measuring the memory of {workload} with {dict(arguments)} failed with exit code "
            f"{worker.returncode} (-9 means out of memory: try smaller sizes):\n{worker.stderr}"
        )
    peak = json.loads(worker.stdout.splitlines()[-1])
    return None if peak is None else float(peak)


def _report_peak() -> None:
    """The other end of `peak_memory`: a task on standard input, MiB on standard output."""
    task = json.load(sys.stdin)
    torch.set_num_threads(task["threads"])
    module, _, name = task["workload"].partition(":")
    prepare = getattr(importlib.import_module(module), name)
    prepare(**task["warm_up"])()
    call = prepare(**task["arguments"])
    gc.collect()
    try:
        (PROCESS / "clear_refs").write_text("5")  # sets the high-water mark to what is held now
    except OSError:  # some containers show the file and refuse the write
        print("null")
        return
    before = _status_mib("VmRSS")
    call()
    print(json.dumps(max(0.0, _status_mib("VmHWM") - before)))


def _status_mib(field: str) -> float:
    for line in (PROCESS / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise RuntimeError(f"the system reports no {field} for a process")


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch use this many threads, or all (None); afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(available_threads() if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def available_threads() -> int:
    """How many threads this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def fair_clock() -> Callable[[], float]:
    """On one thread the processor's own time, which other work does not lengthen; else seconds."""
    precise = time.get_clock_info("process_time").resolution < 1e-5
    alone = torch.get_num_threads() == 1
    return time.process_time if precise and alone else time.perf_counter


def describe_machine() -> dict[str, object]:
    """What the figures were measured on, and nothing that identifies it."""
    return {
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "load": _load(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _load() -> float | None:
    """How many processes wanted to run during the last minute, before the measurements."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
