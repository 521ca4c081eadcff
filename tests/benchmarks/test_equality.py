"""Two source trees are equal when their runs are; every difference that matters is found."""

import json
from pathlib import Path

import pytest

from benchmarks import equality
from benchmarks.equality import RUNS, Comparison, Run, compare, differences, finished, main
from sphere_replay.errors import DataError

TREE = '''
"""Stands for a source tree: writes the folder of a run, and counts how often it is asked."""
import json, sys
from pathlib import Path

words = sys.argv[1:]
value = {words[at]: words[at + 1] for at in range(len(words) - 1) if words[at].startswith("--")}
if value["--host"] == "broken":
    sys.exit("sphere: this host is broken")
folder = Path(value["--out"]) / f"{words[1]}-{value['--host']}-seed{value['--seed']}"
folder.mkdir(exist_ok=True)
with open(Path(value["--out"]) / "asked", "a") as file:
    print(" ".join(words), file=file)
config = {"host": value["--host"], "select": value["--select"], "seed": int(value["--seed"])}
config |= EXTRA
results = {"identity": "NAME", "accuracy": [0.5, LAST]}
(folder / "config.json").write_text(json.dumps(config))
(folder / "results.json").write_text(json.dumps(results))
(folder / "log.jsonl").write_text(json.dumps({"step": STEP, "time": {"unix": UNIX}}) + "\\n")
print(json.dumps({"folder": str(folder), **results}))
'''


def tree(place: Path, last: float = 0.25, step: int = 3, **extra: object) -> Path:
    package = place / "sphere_replay"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    code = TREE.replace("NAME", place.name).replace("UNIX", str(len(place.name)))
    code = code.replace("LAST", repr(last)).replace("STEP", str(step))
    (package / "__main__.py").write_text(code.replace("EXTRA", repr(extra)))
    return place


@pytest.fixture
def two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run("digits", "er", seed=3), Run("mnist", "er", "sphere", 0, 0.4, ("a=1",))]
    monkeypatch.setattr(equality, "RUNS", runs)


@pytest.mark.usefixtures("two_runs")
def test_trees_that_compute_the_same_are_equal_whatever_their_times_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tree(tmp_path / "one"), tree(tmp_path / "another", fresh=1)
    assert main([str(before), str(after), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1/2  digits er uniform seed 3  equal (config differs in fresh)",
        "2/2  mnist er sphere seed 0 a=1  equal (config differs in fresh)",
        "2 of 2 runs are equal",
    ]
    asked = {name: (tmp_path / "out" / name / "asked").read_text() for name in ("before", "after")}
    sphere = "run mnist --host er --select sphere --seed 0 --noise 0.4 --set a=1"
    for name, words in asked.items():
        place = f"--out {tmp_path / 'out' / name} --quiet --json"
        assert words.splitlines()[1] == f"{sphere} {place}"


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"last": 0.2500000000000001}, "results.accuracy[1]: 0.25 -> 0.2500000000000001"),
        ({"step": 4}, "log[0].step: 3 -> 4"),
    ],
)
def test_the_last_bit_counts(
    tmp_path: Path,
    change: dict[str, float],
    place: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = tree(tmp_path / "one")
    after = tree(tmp_path / "two", **change)  # type: ignore[arg-type]  # of either type
    words = [str(before), str(after), "--out", str(tmp_path / "out"), "--only", "vision"]
    assert main(words) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"1/1  digits er uniform seed 3  differs in {place}",
        "0 of 1 runs are equal",
    ]


def test_a_run_that_fails_is_not_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(equality, "RUNS", [Run("digits", "broken")])
    one = str(tree(tmp_path / "one"))
    assert main([one, one, "--out", str(tmp_path / "out")]) == 1
    assert "failed: exit code 1 with" in (said := capsys.readouterr().out)
    assert "sphere: this host is broken" in said


