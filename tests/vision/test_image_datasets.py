import io
import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from sphere_replay.vision import DATASETS, DataError, ImageData, load_images
from sphere_replay.vision.cache import cache_folder
from sphere_replay.vision.decoding import decode

HUB_NAMES = [name for name, spec in DATASETS.items() if spec.hub is not None]


def pictures(name: str, count: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Random pixels `[n, h, w, c]` and labels."""
    channels, height, width = DATASETS[name].shape
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    return pixels, random.integers(0, DATASETS[name].num_classes, count).tolist()


def rows(name: str, count: int, seed: int = 0) -> datasets.Dataset:
    """A `datasets` table with the hub's columns."""
    spec = DATASETS[name]
    pixels, labels = pictures(name, count, seed)
    shown = [Image.fromarray(p.squeeze()) for p in pixels]
    features = datasets.Features(
        {
            spec.image_column: datasets.Image(),
            spec.label_column: datasets.ClassLabel(num_classes=spec.num_classes),
        }
    )
    columns = {spec.image_column: shown, spec.label_column: labels}
    return datasets.Dataset.from_dict(columns, features=features)


def write(folder: Path, name: str, split: str, table: datasets.Dataset) -> Path:
    path = folder / name / f"{split}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(path)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set of each dataset, not to be touched."""
    data = tmp_path_factory.mktemp("written")
    for name in HUB_NAMES:
        write(data, name, "train", rows(name, 6))
        write(data, name, DATASETS[name].test_split, rows(name, 4, seed=1))
    return data


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "data")


@pytest.mark.parametrize("name", HUB_NAMES)
def test_parquet_with_the_columns_of_the_hub_is_decoded_exactly(name: str, folder: Path) -> None:
    data = load_images(name, folder)
    for images, labels, (pixels, expected) in (
        (data.train_images, data.train_labels, pictures(name, 6)),
        (data.test_images, data.test_labels, pictures(name, 4, seed=1)),
    ):
        assert images.dtype == torch.uint8
        assert images.is_contiguous()
        assert torch.equal(images, torch.from_numpy(pixels).permute(0, 3, 1, 2))
        assert labels.dtype == torch.int64
        assert labels.tolist() == expected
    assert data.shape == DATASETS[name].shape
    assert data.num_classes == DATASETS[name].num_classes


def test_the_environment_names_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPHERE_DATA", str(folder))
    assert load_images("cifar10").checksum == load_images("cifar10", folder).checksum


def test_grey_pictures_of_a_color_set_are_converted(folder: Path) -> None:
    pixels, _ = pictures("mnist", 1)
    grey = Image.fromarray(pixels[0].squeeze()).resize((32, 32))
    table = datasets.Dataset.from_dict(
        {"img": [grey], "label": [3]},
        features=datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")}),
    )
    write(folder, "cifar10", "train", table)
    images = load_images("cifar10", folder).train_images
    assert images.shape == (1, 3, 32, 32)
    assert torch.equal(images[0, 0], torch.from_numpy(np.array(grey)))
    assert torch.equal(images[0, 0], images[0, 1])
    assert torch.equal(images[0, 0], images[0, 2])


