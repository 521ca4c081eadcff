"""A report in a real browser, used as a person would: open, hover, click, slide, switch."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reports.test_page import HOSTILE, saved
from sphere_replay.reports.report import write_inspector, write_report
from sphere_replay.runs.launch import run_config, run_folder
from sphere_replay.runs.recording import FOLDER
from sphere_replay.storage.saved import load_tree, save_tree
from sphere_replay.vision.presets import resolve

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
try:
    from playwright.sync_api import Browser, Page, sync_playwright
except ModuleNotFoundError:
    sync_playwright = None  # the tests below are skipped then

ABSENT = "no browser: `make browser` installs Chromium and Playwright"
if os.environ.get("CI") == "true":
    ABSENT = f"!!! THE REPORT IS NOT TESTED: CI HAS {ABSENT.upper()} !!!"
pytestmark = pytest.mark.skipif(CHROMIUM is None or sync_playwright is None, reason=ABSENT)

Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with sync_playwright() as playwright:
        root = os.geteuid() == 0  # Chromium's own sandbox refuses root
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if root else []
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: "Browser") -> Iterator[Open]:
    """Opens a page; at the end nobody may have complained or fetched anything."""
    complaints: list[str] = []
    contexts = []

    def open_page(path: Path, view: str = "", width: int = 1200, **options: Any) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{path.as_uri()}{view}")
        return page

    requests: list[str] = []
    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for select in ("sphere-calibrated", "uniform"):
        for seed in (0, 1):
            config = resolve("digits", "er-ace", select, seed=seed, limit=300)
            run_config(config, out, record=4 if seed == 0 else 0)
    return out


@pytest.fixture(scope="module")
def report(runs: Path) -> Path:
    path = runs / "report.html"
    write_report([runs], path, "A report")
    return path


def fits(page: "Page") -> bool:
    """Whether nothing sticks out at the right."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_the_overview_shows_gains_table_curves_and_costs(report: Path, opened: Open) -> None:
    page = opened(report)
    for title in ("Paired gains", "Table", "Forgetting", "Cost against gain", "Settings"):
        assert page.get_by_role("heading", name=title, exact=True).is_visible()
    gains = page.get_by_role("group", name="Paired gains with 95% intervals")
    assert "er-ace + sphere-calibrated over er-ace" in str(gains.text_content())
    gains.get_by_role("img").first.hover()
    assert "points over 2 seeds" in page.locator(".tip").inner_text()
    # Another measure is another table and other gains.
    before = gains.text_content()
    page.get_by_label("Measure").select_option("task_il")
    assert "Task-IL" in page.locator("main").inner_text()
    assert gains.text_content() != before
    curves = page.get_by_role("group", name="Accuracy over the stream")
    curves.hover(position={"x": 300, "y": 150})
    assert "step" in page.locator(".tip").inner_text()
    page.get_by_text("As LaTeX").click()
    assert page.get_by_text(r"\toprule").is_visible()


def test_a_memory_is_looked_at_by_mouse(report: Path, opened: Open) -> None:
    page = opened(report, "#inspector")
    points = page.locator(".map circle[data-index]")
    assert points.count() > 20
    points.last.hover(force=True)
    tip = page.locator(".tip")
    assert {"label", "true label", "increment", "consensus", "backing", "weight"} <= set(
        tip.locator("dt").all_inner_texts()
    )
    assert tip.locator("canvas").count() == 1
    points.last.click(force=True)
    panel = page.locator(".panel")
    assert "fair share" in panel.locator(".verdict").inner_text()
    assert "votes" in panel.inner_text()
    assert panel.locator("ol li").count() == 6
    # The picture is that of the sheet, not an empty one.
    pixels = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    assert panel.locator("canvas").first.evaluate(f"c => ({pixels})(c).some(v => v > 9 && v < 255)")
    # A neighbour can be looked at in turn.
    before = panel.locator(".verdict").inner_text()
    panel.locator("ol li button").first.click()
    assert page.locator(".map .link").count() == 6
    assert panel.locator(".verdict").inner_text() != before


