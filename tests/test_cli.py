"""The command line as a stranger meets it: help, mistakes, results, tables, pictures."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from sphere_replay.cli import COMMANDS, main
from sphere_replay.runs.domains import table_named
from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS, EVALUATION_SEEDS, seeds_in
from sphere_replay.vision.stream import ClassStream

SHORT = ["--limit", "200", "--quiet"]
FEW = ["--seeds", "2"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        assert "Example" in capsys.readouterr().out, name


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ls", "--json")
    listing = json.loads(out)
    assert code == 0
    assert {"digits", "mnist", "cifar10-small", "instruct-tiny"} <= set(listing["presets"])
    assert {"none", "er", "er-ace", "der-pp", "gdumb"} <= set(listing["hosts"])
    assert len(listing["selections"]) == 12


def test_showing_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "cifar10", "--host", "er-ace", "--select=sphere", "--json")
    shown = json.loads(out)
    assert code == 0
    assert (shown["config"]["k_s"], shown["config"]["k_t"]) == (10, 50)
    assert shown["notes"]["split_by"] == "left open by the paper"
    assert shown["config"]["options"] == {
        "strength": 1.0,
        "joint_batch": False,
        "mask_rule": "present_and_newest",
    }
    _, out, _ = run(capsys, "show", "cifar10", "--host", "xder")
    assert "  eta                0.1\n" in out  # also what nobody has set
    assert "  align_bn           true\n" in out
    assert "\nconstants\n" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "digitz"], "unknown preset 'digitz': did you mean digits"),
        (["run", "digits", "--host", "er-ac"], "did you mean er-ace"),
        (["run", "digits", "--select", "spere"], "unknown selection 'spere': did you mean sphere"),
        (["run", "digits", "--noise", "1.0"], "noise must lie in [0, 1)"),
        (["run", "digits", "--set", "capacity=5"], "raise capacity or lower replay_batch"),
        (["run", "digits", "--set", "lr=fast"], "lr takes float, got 'fast'"),
        (["run", "digits", "--set", "speed=1"], "unknown setting 'speed'"),
        (["run", "digits", "--set", "preset=mnist"], "preset has a place of its own"),
        (["run", "instruct-tiny", "--set", "corpus=[]"], "unhashable type"),
        (["sweep", "digits", "--set", "lr=fast"], "takes float, got 'fast'"),
        (["sweep", "digits", "--save", __file__], "test_cli.py is damaged"),
        (["run", "mnist", "--data", "nowhere"], "nowhere"),
        (["sweep", "mnits"], "unknown table 'mnits': did you mean mnist"),
        (["table", "digits", "--results", "nowhere"], "make them with: sphere sweep digits"),
        (["plot", "digits", "--runs", "nowhere", *FEW], "make them with: sphere sweep digits"),
        (["plot", "cifar10", "--small", "--runs", "no", *FEW], "sphere sweep cifar10 --small"),
        (["plot", "digits", "--small"], "small"),
        (["search", "digits", "--grid", "beta=1"], "--grid takes NAME=A,B"),
        (["search", "digits", "--select", "uniform"], "no alpha to search"),
        (["search", "instruct-tiny"], "vision presets only"),
    ],
)
def test_mistakes_get_one_line_that_helps(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_run_prints_its_results_and_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "digits", "--select", "sphere", "--out", str(tmp_path), *SHORT]
    code, out, _ = run(capsys, *words, "--json")
    results = json.loads(out)
    assert code == 0
    assert 0 <= results["metrics"]["class_il"] <= 1
    assert results["costs"]["scored_per_example"] > 0
    assert json.loads((Path(results["folder"]) / "results.json").read_text()).items() <= (
        results.items()
    )
    manifest = json.loads((Path(results["folder"]) / "manifest.json").read_text())
    (saved,) = (tmp_path / "streams").iterdir()
    assert saved.stem == manifest["data"]["stream"]
    stream = ClassStream.from_tensors(load_file(saved))
    assert (stream.digest, len(stream)) == (saved.stem, 200)
    assert run(capsys, *words, "--json")[1] == out
    assert run(capsys, *words)[1].startswith("class_il")


def test_a_diverging_run_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "digits", "--set", "lr=1e30", "--out", str(tmp_path), *SHORT]
    code, _, err = run(capsys, *words)
    assert code == 1
    assert "diverged at step 1" in err
    assert err.endswith(". Checkpoints before it are kept.\n")


def test_from_sweep_to_table_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, saved = tmp_path / "runs", tmp_path / "results" / "digits.json"
    some = ["--methods", "ER", "ER + SPHERE", "--columns", "40%"]
    sweep = ["sweep", "digits", "--seeds", "2", "--out", str(runs), "--save", str(saved), *some]
    code, out, _ = run(capsys, *sweep, "--quiet")
    assert code == 0
    assert "4 of 4 runs finished" in out
    assert "--out" not in json.loads(saved.read_text())["command"]
    finished = {path: path.stat().st_mtime_ns for path in runs.glob("*/results.json")}
    run(capsys, *sweep, "--quiet")
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    code, out, _ = run(capsys, "table", "digits", "--results", str(saved.parent), "--json")
    table = json.loads(out)
    assert code == 0
    place = ("ER + SPHERE", "40%", "class_il")
    (cell,) = [
        row for row in table["rows"] if (row["method"], row["column"], row["metric"]) == place
    ]
    wanted = {"method", "column", "metric", "mean", "sd", "seeds", "published"}
    assert wanted | {"paired_gain", "ci95"} <= set(cell)
    assert cell["seeds"] == 2
    assert len(cell["ci95"]) == 2
    assert "passes" not in table
    _, out, _ = run(capsys, "table", "digits", "--runs", str(runs), "--json", "--costs", *FEW)
    assert set(json.loads(out)["passes"]) == {"ER", "ER + SPHERE"}
    plots = tmp_path / "plots"
    column = ["--column", "40%", *FEW]
    code, _, _ = run(capsys, "plot", "digits", "--runs", str(runs), "--out", str(plots), *column)
    assert code == 0
    assert {path.stem for path in plots.glob("*.png")} == {
        *("gains", "accuracy-over-stream", "forgetting", "noisy-lift")
    }
    code, out, _ = run(capsys, "table", "digits", "--results", str(saved.parent), "--latex")
    assert code == 0
    assert "\\bottomrule" in out
    _, out, _ = run(capsys, "table", "digits", "--results", str(saved.parent), "--csv")
    assert out.startswith("method,column,metric,mean")


def test_a_table_tells_what_its_runs_have_beyond_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, saved = tmp_path / "runs", tmp_path / "results" / "digits.json"
    other = ["--limit", "200", "--set", "optimizer.momentum=0.5"]
    some = ["--methods", "ER + SPHERE", "--columns", "40%", "--seeds", "1", "--quiet"]
    assert main(["sweep", "digits", *some, *other, "--out", str(runs), "--save", str(saved)]) == 0
    capsys.readouterr()
    _, kept, _ = run(capsys, "table", "digits", "--results", str(saved.parent))
    _, found, _ = run(capsys, "table", "digits", "--runs", str(runs), "--seeds", "1", *other)
    for out in (kept, found):
        assert out.splitlines()[0].endswith(" (optimizer.momentum 0.5, limit 200)")
    code, _, err = run(capsys, "table", "digits", "--runs", str(runs), "--seeds", "1")
    assert code == 2
    assert (
        "1 runs there have the same names, but other settings (there: limit 200, "
        "optimizer.momentum 0.5; add --limit 200 --set optimizer.momentum=0.5)"
    ) in err
    limited = ["--limit", "300", "--set", "optimizer.momentum=0.5", "--seeds", "1"]
    _, _, err = run(capsys, "table", "digits", "--runs", str(runs), *limited)
    assert "(there: limit 200; add --limit 200)" in err


def test_of_a_thousand_seeds_those_are_looked_at_that_have_folders(tmp_path: Path) -> None:
    table = table_named("digits")
    assert seeds_in(table, EVALUATION_SEEDS, tmp_path / "nowhere") == range(1)
    for name in (
        "digits-er-uniform-noise40-seed7-0123abcd",
        "x-seed12-0f",
        "seed3",
        "x-seed1000-a",
    ):
        (tmp_path / name).mkdir()
    assert seeds_in(table, EVALUATION_SEEDS, tmp_path) == [7, 12]
    assert seeds_in(table, DEVELOPMENT_SEEDS, tmp_path) == [1000]
    ordered = table_named("instruct")  # three orders of each seed
    assert seeds_in(ordered, EVALUATION_SEEDS, tmp_path) == [21, 22, 23, 36, 37, 38]


def test_a_failed_run_is_reported_and_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "digits", "--seeds", "1", "--out", str(tmp_path), "--columns", "Clean"]
    code, out, _ = run(
        capsys, *words, "--methods", "ER", "MIR", "--quiet", "--set", "lr=1e30", "--set", "limit=99"
    )
    assert code == 1
    assert "0 of 2 runs finished" in out
    assert out.count("failed: digits-er-") == 2
    assert len(list(tmp_path.glob("*/error.txt"))) == 2


def test_search_ranks_candidates_on_development_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", "digits", "--seeds", "2", "--grid", "alpha=0.5,0.85", "--out", str(tmp_path)]
    code, out, _ = run(capsys, *words, "--limit", "200", "--json")
    ranking = json.loads(out)
    assert code == 0
    assert [entry["gain"] for entry in ranking] == sorted(
        (entry["gain"] for entry in ranking), reverse=True
    )
    assert {entry["alpha"] for entry in ranking} == {0.5, 0.85}
    seeds = {json.loads(path.read_text())["seed"] for path in tmp_path.glob("*/config.json")}
    assert seeds == {1000, 1001}


def test_demo_draws_the_toy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "demo", "--toy-only", "--out", str(tmp_path))
    assert code == 0
    assert "its weight is 0.50 times that of uniform" in " ".join(out.split())
    assert (tmp_path / "spike-and-region.png").stat().st_size > 10_000