def test_parquet_without_feature_metadata_and_with_more_columns_is_read(folder: Path) -> None:
    table = rows("cifar100", 5).add_column("coarse_label", [0] * 5)
    raw = table.cast_column("img", datasets.Image(decode=False))
    plain = datasets.Features(
        {
            "img": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")},
            "fine_label": datasets.Value("int64"),
            "coarse_label": datasets.Value("int64"),
        }
    )
    path = folder / "cifar100" / "train.parquet"
    datasets.Dataset.from_dict(raw.to_dict(), features=plain).to_parquet(path)
    pixels, _ = pictures("cifar100", 5)
    images = load_images("cifar100", folder).train_images
    assert torch.equal(images, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def test_decoding_happens_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_images("mnist", folder)
    calls = count_decoding(monkeypatch)
    again = load_images("mnist", folder)
    assert calls == []
    assert again.checksum == first.checksum
    assert torch.equal(again.train_images, first.train_images)


def test_another_file_is_another_entry(folder: Path) -> None:
    first = load_images("mnist", folder)
    path = write(folder, "mnist", "train", rows("mnist", 6, seed=2))
    os.utime(path, ns=(1, 1))
    assert load_images("mnist", folder).checksum != first.checksum


@pytest.mark.parametrize("kind", ["safetensors", "json"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "flipped", "emptied", "renamed"])
def test_a_damaged_entry_is_rebuilt(
    damage: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_images("mnist", folder)
    (entry,) = cache_folder().glob(f"*.{kind}")
    content = entry.read_bytes()
    if damage == "renamed":
        save_file({"other": torch.zeros(2)}, entry)
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        damaged = {"cut": content[:-9], "garbage": b"garbage", "flipped": flipped, "emptied": b""}
        entry.write_bytes(damaged[damage])
    calls = count_decoding(monkeypatch)
    assert load_images("mnist", folder).checksum == first.checksum
    assert len(calls) == 2
    assert entry.read_bytes() == content


def test_an_unusable_cache_costs_a_warning_only(folder: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.warns(UserWarning, match="could not be kept .* set SPHERE_CACHE"):
        data = load_images("mnist", folder, cache=blocked / "cache")
    assert len(data.train_labels) == 6


def test_no_temporary_files_stay_behind(folder: Path) -> None:
    load_images("mnist", folder)
    assert {path.suffix for path in cache_folder().iterdir()} == {".safetensors", ".json"}


def count_decoding(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def counted(source: Any, spec: Any, *, progress: bool) -> Any:
        calls.append(source.origin)
        return decode(source, spec, progress=progress)

    monkeypatch.setattr("sphere_replay.vision.datasets.decode", counted)
    return calls


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(DataError, match=r"unknown dataset 'CIFAR_10': did you mean cifar10"):
        load_images("CIFAR_10")
    with pytest.raises(DataError, match=r"known: digits, mnist, fashion-mnist, cifar10"):
        load_images("xyz")


@pytest.mark.parametrize(
    ("name", "split"), [("mnist", "train"), ("mnist", "test"), ("tiny-imagenet", "valid")]
)
def test_a_missing_file_is_named_before_anything_is_decoded(
    name: str, split: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / name / f"{split}.parquet").unlink()
    calls = count_decoding(monkeypatch)
    with pytest.raises(DataError, match=rf"{split}\.parquet does not exist.*{DATASETS[name].hub}"):
        load_images(name, folder)
    assert calls == []


def test_wrong_columns_are_named_before_anything_is_decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "cifar10", "test", rows("mnist", 2))
    calls = count_decoding(monkeypatch)
    message = r"test\.parquet has the columns image, label; cifar10 needs img and label"
    with pytest.raises(DataError, match=message):
        load_images("cifar10", folder)
    assert calls == []


def test_a_file_that_is_not_parquet_is_named(folder: Path) -> None:
    (folder / "mnist" / "train.parquet").write_bytes(b"PNG, actually")
    with pytest.raises(DataError, match=r"train\.parquet is not a readable Parquet file"):
        load_images("mnist", folder)


def test_pictures_of_another_size_and_labels_out_of_range_are_refused(folder: Path) -> None:
    write(folder, "fashion-mnist", "train", rows("mnist", 2))
    assert load_images("fashion-mnist", folder).shape == (1, 28, 28)
    small = rows("tiny-imagenet", 2).rename_column("image", "img")
    write(folder, "cifar10", "train", small)
    with pytest.raises(
        DataError, match=r"image 0 of .* is 64 x 64 pixels, and cifar10 has 32 x 32"
    ):
        load_images("cifar10", folder)
    pixels, _ = pictures("mnist", 1)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [Image.fromarray(pixels[0].squeeze())], "label": [-1]}
    write(folder, "mnist", "train", datasets.Dataset.from_dict(columns, features=features))
    with pytest.raises(DataError, match=r"label -1 of image 0 .* lies outside 0\.\.9"):
        load_images("mnist", folder)


def raw(stored: list[dict[str, Any]], labels: list[Any]) -> pa.Table:
    """Rows as they lie in a file, whatever they hold."""
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.table({"image": pa.array(stored, kind), "label": pa.array(labels)})


def png(side: int) -> bytes:
    content = io.BytesIO()
    Image.new("1", (side, side)).save(content, "png")
    return content.getvalue()


@pytest.mark.parametrize(
    ("stored", "labels", "message"),
    [
        ([{"bytes": None, "path": "/etc/passwd"}], [0], "holds no picture, only the name '/etc/pa"),
        ([{"bytes": None, "path": "https://x.org/a.png"}], [0], "is not opened"),
        ([{"bytes": None, "path": None}], [0], "image 0 of .* holds no picture:"),
        ([{"bytes": b"no picture", "path": None}], [0], "image 0 of .* is no picture"),
        ([{"bytes": png(28)[:44], "path": None}], [0], "image 0 of .* is"),
        ([{"bytes": png(20_000), "path": None}], [0], "image 0 of .* is no picture that can be"),
        ([{"bytes": png(28), "path": None}], ["zero"], "is 'zero': labels are whole numbers"),
        ([{"bytes": png(28), "path": None}], [1.5], "is 1.5: labels are whole numbers"),
        ([{"bytes": png(28), "path": None}] * 2, [1, None], "of image 1 of .* is None"),
        ([], [], "train.parquet has no rows"),
    ],
)
def test_hostile_rows_are_refused_with_a_sentence(
    folder: Path, stored: list[dict[str, Any]], labels: list[Any], message: str
) -> None:
    pq.write_table(raw(stored, labels), folder / "mnist" / "train.parquet")
    with pytest.raises(DataError, match=message):
        load_images("mnist", folder, progress=False)


def test_without_a_folder_the_hub_is_asked_for_its_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(hub: str, split: str) -> datasets.Dataset:
        asked.append((hub, split))
        return rows("tiny-imagenet", 3 if split == "train" else 2)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_images("tiny-imagenet")
    assert asked == [("zh-plus/tiny-imagenet", "train"), ("zh-plus/tiny-imagenet", "valid")]
    assert (len(data.train_labels), len(data.test_labels)) == (3, 2)
    load_images("tiny-imagenet")
    assert len(asked) == 2


def test_an_unreachable_hub_says_what_else_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = r"ylecun/mnist \(train\).*no route.*mnist/train\.parquet"
    with pytest.raises(DataError, match=message):
        load_images("mnist")


def test_a_missing_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"sphere-replay\[vision\]"):
        load_images("digits")


def test_a_progress_bar_appears_on_a_terminal_only(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load_images("mnist", folder, cache=tmp_path / "first")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load_images("mnist", folder, cache=tmp_path / "second", progress=False)
    assert capsys.readouterr().err == ""
    load_images("mnist", folder, cache=tmp_path / "third")
    assert "Decoding" in capsys.readouterr().err


def test_digits_are_split_three_to_one_in_every_class() -> None:
    data = load_images("digits")
    assert data.shape == (1, 8, 8)
    assert len(data.train_labels) + len(data.test_labels) == 1797
    train, test = data.train_labels.bincount(), data.test_labels.bincount()
    assert all(held == total // 4 for held, total in zip(test, train + test, strict=True))
    assert int(data.train_images.max()) == 255
    assert data.checksum == load_images("digits").checksum


def test_no_digit_is_in_both_parts() -> None:
    data = load_images("digits")
    both = torch.cat([data.train_images, data.test_images]).flatten(1)
    assert len(both) == 1797
    assert len(torch.unique(both, dim=0)) == 1797


def test_the_checksum_covers_labels_and_pixels(folder: Path) -> None:
    def checksum(table: datasets.Dataset) -> str:
        os.utime(write(folder, "mnist", "train", table), ns=(0, next(ticks)))
        return load_images("mnist", folder).checksum

    ticks = itertools.count(1)
    table = rows("mnist", 4)
    relabelled = table.map(lambda row: {"label": (row["label"] + 1) % 10})
    assert len({checksum(table), checksum(relabelled), checksum(rows("mnist", 4, seed=5))}) == 3


def test_image_data_are_immutable() -> None:
    data: ImageData = load_images("digits")
    with pytest.raises(AttributeError):
        data.name = "other"  # type: ignore[misc]  # the mistake under test
