"""Makes the pictures of the documents from committed results and short runs: `make pictures`."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import Page, sync_playwright

from sphere_replay.integrations.transformers.task_evaluation import EvaluationMatrix
from sphere_replay.reports.collection import load_collection

IMAGES = Path(__file__).parent / "images"
ROOT = Path(__file__).parents[1]


def sphere(*words: object) -> None:
    """A command of ours, run in the root of the repository."""
    command = [sys.executable, "-m", "sphere_replay", *map(str, words)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def look_into(page: Page) -> None:
    """Compare two runs at a late moment, and choose a memory with a wrong label."""
    page.get_by_label("Compare with").select_option(index=1)
    page.locator("#moment").focus()
    page.keyboard.press("End")
    page.locator(".map").first.locator("circle.wrong").nth(6).click(force=True)


def draw_matrix(
    method: str = "SPHERE", tasks: tuple[str, ...] = ("agnews", "sst2", "dbpedia")
) -> None:
    """The accuracies of one of the saved runs with SmolLM2, after each task."""
    saved = load_collection(ROOT / "results" / "instruct-smollm2.json")
    run = next(run for run in saved.runs if run["method"] == method and run["seed"] == 0)
    unmeasured = float("nan")
    rows = [[unmeasured if x is None else x for x in row] for row in run["course"]["tasks"]]
    matrix = EvaluationMatrix(tasks, torch.tensor(rows, dtype=torch.float64), "accuracy", True)
    matrix.heat_map(IMAGES / "accuracy-matrix.svg")


def main() -> None:
    """All of them."""
    IMAGES.mkdir(exist_ok=True)
    draw_matrix()
    with tempfile.TemporaryDirectory() as folder:
        runs, swept = Path(folder) / "runs", Path(folder) / "swept"
        for select in ("sphere-calibrated", "uniform"):
            one = ["run", "digits", "--host", "er-ace", "--select", select, "--noise", "0.4"]
            sphere(*one, "--record", 8, "--out", runs, "--quiet")
        sphere("sweep", "digits", "--seeds", 3, "--columns", "40%", "--out", swept, "--quiet")
        sphere(
            "plot", "digits", "--runs", swept, "--column", "40%", "--format", "svg", "--out", folder
        )
        shutil.copy(Path(folder) / "accuracy-over-stream.svg", IMAGES)
        clean_and_noisy = ("--columns", "Clean", "40%")
        sphere("table", "mnist", *clean_and_noisy, "--forest", IMAGES / "gains.svg", "--json")
        picture = IMAGES / "gains-instruct-smollm2.svg"
        sphere("table", "instruct-smollm2", "--forest", picture, "--json")
        sphere("report", "results", "--out", Path(folder) / "report.html")
        sphere("inspect", runs, "--out", Path(folder) / "inspect.html", "--no-open")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--no-sandbox"] if os.geteuid() == 0 else [],
            )
            for name, height in (("report", 1500), ("inspect", 980)):
                page = browser.new_page(viewport={"width": 1280, "height": height})
                page.goto((Path(folder) / f"{name}.html").as_uri())
                if name == "inspect":
                    look_into(page)
                page.mouse.move(0, 0)
                page.wait_for_timeout(500)
                target = IMAGES / ("inspector.png" if name == "inspect" else f"{name}.png")
                page.screenshot(path=target)
            browser.close()


if __name__ == "__main__":
    main()
