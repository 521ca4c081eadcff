"""The documents keep their word: their code runs, prints what they show, and links lead on."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"performance.md"}

# A python block and, if it follows at once, the text block that shows its output.
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _blocks(text: str) -> list[tuple[int, str, str | None]]:
    """(line before the code, code, shown output) of every python block, in order."""
    return [
        (text.count("\n", 0, match.start(1)), match[1], match[2]) for match in _BLOCK.finditer(text)
    ]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


WITH_CODE = [path for path in DOCUMENTS if _blocks(path.read_text("utf-8"))]


@pytest.mark.parametrize("path", WITH_CODE, ids=_name)
def test_code_runs_and_prints_what_is_shown(path: Path) -> None:
    namespace: dict[str, object] = {"__name__": path.stem}
    for line, code, shown in _blocks(path.read_text("utf-8")):
        printed = io.StringIO()
        # Leading newlines make a traceback point at the line of the document.
        compiled = compile("\n" * line + code, str(path), "exec")
        with contextlib.redirect_stdout(printed):
            exec(compiled, namespace)
        if shown is not None:
            assert printed.getvalue().rstrip() == shown.rstrip(), f"{_name(path)}:{line}"


def test_the_documents_with_code_are_found() -> None:
    names = {_name(path) for path in WITH_CODE}
    assert {"README.md", "docs/index.md", "docs/concepts.md", "docs/edge-cases.md"} <= names


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_to_files(path: Path) -> None:
    prose = _FENCED.sub("", path.read_text("utf-8"))
    targets = [target for target in _LINK.findall(prose) if "://" not in target]
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert [target for target in missing if Path(target).name not in GENERATED] == []
