"""Renews the tables in the documents from committed results: `make tables`.

A table stands between a comment that holds its command and one that ends it:

    <!-- sphere table mnist --brief -->

    ...

    <!-- end of table -->
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

from sphere_replay.cli import main as sphere

DOCUMENTS = Path(__file__).parent
RESULTS = DOCUMENTS.parent / "results"
_TABLE = re.compile(r"<!-- sphere (table .*?) -->\n.*?<!-- end of table -->", re.DOTALL)


def renewed(text: str) -> str:
    """A document with the tables that its commands print now."""

    def made(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            failed = sphere([*shlex.split(found[1]), "--results", str(RESULTS)])
        if failed:
            raise SystemExit(f"sphere {found[1]} failed")
        return f"<!-- sphere {found[1]} -->\n\n{printed.getvalue()}\n<!-- end of table -->"

    return _TABLE.sub(made, text)


if __name__ == "__main__":
    for path in sorted(DOCUMENTS.glob("*.md")):
        path.write_text(renewed(path.read_text("utf-8")), "utf-8")