@pytest.mark.usefixtures("two_runs")
def test_finished_runs_can_stand_for_the_tree_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(tree(tmp_path / "one", noise=0.4, a=1))
    main([one, one, "--out", str(tmp_path / "out")])
    runs = str(tmp_path / "out" / "before")
    words = [str(tree(tmp_path / "two", last=0.0)), "--before-runs", runs]
    assert main([*words, "--out", str(tmp_path / "new")]) == 1
    assert "differs in results.accuracy[1]: 0.25 -> 0.0 (config" in capsys.readouterr().out
    assert not (tmp_path / "new" / "before").exists()


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_number_of_trees_is_refused(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*[str(tree(tmp_path / "one"))] * count, "--out", str(tmp_path / "out")]) == 2
    assert "give two source trees" in capsys.readouterr().err


def test_a_tree_that_would_not_be_imported_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    words = [str(tree(tmp_path / "one")), str(tmp_path / "empty")]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "give the folder that holds sphere_replay/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, []),
        ({"a": float("nan")}, {"a": float("nan")}, []),
        ({"a": 1}, {"a": 1.0}, ["a: 1 -> 1.0"]),
        ({"a": 1}, {"a": True}, ["a: 1 -> true"]),
        ({"a": 1}, {}, ["a: 1 -> absent"]),
        ({}, {"a": None}, ["a: absent -> null"]),
        ({"a": [1, 2]}, {"a": [3]}, ["a: 2 -> 1 entries", "a[0]: 1 -> 3"]),
        ({"a": {}}, {"a": []}, ["a: {} -> []"]),
    ],
)
def test_differences_are_named(before: object, after: object, expected: list[str]) -> None:
    assert list(differences(before, after)) == expected


def folder(place: Path, name: str, **config: object) -> Path:
    path = place / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "results.json").write_text("{}")
    (path / "log.jsonl").touch()
    return path


def test_a_finished_run_is_found_by_its_settings(tmp_path: Path) -> None:
    plain, drawn = (run for run in RUNS if (run.preset, run.host) == ("digits", "puridiver")
                    and run.select == "sphere")  # fmt: skip
    shared = {"host": "puridiver", "select": "sphere", "seed": 3, "noise": 0.4}
    one = folder(tmp_path, "digits-1", **shared, options={})
    two = folder(tmp_path, "digits-2", **shared, options={"select_stream": 0.0, "joint_batch": 1.0})
    folder(tmp_path, "digits-3", **{**shared, "seed": 4}, options={})
    folder(tmp_path, "mnist-4", **shared, options={})
    (folder(tmp_path, "digits-5", **shared, options={}) / "results.json").unlink()
    find = finished(tmp_path)
    assert (find(plain), find(drawn)) == (one, two)
    assert compare(one, two) == Comparison(keys=("options",))
    folder(tmp_path, "digits-6", **shared, options={})
    with pytest.raises(DataError, match="one finished run of this, but has digits-1, digits-6"):
        finished(tmp_path)(plain)


def test_what_only_the_tree_after_says_is_no_difference_but_what_it_leaves_out_is(
    tmp_path: Path,
) -> None:
    one, two = folder(tmp_path, "digits-1"), folder(tmp_path, "digits-2")
    (two / "results.json").write_text('{"metrics": {"tail": [1.0]}}')
    (two / "log.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (one / "results.json").write_text('{"metrics": {}}')
    (one / "log.jsonl").write_text("{}\n{}\n")
    assert compare(one, two) == Comparison(added=("results.metrics.tail", "log.step"))
    assert compare(two, one).places[0] == "results.metrics.tail: [1.0] -> absent"


def test_every_host_selection_and_domain_is_on_the_list() -> None:
    from sphere_replay.hosts import HOSTS
    from sphere_replay.replay import UNLABELLED

    assert len(RUNS) == len(set(RUNS)) == 39
    digits = [run for run in RUNS if run.preset == "digits"]
    assert {run.host for run in digits} == set(HOSTS)
    assert {run.select for run in digits if run.host == "er"} >= set(UNLABELLED)
    assert {run.group for run in RUNS} == {"vision", "mnist", "instruct", "coding"}
