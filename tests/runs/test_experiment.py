"""Experiments as files: read, checked, swept, shown; and runs that are repeated from theirs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugged import EXAMPLE, forgotten
from sphere_replay.cli import main
from sphere_replay.runs.experiment import ExperimentError, load_experiment
from sphere_replay.runs.settings import spelled_out
from sphere_replay.runs.table import Measure, Published, Spread, Unit
from sphere_replay.runs.table_runs import runs_of, seeds_of

WHOLE = f"""
name = "hot"
title = "Hot and cold"
preset = "shapes"
measures = ["class_il", {{ metric = "tail_accuracy", over_runs = "min" }}]
seeds = [3, 5]
spread = "sample"
unit = "fraction"
plugins = ["{EXAMPLE}"]

[settings]
limit = 120
optimizer.momentum = 0.5

[columns]
Clean = {{ noise = 0.0 }}
"40%" = {{ noise = 0.4, host.strength = 2.0 }}

[[rows]]
method = "ER"
published = {{ Clean = "0.5/0.1 0.25" }}

[[rows]]
method = "hot"
select = "tempered"
baseline = "ER"
settings = {{ "select.temperature" = 3 }}

[grid]
select.temperature = [0.5, 4.0]
"""


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    with forgotten():
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(WHOLE)
    return path


def test_a_file_is_a_table(file: Path) -> None:
    table = load_experiment(file)
    assert (table.name, table.title, table.preset) == ("hot", "Hot and cold", "shapes")
    assert table.measures == (Measure("class_il"), Measure("tail_accuracy", "min"))
    assert (table.spread, table.unit) == (Spread.SAMPLE, Unit.FRACTION)
    assert table.published == {
        ("ER", "Clean", "class_il"): Published(0.5, 0.1),
        ("ER", "Clean", "min_tail_accuracy"): Published(0.25),
    }
    assert table.grid == {"select.temperature": (0.5, 4.0)}
    runs = runs_of(table, seeds_of(table), ["hot"], ["40%"])
    (saved, _) = (run.config.to_dict() for run in runs)
    assert [run.config.seed for run in runs] == [3, 5]
    assert (saved["select_options"], saved["limit"]) == ({"temperature": 3.0}, 120)
    assert saved["optimizer_options"]["momentum"] == 0.5
    assert saved["options"]["strength"] == 2.0


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    path = tmp_path / "short.toml"
    path.write_text('preset = "digits"\n[[rows]]\nmethod = "ER"')
    table = load_experiment(path)
    assert (table.name, table.title, list(table.columns)) == ("short", "short", ["all"])
    assert (table.rows[0].host, table.rows[0].select) == ("er", "uniform")
    assert table.seeds is None
    path.write_text('preset = "digits"\ndevelopment = true\n[[rows]]\nmethod = "ER"')
    assert load_experiment(path).seeds == tuple(range(1000, 1010))


def test_dots_name_options_of_a_part() -> None:
    given = {"select.a": 1, "select": {"b": 2}, "host.c": 3, "options": {"d": 4}, "lr": 0.1}
    assert spelled_out(given) == {
        "select_options": {"a": 1, "b": 2},
        "options": {"c": 3, "d": 4},
        "lr": 0.1,
    }
    assert spelled_out({"optimizer": "adam"}) == {"optimizer": "adam"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('preset = "shapes"', "preset =", "is no TOML"),
        ('preset = "shapes"', "", "preset is missing"),
        ('preset = "shapes"', "preset = 3", "preset takes text, got 3"),
        ("title =", "titel =", "unknown key 'titel': did you mean title"),
        ("class_il", "class_li", "unknown metric 'class_li': did you mean class_il"),
        ("[3, 5]", "[3, 1005]", "seeds are whole numbers in range(0, 1000), got 1005"),
        ("[3, 5]", "0", "seeds takes a count from 1 on"),
        ('"sample"', '"smaple"', "spread: "),
        ('baseline = "ER"', 'baseline = "DER"', "the baseline 'DER' of 'hot' is not one"),
        ('method = "hot"', 'method = "ER"', "row 2: the method 'ER' is there already"),
        ('method = "hot"', "", "row 2: method is missing"),
        ('select = "temp', 'selct = "temp', "unknown key of row 2 'selct': did you mean select"),
        ("0.1 0.25", "0.1", "2 published values belong there, got '0.5/0.1'"),
        ('Clean = "', 'Cleen = "', "unknown column of ER's published values 'Cleen'"),
        ("[0.5, 4.0]", "0.5", "grid.select.temperature takes a list, got 0.5"),
    ],
)
def test_mistakes_are_told_with_their_place(
    old: str, new: str, message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(WHOLE.replace(old, new))
    with pytest.raises(ExperimentError) as raised:
        load_experiment(file)
    assert str(raised.value).startswith(str(file))
    assert message in str(raised.value)
    assert main(["sweep", str(file)]) == 2
    assert capsys.readouterr().err == f"sphere: {raised.value}\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"shapes"', '"shaeps"', "ER, Clean: unknown preset 'shaeps': did you mean shapes"),
        ("noise = 0.4", "noise = 4.0", "ER, 40%: noise must lie in [0, 1)"),
        ("limit = 120", "limt = 120", "ER, Clean: unknown setting 'limt'"),
        ('"select.temperature"', '"select.heat"', "hot, Clean: selection tempered: unknown option"),
        ("\nselect.temp", "\nselect.tmp", "[grid]: hot: selection tempered: unknown option 'tmper"),
        ("[0.5, 4.0]", '[0.5, "hot"]', "[grid]: hot: selection tempered: option temperature takes"),
        ("\nselect.temperature", "\nheat", "[grid]: hot: a vision run has no setting 'heat'"),
        ('baseline = "ER"', "", "[grid]: no method has a baseline"),
    ],
)
def test_validation_resolves_every_run(
    old: str, new: str, message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(file)]) == 0
    said = "is sound: 2 methods x 2 columns x 2 seeds = 8 runs\n"
    assert capsys.readouterr().out == f"{file} {said}"
    file.write_text(WHOLE.replace(old, new))
    assert main(["validate", str(file)]) == 2
    assert f"sphere: {file}: {message}" in capsys.readouterr().err


def test_the_page_shows_the_example() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "experiments.md").read_text("utf-8")
    example = EXAMPLE.with_name("experiment.toml").read_text("utf-8")
    assert "```toml\n" + example[example.index("title =") :] + "```" in page


def test_validation_takes_first_steps(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(file), "--start"]) == 0
    assert "each method took its first 5 steps" in capsys.readouterr().out
    file.write_text(WHOLE.replace("limit = 120", "limit = 120\nlr = 1e30"))
    assert main(["validate", str(file), "--start"]) == 2
    assert "sphere: ER: the run has diverged" in capsys.readouterr().err


def test_from_a_file_to_a_table_and_a_search(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "runs")]
    saved = ["--save", str(tmp_path / "hot.json")]
    assert main(["sweep", str(file), *out, *saved, "--columns", "40%", "--quiet"]) == 0
    assert "4 of 4 runs finished" in capsys.readouterr().out
    protocol = json.loads((tmp_path / "hot.json").read_text())["protocol"]
    assert protocol == {"preset": "shapes", "limit": 120, "optimizer_options": {"momentum": 0.5}}
    tables = []
    for place in (["--runs", str(tmp_path / "runs")], ["--results", str(tmp_path)]):
        assert main(["table", str(file), *place, "--json"]) == 0
        tables.append(json.loads(capsys.readouterr().out)["rows"])
    assert {row["seeds"] for row in tables[0] if row["column"] == "40%"} == {2}
    assert [row["column"] for row in tables[0]] == [row["column"] for row in tables[1]]
    part = file.with_name("part.toml")
    first = 'rows = [{ method = "ER" }]'
    part.write_text(
        f'preset = "shapes"\nresults = "hot"\n{first}\n[columns]\n"40%" = {{ noise = 0.4 }}'
    )
    assert main(["table", str(part), "--results", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["method"], row["seeds"]) for row in rows] == [("ER", 2)]
    assert main(["search", str(file), *out, "--seeds", "1", "--json", "--limit", "60"]) == 0
    ranking = json.loads(capsys.readouterr().out)
    assert {entry["select.temperature"] for entry in ranking} == {0.5, 4.0}
    assert ranking[0]["gain"] >= ranking[1]["gain"]
    assert main(["search", str(file), "--method", "ER"]) == 2
    assert "unknown method with a baseline 'ER'" in capsys.readouterr().err


def test_a_saved_run_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ["run", "digits", "--select", "sphere", "--seed", "2", "--limit", "100"]
    assert main([*first, "--out", str(tmp_path / "first"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    folder = Path(made.pop("folder"))
    assert main(["run", str(folder / "config.json"), "--out", str(tmp_path / "b"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert Path(again.pop("folder")).name == folder.name
    assert again == made
    changed = ["--seed", "3", "--set", "host.strength=2", "--set", "optimizer.momentum=0.1"]
    assert main(["show", str(folder), *changed, "--json"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["seed"], config["options"]["strength"], config["limit"]) == (3, 2.0, 100)
    assert config["optimizer_options"] == {"momentum": 0.1, "weight_decay": 0.0}
    assert main(["show", str(folder), "--set", "optimizer=adam", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["optimizer_options"]["beta1"] == 0.9
    assert main(["validate", str(folder / "config.json")]) == 0
    assert f"is run {folder.name}" in capsys.readouterr().out
    for words, message in (
        (["run", str(folder), "--host", "er-ace"], "says host and selection"),
        (["run", str(folder), "--set", "speed=1"], "no setting 'speed'"),
        (["run", str(folder / "results.json")], "settings are those of no domain"),
        (["run", str(tmp_path / "absent.json")], "absent.json does not exist"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


def test_forms_of_earlier_versions_are_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "digits", "--select", "sphere-calibrated", "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)["config"]
    for name in ("code", "network", "network_options", "optimizer", "optimizer_options"):
        del saved[name]
    saved["calibration"] = {"agreement": 0.5}
    del saved["select_options"], saved["constants"]["selection"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert main(["show", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["config"]["select_options"] == {"agreement": 0.5}
    assert captured.err == ""


def test_what_was_limited_is_found_by_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ["digits", "--limit", "100", "--set", "host.strength=2", "--seeds", "1"]
    rows = ["--methods", "ER", "--columns", "Clean", "--quiet"]
    assert main(["sweep", *some, *rows, "--out", str(tmp_path / "runs")]) == 0
    assert main(["table", *some, "--runs", str(tmp_path / "runs")]) == 0
    plot = ["--column", "Clean", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert main(["plot", *some, *plot]) == 0
    assert list(tmp_path.glob("*.png"))
    assert main(["table", *some]) == 2
    assert "find run folders: give --runs DIR" in capsys.readouterr().err