def test_the_slider_goes_through_the_stream_and_a_switch_compares(
    report: Path, opened: Open
) -> None:
    page = opened(report, "#inspector")
    first = page.locator(".maps .why").first.inner_text()
    page.locator("#moment").focus()
    page.keyboard.press("End")
    assert "moment 4 of 4" in page.locator(".controls").inner_text()
    assert page.locator(".maps .why").first.inner_text() != first
    page.get_by_label("Compare with").select_option(index=1)
    page.locator(".map").nth(1).wait_for()
    assert page.locator(".map").count() == 2
    # Both saw the same stream, so both remember the same.
    counts = [page.locator(".map").nth(i).locator("circle[data-index]").count() for i in (0, 1)]
    assert counts[0] == counts[1]
    page.locator(".map").first.locator("circle[data-index]").last.click(force=True)
    assert "In the other run" in page.locator(".panel").inner_text()
    fills = "list => list.map(point => point.getAttribute('fill')).join()"
    before = page.locator(".map circle[data-index]").evaluate_all(fills)
    page.get_by_label("Colour").select_option("increment")
    assert page.locator(".map circle[data-index]").evaluate_all(fills) != before


def test_the_map_is_used_by_keyboard(report: Path, opened: Open) -> None:
    page = opened(report, "#inspector")
    page.locator(".map").focus()
    page.keyboard.press("ArrowRight")
    first = page.locator(".tip").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".tip").inner_text() != first
    page.keyboard.press("Enter")
    assert page.locator(".panel .verdict").is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


@pytest.mark.parametrize("view", ["#results", "#inspector"])
def test_a_phone_shows_everything(report: Path, opened: Open, view: str) -> None:
    page = opened(report, view, width=380)
    page.locator("main h1").first.wait_for()
    assert fits(page)
    sizes = "list => Math.min(...list.map(node => parseFloat(getComputedStyle(node).fontSize)))"
    assert page.locator("main svg text").evaluate_all(sizes) >= 11


def test_dark_is_dark_and_the_theme_can_be_chosen(report: Path, opened: Open) -> None:
    def lightness(page: "Page") -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.strip("rgb()").split(",")[:3])

    dark, light = opened(report, color_scheme="dark"), opened(report, color_scheme="light")
    assert lightness(dark) < 200 < 600 < lightness(light)
    light.get_by_role("button", name="Theme").click(click_count=1)
    light.get_by_role("button", name="Theme").click(click_count=1)
    assert lightness(light) < 200


def test_hostile_data_are_text(tmp_path: Path, opened: Open) -> None:
    config = resolve("digits", "er", "sphere", seed=0, limit=100)
    run_config(config, tmp_path / "runs", record=1)
    recording = run_folder(config, tmp_path / "runs").path / FOLDER
    [path] = recording.glob("*.json")
    head, tree = load_tree(recording, path.stem)
    tree |= {"images": None, "texts": [HOSTILE] * len(tree["keys"]), "names": [HOSTILE] * 10}
    save_tree(recording, path.stem, tree, head=head)
    results = saved(tmp_path / "<img src=x onerror=window.hacked=1>.json")
    write_report([results, tmp_path / "runs"], tmp_path / "page.html", HOSTILE)
    page = opened(tmp_path / "page.html")
    assert page.locator("header strong").inner_text() == HOSTILE
    glance = page.get_by_role("group", name="All paired gains")
    assert HOSTILE in str(glance.text_content())
    page.get_by_label("Experiment", exact=True).select_option(HOSTILE)
    assert "<img src=x onerror" in page.locator("main").inner_text()
    page.goto(f"{(tmp_path / 'page.html').as_uri()}#inspector")
    page.locator(".map circle[data-index]").first.click(force=True)
    assert HOSTILE in page.locator(".panel").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_a_page_of_recorded_runs_alone(runs: Path, opened: Open) -> None:
    write_inspector([runs], runs / "look.html", "Look")
    page = opened(runs / "look.html")
    assert page.get_by_role("heading", name="Inspector").is_visible()
    assert page.locator("nav a").all_inner_texts() == ["Inspector"]
