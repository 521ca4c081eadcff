"""Code of others: registered by name, known to every command, part of what a run is."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from plugged import EXAMPLE, forgotten
from sphere_replay import codebase
from sphere_replay.cli import main
from sphere_replay.codebase import Code, this_code, warning_of_others
from sphere_replay.errors import ConfigError, DataError
from sphere_replay.plugging import PluginError, load, load_again, load_everything, loaded
from sphere_replay.replay import SELECTIONS
from sphere_replay.runs.domains import resolve, table_named
from sphere_replay.runs.folder import identity
from sphere_replay.storage.checksums import NAME as CHECKSUMS
from sphere_replay.vision.assembly import build_host
from sphere_replay.vision.datasets import load_images
from sphere_replay.vision.encoders import load_encoder

SELECTION = """
from dataclasses import dataclass
import torch
from sphere_replay.plugins import selection
from sphere_replay.replay import Weighting

@selection("mine")
@dataclass(frozen=True)
class Mine:
    power: float = 2.0
    needs_scores, needs_features, needs_increments, every = True, False, False, 2

    def weigh(self, scores, running_scale, generator):
        weights = scores.losses.clamp(min=1e-9).double() ** (self.power + 1.0)
        return Weighting(weights / weights.sum())
"""
PARTS = """
import torch
from sphere_replay.plugins import DatasetSpec, dataset, encoder, network
from sphere_replay.vision import Classifier
from sphere_replay.vision.encoders import Encoder

@network("flat")
class Flat(Classifier):
    def __init__(self, shape, num_classes, *, head, bias=True):
        super().__init__(shape[0] * shape[1] * shape[2], num_classes, head)
        self.bias = bias

    def embed(self, images):
        return images.flatten(1)

@network("no-classifier")
def plain(shape, num_classes, *, head):
    return torch.nn.Linear(1, 1)

@encoder("brightness")
def brightness():
    mean = lambda images: images.float().mean((2, 3))
    return Encoder("brightness", "no weights", "as it is", mean)

@dataset(DatasetSpec("dots", 2, 2, (1, 2, 2)), capacity=20, batch=5, replay_batch=5)
def dots(folder):
    images = torch.arange(40, dtype=torch.uint8).view(10, 1, 2, 2)
    labels = torch.arange(10) % CLASSES
    return {"train_images": images, "train_labels": labels, "test_images": images,
            "test_labels": labels}

