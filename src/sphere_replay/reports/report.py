"""A report: sources in, one page out."""

from collections.abc import Sequence
from pathlib import Path

from sphere_replay.reports.contents import content_of
from sphere_replay.reports.page import to_html
from sphere_replay.reports.sources import read_sources
from sphere_replay.storage.files import write_atomically


def write_report(sources: Sequence[Path], out: Path, title: str) -> int:
    """Write the page of saved results and run folders; its size in bytes."""
    comparisons = read_sources(sources)
    contents = [content_of(comparison) for comparison in comparisons]
    page = to_html(title, contents, {"streams": [], "runs": []}).encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)
    return len(page)
