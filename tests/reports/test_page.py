"""The page of a report as a file: whole, small, and safe whatever the data say."""

import base64
import hashlib
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from plugged import EXAMPLE, forgotten
from sphere_replay.cli import main
from sphere_replay.reports.atlas import atlas
from sphere_replay.reports.collection import save_collection
from sphere_replay.reports.contents import content_of
from sphere_replay.reports.page import LARGEST, embedded, to_html
from sphere_replay.reports.recorded import turned
from sphere_replay.reports.report import write_report
from sphere_replay.reports.sources import _method_names, read_sources
from sphere_replay.runs.launch import run_config
from sphere_replay.storage.checksums import NAME as CHECKSUMS
from sphere_replay.vision.presets import resolve

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>&amp;'\""
RESULTS = Path(__file__).parents[2] / "results"
EMPTY: dict[str, Any] = {"runs": [], "streams": []}


def data_in(page: str) -> Any:
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_data_cannot_leave_their_element() -> None:
    text = embedded({HOSTILE: [HOSTILE, "\u2028"]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {HOSTILE: [HOSTILE, "\u2028"]}
    page = to_html(HOSTILE, [{"name": HOSTILE}], EMPTY)
    assert data_in(page)["experiments"] == [{"name": HOSTILE}]
    assert page.count("<script") == 2
    assert f"<title>{html.escape(HOSTILE)}</title>" in page


def test_the_policy_names_the_scripts_and_the_style_of_the_page() -> None:
    page = to_html("title", [], EMPTY)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'")
    for kind, tag in (("script", "script"), ("style", "style")):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_scripts_make_no_markup_and_fetch_nothing() -> None:
    page = to_html("title", [], EMPTY)
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert word not in page.replace("there is no innerHTML in this page", "")
    addresses = set(re.findall(r"https?://[^\"'\s)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, nothing to fetch


@pytest.mark.skipif(not RESULTS.is_dir(), reason="the committed results are not installed")
def test_the_committed_results_make_a_page_of_sensible_size(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert write_report([RESULTS], out, "Results").size < LARGEST
    experiments = data_in(out.read_text())["experiments"]
    assert len(experiments) == len(list(RESULTS.glob("*.json")))
    mnist = next(each for each in experiments if each["name"] == "mnist")
    assert mnist["methods"][1] == {"name": "ER + SPHERE", "baseline": "ER"}
    assert "sphere sweep mnist" in mnist["commands"]["runs"]
    notes = {setting["name"]: setting["note"] for setting in mnist["settings"]}
    assert notes["noise_kind"] == "left open by the paper"


def saved(path: Path, seeds: int = 3) -> Path:
    """A collection of a table that does not exist, with a gain of 10 to 12 points."""
    runs = []
    for seed in range(seeds):
        for method, gain in (("ER", 0.0), ("ER + SPHERE", 0.1 + 0.01 * seed)):
            course = {"task_ends": [10, 20], "anytime": [[10, 0.9], [20, 0.6 + 0.1 * (gain > 0)]]}
            runs.append(
                {
                    "method": method,
                    "column": HOSTILE,
                    "seed": seed,
                    "metrics": {"class_il": 0.5 + gain},
                    "replay": {"noisy_lift": 1.2},
                    "course": course | {"tasks": [[0.9, None], [0.4, 0.8]]},
                }
            )
    save_collection(path, HOSTILE, "sphere sweep x", {}, runs)
    return path


def test_a_table_that_nobody_knows_any_more_is_made_of_its_runs(tmp_path: Path) -> None:
    [comparison] = read_sources([saved(tmp_path / "x.json")])
    content = content_of(comparison)
    assert content["name"] == HOSTILE
    assert content["methods"][1]["baseline"] == "ER"
    cell = next(cell for cell in content["cells"] if cell["gain"] is not None)
    assert cell["gain"] == pytest.approx(11.0)  # 10, 11 and 12 points
    assert cell["ci"] == pytest.approx([11 - 2.4841, 11 + 2.4841], abs=1e-3)
    line = content["curves"][HOSTILE]["lines"]["ER + SPHERE"]
    assert (line["x"], line["mean"]) == ([10, 20], [90, 70])
    assert content["matrices"][HOSTILE]["ER"] == [[90.0, None], [40.0, 80.0]]


def test_run_folders_are_compared_with_their_host_on_common_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        for select in ("uniform", "sphere"):
            run_config(resolve("digits", "er", select, seed=seed, limit=60), tmp_path)
    run_config(resolve("digits", "er", "sphere", seed=0, limit=60, alpha=0.9), tmp_path)
    [comparison] = read_sources([tmp_path])
    content = content_of(comparison)
    assert [method["name"] for method in content["methods"]] == [
        "er",
        "er + sphere, alpha 0.5",
        "er + sphere, alpha 0.9",
    ]
    assert {method["baseline"] for method in content["methods"]} == {None, "er"}
    assert content["columns"] == ["40%"]
    assert content["seconds"]["er"] > 0
    assert content["passes"]["er"]["forward"] > 1
    settings = {setting["name"]: setting for setting in content["settings"]}
    assert settings["lr"]["value"] == "0.1"
    assert settings["lr"]["note"] == "chosen here"
    assert settings["alpha"]["values"]["er + sphere, alpha 0.9"] == "0.9"


def test_an_experiments_file_stands_for_its_finished_runs(tmp_path: Path) -> None:
    experiment = tmp_path / "mine.toml"
    experiment.write_text(
        'title = "Mine"\npreset = "digits"\nseeds = 2\n[settings]\nlimit = 60\n'
        '[columns]\nNoisy = { noise = 0.4 }\n[[rows]]\nmethod = "ER"\n'
        '[[rows]]\nmethod = "Ours"\nselect = "sphere"\nbaseline = "ER"\n'
    )
    runs = tmp_path / "runs"
    assert main(["sweep", str(experiment), "--out", str(runs), "--quiet"]) == 0
    [comparison] = read_sources([experiment], runs)
    content = content_of(comparison)
    assert (content["title"], content["columns"], content["runs"]) == ("Mine", ["Noisy"], 4)
    assert content["curves"]["Noisy"]["lines"].keys() == {"ER", "Ours"}
    assert content["seconds"].keys() == {"ER", "Ours"}
    assert {"name": "limit", "value": "60"}.items() <= next(
        setting for setting in content["settings"] if setting["name"] == "limit"
    ).items()


def test_an_experiment_with_plugins_is_reported_in_a_process_that_knows_them_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, runs, out = tmp_path / "mine.toml", tmp_path / "elsewhere", tmp_path / "page.html"
    head = 'title = "Mine"\npreset = "shapes"\nseeds = 1\n'
    named = f"plugins = ['{EXAMPLE}']\n"
    rows = '[[rows]]\nmethod = "ER"\n[[rows]]\nmethod = "Mine"\nselect = "tempered"\n'
    experiment.write_text(head + named + rows)
    with forgotten():
        assert main(["report", str(experiment), "--runs", str(runs)]) == 2
        assert "make them with: sphere sweep" in capsys.readouterr().err
    with forgotten():
        assert main(["sweep", str(experiment), "--out", str(runs), "--quiet"]) == 0
    words = ["report", str(experiment), "--runs", str(runs), "--out", str(out)]
    for content, plugin in ((head + named + rows, []), (head + rows, ["--plugin", str(EXAMPLE)])):
        experiment.write_text(content)
        with forgotten():
            assert main([*words, *plugin]) == 0
        page = out.read_text()
        assert "tempered" in page
        assert f"sphere table {experiment} --runs {runs} --latex" in page
    manifest = next(runs.glob("*/manifest.json"))
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"code": "another"}))
    (manifest.parent / CHECKSUMS).unlink()  # as if that code had finished it
    capsys.readouterr()
    with forgotten():
        assert main([*words, "--plugin", str(EXAMPLE)]) == 0
    assert "1 of 2 results were made by other code" in capsys.readouterr().err


def test_runs_that_differ_in_options_or_code_are_told_apart_in_few_words() -> None:
    plain = {"host": "er", "select": "mine", "seed": 0, "select_options": {"t": 1.0, "u": 2}}
    configs = [
        plain | {"code": {"select": "a" * 64}},
        plain | {"code": {"select": "b" * 64}},
        plain | {"code": {"select": "b" * 64}, "select_options": {"t": 0.5, "u": 2}},
    ]
    assert _method_names(configs) == [
        "er + mine, t 1.0, select code aaaaaa",
        "er + mine, t 1.0, select code bbbbbb",
        "er + mine, t 0.5, select code bbbbbb",
    ]


def test_nothing_to_report_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no finished run and no saved result" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_come_out_of_the_sheet_as_they_went_in(channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = {
        key: torch.randint(256, (channels, 5, 4), generator=generator, dtype=torch.uint8)
        for key in (3, 99, 7)
    }
    sheet = atlas(images)
    content = base64.b64decode(sheet["picture"].partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(content))).reshape(5, -1, channels)
    for key, image in images.items():
        left = sheet["places"][str(key)] * 4
        assert np.array_equal(pixels[:, left : left + 4], image.permute(1, 2, 0).numpy())


def test_large_pictures_are_shrunk() -> None:
    sheet = atlas({0: torch.full((3, 64, 64), 200, dtype=torch.uint8)})
    assert (sheet["width"], sheet["height"]) == (32, 32)


def test_a_map_is_turned_back_to_the_one_before() -> None:
    places = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).double()
    angle = torch.tensor(2.0).double()
    turn = torch.stack(
        [torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])]
    )
    keys = list(range(20))
    moved = (places * torch.tensor([1.0, -1.0])) @ turn
    torch.testing.assert_close(turned(keys, moved, keys, places), places)
    # Strangers are turned along, and nobody in common leaves the map as it is.
    assert torch.equal(turned(keys, moved, [100], places[:1]), moved)