dataset(DatasetSpec("far-away", 10, 5, (3, 8, 8), "somebody/far-away"), capacity=50)
"""
SHORT = ["--limit", "120", "--quiet", "--json"]


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    with forgotten():
        yield


def written(folder: Path, source: str, name: str = "mine.py") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(source)
    return folder / name


def afresh(plugin: Path, *words: str) -> tuple[int, str]:
    """A command as in a process of its own."""
    with forgotten():
        code = main(["--plugin", str(plugin), *words])
        return code, identity(resolve("digits", select="mine").to_dict())


def test_names_are_known_wherever_the_plugin_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listing(*words: str) -> dict[str, list[str]]:
        with forgotten():
            assert main(words) == 0
        found: dict[str, list[str]] = json.loads(capsys.readouterr().out)
        return found

    plugin = ["--plugin", str(EXAMPLE)]
    before, after = listing(*plugin, "ls", "--json"), listing("ls", "--json", *plugin)
    assert before == after
    assert "shapes" in before["presets"]
    assert "er-smooth" in before["hosts"]
    assert "tempered" in before["selections"]
    assert "shapes" in before["tables"]
    assert before["plug-ins"] == [str(EXAMPLE)]
    monkeypatch.setenv("SPHERE_PLUGINS", os.pathsep.join(["", str(EXAMPLE)]))
    assert listing("ls", "--json") == before
    monkeypatch.delenv("SPHERE_PLUGINS")
    assert "tempered" not in listing("ls", "--json")["selections"]
    assert main([*plugin, "demo", "--toy-only"]) == 2
    assert "sphere demo knows no plug-ins" in capsys.readouterr().err


def test_the_example_is_swept_by_other_processes_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ["shapes", "--plugin", str(EXAMPLE), "--set", "lr=0.02", "--limit", "120"]
    words = [*table, "--seeds", "1", "--workers", "2", "--out", str(tmp_path), "--quiet"]
    assert main(["sweep", *words]) == 0
    assert "3 of 3 runs finished" in capsys.readouterr().out
    assert main(["table", *table, "--runs", str(tmp_path), "--json", "--seeds", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    rows = json.loads(captured.out)["rows"]
    assert [(row["method"], row["seeds"]) for row in rows if row["mean"] is not None] == [
        ("ER", 1),
        ("ER + tempered", 1),
        ("smooth ER", 1),
    ]
    configs = [json.loads(path.read_text()) for path in tmp_path.glob("*/config.json")]
    parts = {config["host"] + config["select"]: set(config["code"]) for config in configs}
    assert parts == {
        "eruniform": {"sphere_replay", "dataset"},
        "ertempered": {"sphere_replay", "dataset", "select"},
        "er-smoothuniform": {"sphere_replay", "dataset", "host"},
    }
    smooth = next(config for config in configs if config["host"] == "er-smooth")
    assert smooth["options"]["smoothing"] == 0.1
    assert main(["table", *table, "--runs", str(tmp_path), "--json", "--seeds", "2"]) == 0
    assert capsys.readouterr().err == ""  # seeds that nobody has run are not worth a word
    for path in tmp_path.glob("shapes-er-smooth-*"):
        path.rename(path.with_name(path.name[:-1] + "x"))  # as if of another formula
    assert main(["table", *table, "--runs", str(tmp_path), "--json", "--seeds", "1"]) == 0
    assert "runs are missing in" in (said := capsys.readouterr().err)
    assert "1 runs there have the same names" in said
    unlimited = ["--plugin", str(EXAMPLE), "--runs", str(tmp_path), "--seeds", "1"]
    assert main(["table", "shapes", *unlimited]) == 2
    assert "have the same names, but other settings" in capsys.readouterr().err


def test_a_changed_formula_is_a_new_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stale result: a formula was changed, and the old numbers came back without a word."""
    plugin = written(tmp_path, SELECTION)
    run = ["run", "digits", "--select", "mine", "--out", str(tmp_path / "runs"), *SHORT]
    _, before = afresh(plugin, *run)
    first = json.loads(capsys.readouterr().out)
    written(tmp_path, SELECTION.replace("+ 1.0", "- 9.0"))
    _, after = afresh(plugin, *run)
    second = json.loads(capsys.readouterr().out)
    assert before != after
    assert first["folder"] != second["folder"]
    assert first["accuracy"] != second["accuracy"]
    written(tmp_path, SELECTION)
    assert afresh(plugin, *run)[1] == before
    assert json.loads(capsys.readouterr().out) == first
    elsewhere = written(tmp_path / "elsewhere", SELECTION)
    assert afresh(elsewhere, *run)[1] == before  # the same code is the same, wherever it lies
    capsys.readouterr()
    config = str(Path(first["folder"]) / "config.json")
    manifest = json.loads((Path(first["folder"]) / "manifest.json").read_text())
    assert manifest["plugins"]["select"]["source"] == str(plugin)
    assert manifest["plugins"]["select"]["digest"] in Path(config).read_text()
    with forgotten():
        assert main(["run", config, "--out", str(tmp_path), *SHORT]) == 2
    hint = f"the run has its select from a plug-in: give it by --plugin {plugin}"
    assert hint in capsys.readouterr().err
    written(tmp_path, SELECTION.replace("+ 1.0", "- 9.0"))
    with forgotten():
        assert main(["run", config, "--plugin", str(plugin), "--out", str(tmp_path), *SHORT]) == 0
    captured = capsys.readouterr()
    assert "was made by other code: select was" in captured.err
    assert json.loads(captured.out)["accuracy"] == second["accuracy"]


