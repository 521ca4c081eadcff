"""Datasets by `hub:NAME`, with folders: no test reaches the hub, and `datasets` reads both."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]  # has no types
import numpy as np
import pytest
import torch
from PIL import Image

from sphere_replay.cli import main
from sphere_replay.errors import DataError
from sphere_replay.runs.experiment import load_experiment
from sphere_replay.runs.table_runs import runs_of
from sphere_replay.vision import load_images
from sphere_replay.vision.hub import hub_spec, parse, readable
from sphere_replay.vision.presets import resolve
from sphere_replay.vision.specs import dataset_spec

CLASSES = 6
LABEL = datasets.ClassLabel(names=list("abcdef"))


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPHERE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()
    hub_spec.cache_clear()


def pictures(count: int, *, seed: int = 0, sizes: tuple[int, ...] = (8,)) -> list[Image.Image]:
    generator = np.random.default_rng(seed)
    return [
        Image.fromarray(
            generator.integers(0, 256, (sizes[number % len(sizes)], 8, 3), dtype=np.uint8)
        )
        for number in range(count)
    ]


def folder_of(path: Path, kinds: dict[str, Any] | None = None, **splits: dict[str, Any]) -> str:
    """A folder of Parquet files, as on the hub; its name for `--dataset`."""
    known = {"image": datasets.Image(), "label": LABEL} | (kinds or {})
    for split, columns in splits.items():
        features = datasets.Features({name: known[name] for name in columns})
        table = datasets.Dataset.from_dict(columns, features=features)
        table.to_parquet(path / f"{split}-00000-of-00001.parquet")
    return f"hub:{path}"


def rows_of(count: int) -> dict[str, Any]:
    labels = [number % CLASSES for number in range(count)]
    return {"image": pictures(count, seed=count), "label": labels}


def test_a_folder_is_run_by_its_name_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, test = rows_of(60), rows_of(24)
    name = folder_of(tmp_path / "shapes", train=train, test=test)
    spec = dataset_spec(name)
    assert (spec.num_classes, spec.tasks, spec.shape) == (6, 3, (3, 8, 8))
    data = load_images(name, tmp_path / "elsewhere")
    first = torch.from_numpy(np.array(train["image"][0])).permute(2, 0, 1)
    assert torch.equal(data.train_images[0], first)
    assert data.test_labels.tolist() == test["label"]

    def unreachable(*words: object, **options: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    hub_spec.cache_clear()
    assert load_images(name).checksum == data.checksum  # from the cache
    monkeypatch.chdir(tmp_path)
    words = [
        "run",
        "digits",
        "--dataset",
        "hub:./shapes",
        "--set",
        "network=mlp",
        "--out",
        "runs",
        "--json",
    ]
    assert main(words) == 0
    results = json.loads(capsys.readouterr().out)
    assert Path(results["folder"]).name.startswith("hub-shapes-er-uniform-noise40-seed0-")
    config = json.loads((Path(results["folder"]) / "config.json").read_text())
    assert config["dataset"] == name
    assert config["constants"]["dataset"]["test"] == "test"
    again = ["run", results["folder"], "--out", "again", "--json"]
    assert main(again) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == results["metrics"]


def test_without_a_split_for_tests_every_fifth_of_a_class_is_held_out(tmp_path: Path) -> None:
    for number, picture in enumerate(pictures(60)):
        home = tmp_path / "images" / "abcdef"[number % CLASSES]
        home.mkdir(parents=True, exist_ok=True)
        picture.save(home / f"{number:03}.png")
    name = f"hub:{tmp_path / 'images'}"
    with pytest.warns(UserWarning, match="no split to test on, so every 5th example of each class"):
        data = load_images(name)
    assert data.train_labels.bincount().tolist() == [8] * CLASSES
    assert data.test_labels.bincount().tolist() == [2] * CLASSES
    whole = torch.cat([data.train_images, data.test_images]).flatten(1)
    assert len({tuple(picture) for picture in whole.tolist()}) == 60
    constants = resolve("digits", dataset=name).constants["dataset"]
    assert constants["test"] == "every 5th example of each class of train"


def test_what_is_taken_can_be_chosen(tmp_path: Path) -> None:
    columns = rows_of(48)
    columns |= {"fine": [number % 4 for number in range(48)], "image": pictures(48, sizes=(8, 12))}
    kinds = {"fine": datasets.Value("int64")}
    name = folder_of(tmp_path / "chosen", kinds, train=columns, validation=columns)
    with pytest.raises(DataError, match="differ in size, such as 8 x 8 and 8 x 12"):
        dataset_spec(name)
    small = load_images(f"{name},label=fine,size=4,classes=2,tasks=1")
    assert small.train_images.shape == (24, 3, 4, 4)
    assert set(small.train_labels.tolist()) == {0, 1}
    assert dataset_spec(small.name).tasks == 1
    assert dataset_spec(f"{name},size=4,label=fine").num_classes == 4


TEXT, NUMBER = datasets.Value("string"), datasets.Value("int64")


@pytest.mark.parametrize(
    ("columns", "kinds", "options", "message"),
    [
        ({"image": [0] * 12}, {"image": NUMBER}, "", "no column of images: say which by ,image="),
        (
            {"second": pictures(12)},
            {"second": datasets.Image()},
            "",
            "images in image, second",
        ),
        ({}, {}, ",image=label", "has no images in a column 'label'"),
        ({}, {}, ",label=class", "has no column 'class': say which by ,label=NAME; its columns"),
        ({"label": ["a"] * 12}, {"label": TEXT}, "", "are string, and must be integers or Class"),
        ({"label": [-1] * 12}, {}, "", "split 'train' has examples without a label"),
        ({"label": [None] * 12}, {"label": NUMBER}, "", "'train' has examples without a label"),
        ({}, {}, ",test=dev", "has no split 'dev', only train, test"),
        ({}, {}, ",classes=5", "5 classes, which make no tasks of equal size"),
        ({}, {}, ",classes=7", "has 6 classes, not 7"),
        ({}, {}, ",tasks=4", "6 classes do not make 4 tasks of equal size"),
        ({}, {}, ",size=big", "size is a number from 1 on, got 'big'"),
        ({}, {}, ",columns=3", "unknown option 'columns'"),
    ],
)
def test_errors_say_what_is_missing(
    columns: dict[str, Any], kinds: dict[str, Any], options: str, message: str, tmp_path: Path
) -> None:
    rows = rows_of(12) | columns
    name = folder_of(tmp_path / "data", kinds, train=rows, test=rows) + options
    with pytest.raises(DataError, match=message):
        load_images(name)


def test_names_have_one_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = parse("hub:owner/name:plain@v1,tasks=2,label=fine")
    assert (source.path, source.config, source.revision) == ("owner/name", "plain", "v1")
    assert source.name == "hub:owner/name:plain@v1,label=fine,tasks=2"
    assert readable(source.name) == "hub-owner-name-plain"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse("hub:./here").name == f"hub:{tmp_path / 'here'}"
    with pytest.raises(DataError, match="there is no folder"):
        parse("hub:./there")
    with pytest.raises(DataError, match="needs the name of a dataset"):
        parse("hub:")


def test_an_unreachable_dataset_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"could not get hub:nobody/nothing: .*Check its name"):
        resolve("digits", dataset="hub:nobody/nothing")


def test_experiments_and_tables_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = folder_of(tmp_path / "shapes", train=rows_of(60), test=rows_of(24))
    file = tmp_path / "own.toml"
    file.write_text(f'preset = "digits"\n[settings]\ndataset = "{name}"\n[[rows]]\nmethod = "ER"\n')
    (run,) = runs_of(load_experiment(str(file)), [0])
    assert run.config.to_dict()["dataset"] == name
    words = [
        "digits",
        "--methods",
        "ER",
        "--columns",
        "40%",
        "--seeds",
        "1",
        "--set",
        "network=mlp",
        "--set",
    ]
    assert main(["sweep", *words, f"dataset={name}", "--out", str(tmp_path / "runs")]) == 0
    assert "1 of 1 runs finished" in capsys.readouterr().out
