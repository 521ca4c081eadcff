"""A report: sources in, one page out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sphere_replay.codebase import Code
from sphere_replay.errors import UsageError
from sphere_replay.reports.contents import content_of
from sphere_replay.reports.page import LARGEST, to_html
from sphere_replay.reports.recorded import Recorded, has_recording, inspected
from sphere_replay.reports.sources import Comparison, read_sources
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.intact import blaming
from sphere_replay.storage.files import write_atomically


@dataclass(frozen=True)
class Page:
    """A page that was written."""

    size: int
    """In bytes."""
    made_by: Sequence[Code | None]
    """The code behind each result it shows, where that is known."""


def write_report(
    sources: Sequence[Path],
    out: Path,
    title: str,
    runs_in: Path = Path("runs"),
    *,
    accept_edited: bool = False,
) -> Page:
    """Write the page of saved results, run folders and experiments."""
    comparisons = read_sources(sources, runs_in, accept_edited=accept_edited)
    size = _write(out, title, comparisons, _recorded(comparisons))
    return Page(size, [code for comparison in comparisons for code in comparison.made_by])


def write_inspector(sources: Sequence[Path], out: Path, title: str) -> Page:
    """Write a page of recorded runs alone."""
    comparisons = read_sources(sources)
    recorded = _recorded(comparisons)
    if not recorded:
        raise UsageError(
            "nothing was recorded in these runs: run them with --record 12, in another --out if "
            "they are finished"
        )
    size = _write(out, title, [], recorded)
    return Page(size, [RunFolder(run.folder).made_by for run in recorded])


def _recorded(comparisons: Sequence[Comparison]) -> list[Recorded]:
    """The recorded runs among all."""
    found = []
    for comparison in comparisons:
        for run, folder in zip(comparison.runs, comparison.folders, strict=False):
            if has_recording(folder):
                column = "" if run.column == "all runs" else f", {run.column}"
                name = f"{comparison.table.name}: {run.method}{column}, {_pair(run.pair)}"
                found.append(Recorded(name, run.method, folder))
    return found


def _pair(pair: int | str) -> str:
    return pair if isinstance(pair, str) else f"seed {pair}"


def _write(
    out: Path, title: str, comparisons: Sequence[Comparison], recorded: list[Recorded]
) -> int:
    contents = []
    for comparison in comparisons:
        with blaming(comparison.origin):
            contents.append(content_of(comparison))
    thin = 1
    while True:
        page = to_html(title, contents, inspected(recorded, thin=thin)).encode()
        if len(page) <= LARGEST or not recorded:
            break
        if thin > 8:
            raise UsageError(
                f"the page would have {len(page) / 1e6:.0f} MB: name fewer recorded runs"
            )
        thin *= 2
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)
    return len(page)