def test_files_that_a_plugin_imports_are_part_of_it(tmp_path: Path) -> None:
    plugin = written(tmp_path, "from power import OFFSET\n" + SELECTION.replace("1.0", "OFFSET"))
    digests = []
    for offset in (1.0, 2.0):
        written(tmp_path, f"def late():\n    import later\nOFFSET = {offset}\n", "power.py")
        for later in ("", "LATER = 1"):
            written(tmp_path, later, "later.py")
            with forgotten():
                digests.append(load(plugin).digest)
                assert resolve("digits", select="mine").to_dict()["code"]["select"] == digests[-1]
    assert len(set(digests)) == 4


def test_what_a_plugin_does_not_touch_stays_what_it_was() -> None:
    before = identity(resolve("digits", select="sphere").to_dict())
    load(EXAMPLE)
    assert identity(resolve("digits", select="sphere").to_dict()) == before
    code = resolve("digits", select="tempered").to_dict()["code"]
    assert set(code) == {"sphere_replay", "select"}


def test_options_of_a_selection_are_checked_and_written() -> None:
    load(EXAMPLE)
    config = resolve("digits", select="tempered", select_options={"temperature": 2})
    assert config.to_dict()["select_options"] == {"temperature": 2.0}
    assert config.to_dict()["constants"]["selection"] == {"kind": "Tempered", "temperature": 2.0}
    plain = resolve("digits", select="tempered")
    assert plain == resolve("digits", select="tempered", select_options={"temperature": 0.5})
    with pytest.raises(ConfigError, match="option temperature takes float, got 'hot'"):
        resolve("digits", select="tempered", select_options={"temperature": "hot"})
    with pytest.raises(ConfigError, match="unknown option 'temprature': did you mean temperature"):
        resolve("digits", select="tempered", select_options={"temprature": 1.0})
    assert resolve("instruct-tiny", select="tempered").to_dict()["code"].keys() == {
        "sphere_replay",
        "select",
    }


def test_networks_datasets_and_encoders(tmp_path: Path) -> None:
    load(written(tmp_path, PARTS.replace("CLASSES", "2")))
    config: Any = resolve("dots", network="flat", network_options={"bias": False})
    network: Any = build_host(config).network
    assert type(network).__name__ == "Flat"
    assert network.bias is False
    other: Any = resolve("dots", network="no-classifier")
    with pytest.raises(ConfigError, match=r"network flat: .*'depth'"):
        resolve("dots", network="flat", network_options={"depth": 3})
    with pytest.raises(ConfigError, match="no-classifier is a Linear: make it a subclass"):
        build_host(other)
    images = load_images("dots")
    assert images.train_images.shape == (10, 1, 2, 2)
    encoder = load_encoder("brightness")
    assert encoder.preparation.startswith("as it is, code ")
    assert torch.equal(encoder.encode(images.test_images)[0], torch.tensor([1.5]))
    assert resolve("far-away").to_dict()["dataset"] == "far-away"


