"""Progress bars on standard error; hidden where nobody looks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def step_progress(title: str, *, hidden: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar told (done, total, words) after every step; None if hidden or rich is not there."""
    if hidden or not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
    except ImportError:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Remaining(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, words="")

        def report(done: int, total: int, words: str) -> None:
            bar.update(task, completed=done, total=total, words=words)

        yield report
