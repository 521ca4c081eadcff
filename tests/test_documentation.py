"""The documents keep their word: their code runs, prints what they show, and links lead on."""

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import pytest

from plugged import forgotten
from sphere_replay.cli import build_parser
from sphere_replay.cli.options import config_from
from sphere_replay.hosts import HOSTS
from sphere_replay.replay import SELECTIONS
from sphere_replay.runs.domains import all_presets, domain
from sphere_replay.runs.experiment import load_experiment
from sphere_replay.runs.metrics import METRICS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"performance.md", "reproduction.md"}

# A python block and, if it follows at once, the text block that shows its output.
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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
def test_code_runs_and_prints_what_is_shown(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # documents that make runs leave them here
    namespace: dict[str, object] = {"__name__": path.stem}
    for line, code, shown in _blocks(path.read_text("utf-8")):
        printed = io.StringIO()
        # Leading newlines make a traceback point at the line of the document.
        compiled = compile("\n" * line + code, str(path), "exec")
        with contextlib.redirect_stdout(printed), forgotten():
            exec(compiled, namespace)
        if shown is not None:
            assert printed.getvalue().rstrip() == shown.rstrip(), f"{_name(path)}:{line}"


def test_the_documents_with_code_are_found() -> None:
    names = {_name(path) for path in WITH_CODE}
    assert {"README.md", "docs/index.md", "docs/concepts.md", "docs/edge-cases.md"} <= names
    assert "docs/experiments.md" in names


def _commands() -> list[tuple[str, list[str]]]:
    """(document, arguments) of every `sphere` command in a shell block."""
    found = []
    for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for block in _SHELL.findall(path.read_text("utf-8")):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["sphere"] and words[1:] != ["--help"]:
                    found.append((_name(path), words[1:]))
    return found


def test_shown_commands_exist_with_all_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = _commands()
    assert {"run", "sweep", "table", "plot", "search"} <= {words[0] for _, words in commands}
    for _, words in commands:
        arguments = build_parser().parse_args(words)  # exits if an option is not known
        if words[1:] and words[1].endswith(".toml"):
            with forgotten():
                assert load_experiment(words[1]).rows
        elif "--dataset" in words:  # on the hub, which no test reaches
            assert words[1] in all_presets()
        elif words[0] in ("run", "show", "search"):
            config = config_from(arguments, seed=0)
            assert words[1] in domain(config.DOMAIN).names()
            dataset = words[1].removesuffix("-frozen")
            assert config.to_dict().get("dataset", dataset) == dataset


def test_tables_are_those_of_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    renewed = importlib.import_module("tables").renewed
    page = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert page.count("<!-- sphere table ") == page.count("<!-- end of table -->") > 2
    assert renewed(page) == page, "renew it with: make tables"


def test_the_page_of_metrics_has_every_name_and_formula() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name, metric in METRICS.items():
        better = "higher" if metric.higher_is_better else "lower"
        start = f"| `{name}` | {metric.title} | `{metric.formula}` | {better} | "
        matching = [row for row in rows if row.startswith(start) and row != f"{start}|"]
        assert len(matching) == 1, f"docs/metrics.md lacks a row that starts with: {start}"


def test_the_page_of_hosts_has_every_host_with_its_options() -> None:
    page = (ROOT / "docs" / "hosts.md").read_text("utf-8")
    sections = {section.split("`", 1)[0]: section for section in page.split("\n## `")[1:]}
    assert list(sections) == list(HOSTS)
    for name, host in HOSTS.items():
        for option, default in host.OPTIONS().to_dict().items():
            row = next((row for row in sections[name].splitlines() if f"`{option}`" in row), "")
            shown = _shown(default)
            assert shown in row, f"{name}: `{option}` should be shown as {shown}"
    for selection in SELECTIONS:
        assert f"`{selection}`" in page


def _shown(default: object) -> str:
    return f"{default:g}" if type(default) in (int, float) else str(default).lower()


def test_the_site_has_every_page() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    for path in DOCUMENTS[1:]:
        assert f": {path.relative_to(ROOT / 'docs').as_posix()}" in settings


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_to_files(path: Path) -> None:
    prose = _FENCED.sub("", path.read_text("utf-8"))
    targets = [target for target in _LINK.findall(prose) if "://" not in target]
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert [target for target in missing if Path(target).name not in GENERATED] == []