def test_a_dataset_of_other_classes_is_refused(tmp_path: Path) -> None:
    load(written(tmp_path, PARTS.replace("CLASSES", "3")))
    with pytest.raises(DataError, match=r"train_labels of dots must be int64.*got .* 3 classes"):
        load_images("dots")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ny = 1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        (SELECTION.replace('"mine"', '"sphere"'), "line 7: there is a selection 'sphere' already"),
        (SELECTION.replace("(frozen=True)", ""), "must be a frozen dataclass"),
        (SELECTION.replace("needs_scores, ", "").replace("True, F", "F"), "lacks needs_scores"),
        (SELECTION.replace("mine", "my own"), "has no spaces"),
        (
            "from sphere_replay.hosts import ExperienceReplay\n"
            "from sphere_replay.hosts.options import HostOptions\n"
            "from sphere_replay.plugins import host\n"
            "host('x')(type('X', (ExperienceReplay,), {'OPTIONS': HostOptions}))",
            "make HostOptions a subclass of ExperienceOptions",
        ),
        (
            "from sphere_replay.plugins import host\nhost('x', learning=1)(object)",
            "must be a subclass of sphere_replay.hosts.Host",
        ),
        (
            "from sphere_replay.plugins import DatasetSpec, dataset\n"
            "dataset(DatasetSpec('x', 2, 2, (1, 2, 2)), capcity=1)",
            "dataset 'x': unknown setting 'capcity': did you mean capacity",
        ),
    ],
)
def test_a_mistake_in_a_plugin_is_told_in_one_line(
    source: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = written(tmp_path, source)
    assert main(["ls", "--plugin", str(plugin)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"sphere: plug-in {plugin}: ")
    assert message in err
    assert err.count("\n") == 1
    assert main(["ls", "--plugin", str(tmp_path / "absent.py")]) == 2
    assert "there is no plug-in" in capsys.readouterr().err


def test_another_process_loads_the_same_or_nothing(tmp_path: Path) -> None:
    plugin = written(tmp_path, SELECTION)
    with forgotten():
        load(plugin)
        load(plugin)  # once is enough
        sent = loaded()
    with forgotten():
        load_again(sent)
        assert "mine" in SELECTIONS
    written(tmp_path, SELECTION + "\n")
    with forgotten(), pytest.raises(PluginError, match=r"mine\.py has changed since this began"):
        load_again(sent)


def test_installed_packages_bring_plugins_by_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "somebody-1.0.dist-info"
    written(tmp_path, SELECTION, "somebodys_parts.py")
    written(information, "Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n", "METADATA")
    points = "[sphere_replay.plugins]\ngood = somebodys_parts\nbad = nowhere_to_be_found\n"
    written(information, points, "entry_points.txt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="plug-in nowhere_to_be_found: ModuleNotFoundError"):
        load_everything()
    assert "mine" in SELECTIONS
    assert [plugin.source for plugin in loaded()] == ["somebodys_parts"]


def test_code_without_a_file_is_refused() -> None:
    module = ModuleType("typed_in")
    exec(SELECTION.replace('@selection("mine")', ""), module.__dict__)
    sys.modules["typed_in"] = module
    try:
        with pytest.raises(ConfigError, match="'Mine' is defined in no file"):
            codebase.digest_of_others(module.Mine)
    finally:
        del sys.modules["typed_in"]


def test_results_of_another_commit_are_shown_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(EXAMPLE)
    words = ["run", "shapes", "--out", str(tmp_path), "--quiet"]
    assert main(words) == 0
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    (path,) = tmp_path.glob("*/manifest.json")
    manifest = json.loads(path.read_text())
    assert (manifest["sphere_replay"], manifest["code"]) == (
        this_code().version,
        this_code().digest,
    )
    path.write_text(json.dumps(manifest | {"commit": "0123abcd", "code": "an older one"}))
    (path.parent / CHECKSUMS).unlink()  # as if that code had finished it
    table = ["shapes", "--runs", str(tmp_path), "--seeds", "1"]
    saved = ["--save", str(tmp_path / "shapes.json"), "--methods", "ER", "--quiet"]
    for again in (
        words,
        ["sweep", "shapes", "--seeds", "1", "--out", str(tmp_path), *saved],
        ["table", *table],
        ["plot", *table, "--out", str(tmp_path / "plots")],
        ["table", "shapes", "--results", str(tmp_path)],
    ):
        assert main(again) == 0
        err = capsys.readouterr().err
        assert "1 of 1 results were made by other code of sphere-replay than this" in err
        assert "commit 0123abcd" in err


def test_the_warning_counts_those_that_are_known() -> None:
    now = this_code()
    assert warning_of_others([None, now]) == ""
    uncommitted = Code(now.version, now.commit, "edited")
    sentence = warning_of_others([None, now, uncommitted])
    assert sentence.startswith("1 of 2 results were made by other code")
    assert "uncommitted changes" in sentence


def test_a_table_of_a_plugin_is_a_table() -> None:
    load(EXAMPLE)
    assert table_named("shapes").methods == ("ER", "ER + tempered", "smooth ER")
