"""Any dataset of the hub, or folder of images, with an image and a label column: `hub:NAME`.

    hub:owner/name                          hub:owner/name:config@revision
    hub:owner/name,label=fine_label,size=32,tasks=10          hub:./folder

It is looked at once, for its classes and the shape of its images; what was seen is kept in the
cache, and so are its images as tensors.
"""

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from sphere_replay.errors import DataError, unknown
from sphere_replay.extras import require
from sphere_replay.storage.files import entry_name, read_json, write_atomically
from sphere_replay.vision.cache import cache_folder, cached_tensors
from sphere_replay.vision.decoding import OpenSplit, decode, hub_folders
from sphere_replay.vision.specs import HUB, DatasetSpec

TEST_SPLITS = ("test", "validation", "valid", "val", "dev")
"""What is tested on, if it is there; the first of them."""
HELD_OUT = 5
"""Without any, every fifth example of each class of the training split is tested on."""
MOST_TASKS = 10
_LABELS = ("label", "labels")
_LOOKED_AT = 64
"""Images whose modes and sizes are seen before all are read."""
_FORMAT = 1
"""Part of the names of what is kept; raise it when something else is seen in the same data."""


@dataclass(frozen=True)
class Chosen:
    """What stands after the name, `,image=img,size=32`; None is found out."""

    image: str | None = None
    """Column of the images; else the only one that holds images."""
    label: str | None = None
    """Column of the labels; else the only one with named classes, or `label`."""
    train: str = "train"
    test: str | None = None
    """Splits; that of the tests else by `TEST_SPLITS`."""
    size: int | None = None
    """Side of the images, cut square and scaled; else they have one size as they are."""
    classes: int | None = None
    """Only the first so many."""
    tasks: int | None = None
    """Else as many as leave each two classes, at most `MOST_TASKS`."""


@dataclass(frozen=True)
class Source:
    """Where a dataset is and what is taken of it; called, it gives the images."""

    path: str
    """Name on the hub, or an absolute path."""
    config: str | None
    revision: str | None
    chosen: Chosen

    @property
    def name(self) -> str:
        """The one spelling of it."""
        config = f":{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        options = [
            f",{entry.name}={value}"
            for entry in fields(Chosen)
            if (value := getattr(self.chosen, entry.name)) != entry.default
        ]
        return f"{HUB}{self.path}{config}{revision}{''.join(options)}"

    @cached_property
    def origin(self) -> list[str]:
        """What its tensors are made from: another file, another entry of the cache."""
        folder = Path(self.path)
        if not folder.is_absolute():
            return [self.name]
        content = hashlib.sha256()
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            status = path.stat()
            line = f"{path.relative_to(folder)}:{status.st_size}:{status.st_mtime_ns}\n"
            content.update(line.encode())
        return [self.name, content.hexdigest()]

    @cached_property
    def splits(self) -> Any:
        """Its splits by name, downloaded if they are not there yet."""
        datasets = require("datasets", "vision")
        try:
            return datasets.load_dataset(self.path, self.config, revision=self.revision)
        except Exception as error:  # the hub client raises a dozen unrelated classes
            raise DataError(
                f"could not get {self.name}: {error}. Check its name, and the network unless it "
                f"is in the cache of datasets; a folder is named {HUB}./FOLDER"
            ) from error

    def __call__(self, folder: Path | None) -> Mapping[str, Tensor]:
        """Images and labels; nothing of the folder of other data is used."""
        spec = hub_spec(self.name)
        record = _record(self)

        def build() -> dict[str, Tensor]:
            tensors: dict[str, Tensor] = {}
            home = Path(self.path)
            for part, split, rows in _parts(self, record):
                folders = (home,) if home.is_dir() else hub_folders()
                opened = OpenSplit(rows, len(rows), f"{self.name} ({split})", folders)
                images, labels = decode(opened, spec, progress=True, square=self.chosen.size)
                tensors |= {f"{part}_images": images, f"{part}_labels": labels}
            return tensors

        entry = [f"{_FORMAT}", *self.origin]
        tensors, _ = cached_tensors(cache_folder(), readable(self.name), entry, build)
        return tensors


def parse(name: str) -> Source:
    """What a name `hub:...` says."""
    text, *words = name.removeprefix(HUB).split(",")
    rest, _, revision = text.partition("@")
    path, _, config = rest.partition(":")
    if not path:
        raise DataError(f"{HUB} needs the name of a dataset after it, such as {HUB}ylecun/mnist")
    if path.startswith((".", "/", "~")):
        folder = Path(path).expanduser().resolve()
        if not folder.is_dir():
            raise DataError(f"{name}: there is no folder {folder}")
        path = str(folder)
    return Source(path, config or None, revision or None, _chosen(name, words))


def _chosen(name: str, words: Iterable[str]) -> Chosen:
    known = {entry.name: entry for entry in fields(Chosen)}
    given: dict[str, Any] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if option not in known or not equals or not value:
            raise DataError(f"{name}: {unknown('option', option, known)}; write NAME=VALUE")
        if known[option].type == int | None:
            if not value.isdecimal() or int(value) < 1:
                raise DataError(f"{name}: {option} is a number from 1 on, got {value!r}")
            given[option] = int(value)
        else:
            given[option] = value
    return Chosen(**given)


@cache
def hub_spec(name: str) -> DatasetSpec:
    """The record of a dataset, from a look at it or from what was seen before."""
    source = parse(name)
    record = _record(source)
    classes = record["classes"]
    tasks = source.chosen.tasks or _tasks(source, classes)
    if classes % tasks:
        raise DataError(f"{source.name}: {classes} classes do not make {tasks} tasks of equal size")
    return DatasetSpec(
        source.name,
        classes,
        tasks,
        tuple(record["shape"]),
        image_column=record["image"],
        label_column=record["label"],
        test_split=record["test"] or record["train"],
        load=source,
    )


def seen(name: str) -> dict[str, Any]:
    """What the records of this dataset say, in words and numbers, for a run's configuration."""
    record = dict(_record(parse(name)))
    if record["test"] is None:
        record["test"] = f"every {HELD_OUT}th example of each class of {record['train']}"
    return record


def readable(name: str) -> str:
    """A name for files."""
    source = parse(name)
    last = Path(source.path).name if Path(source.path).is_absolute() else source.path
    words = [HUB, last, source.config or ""]
    letters = "".join(letter if letter.isalnum() else "-" for letter in " ".join(words))
    return "-".join(filter(None, letters.split("-")))


def _tasks(source: Source, classes: int) -> int:
    for tasks in range(min(MOST_TASKS, classes // 2), 1, -1):
        if classes % tasks == 0:
            return tasks
    fewer = classes - 1 if classes > 4 else 4
    raise DataError(
        f"{source.name} has {classes} classes, which make no tasks of equal size with two or more "
        f"each: take fewer, as in ,classes={fewer} or say how many ,tasks=N"
    )


def _record(source: Source) -> dict[str, Any]:
    path = cache_folder() / f"{entry_name(readable(source.name), [_FORMAT, source.origin])}.json"
    try:
        return read_json(path)
    except (OSError, ValueError):
        record = _look(source)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(record).encode())
    return record


def _look(source: Source) -> dict[str, Any]:
    """Columns, splits, classes and shape, or an error that says what is missing."""
    chosen, splits = source.chosen, source.splits
    for split in filter(None, (chosen.train, chosen.test)):
        if split not in splits:
            raise DataError(
                f"{source.name} has no split {split!r}, only {', '.join(splits)}: say which by "
                ",train=NAME or ,test=NAME"
            )
    test = chosen.test or next((split for split in TEST_SPLITS if split in splits), None)
    rows = splits[chosen.train]
    if not len(rows):
        raise DataError(f"{source.name}: its split {chosen.train!r} is empty")
    image = _image_column(source, rows.features)
    label = _label_column(source, rows.features)
    classes = getattr(rows.features[label], "num_classes", None)
    if classes is None:
        classes = 1 + max(_labels(source, chosen.train, label))
    if chosen.classes and chosen.classes > classes:
        raise DataError(f"{source.name} has {classes} classes, not {chosen.classes}")
    if test is None:
        warnings.warn(
            f"{source.name} has no split to test on, so every {HELD_OUT}th example of each class "
            f"of {chosen.train!r} is kept for tests; another split is chosen by ,test=NAME",
            stacklevel=2,
        )
    return {
        "image": image,
        "label": label,
        "train": chosen.train,
        "test": test,
        "classes": chosen.classes or classes,
        "shape": _shape(source, rows, image),
    }


def _image_column(source: Source, features: Mapping[str, Any]) -> str:
    kind = require("datasets", "vision").Image
    images = [name for name, feature in features.items() if isinstance(feature, kind)]
    wanted = source.chosen.image
    if wanted is not None and wanted not in images:
        raise DataError(f"{source.name} has no images in a column {wanted!r}; {_told(features)}")
    if wanted is None and len(images) != 1:
        found = f"images in {', '.join(images)}" if images else "no column of images"
        raise DataError(f"{source.name} has {found}: say which by ,image=NAME; {_told(features)}")
    return wanted or images[0]


def _label_column(source: Source, features: Mapping[str, Any]) -> str:
    kind = require("datasets", "vision").ClassLabel
    named = [name for name, feature in features.items() if isinstance(feature, kind)]
    usual = [name for name in _LABELS if name in features]
    candidates = usual[:1] if len(named) != 1 else named
    wanted = source.chosen.label or (candidates[0] if candidates else None)
    if wanted is None or wanted not in features:
        what = "labels are not found" if wanted is None else f"has no column {wanted!r}"
        raise DataError(f"{source.name}: {what}: say which by ,label=NAME; {_told(features)}")
    dtype = str(getattr(features[wanted], "dtype", "no plain value"))
    if not isinstance(features[wanted], kind) and not dtype.startswith(("int", "uint")):
        raise DataError(
            f"{source.name}: labels in {wanted!r} are {dtype}, and must be integers or ClassLabel; "
            f"class_encode_column({wanted!r}) of datasets makes them so"
        )
    return wanted


def _shape(source: Source, rows: Any, image: str) -> list[int]:
    looked_at = [rows[number][image] for number in range(min(_LOOKED_AT, len(rows)))]
    channels = 1 if all(picture.mode in ("1", "L") for picture in looked_at) else 3
    if size := source.chosen.size:
        return [channels, size, size]
    sizes = sorted({picture.size for picture in looked_at})
    if len(sizes) > 1:
        (a, b), (c, d) = sizes[0], sizes[-1]
        raise DataError(
            f"images of {source.name} differ in size, such as {a} x {b} and {c} x {d}: say a side "
            "by ,size=32, to which they are cut square and scaled"
        )
    width, height = sizes[0]
    return [channels, height, width]


def _parts(source: Source, record: Mapping[str, Any]) -> Iterable[tuple[str, str, Any]]:
    """The rows to train and to test on, of the classes that are taken."""
    train, test = record["train"], record["test"]
    kept: dict[str, list[int]] = {}
    for split in filter(None, (train, test)):
        labels = _labels(source, split, record["label"])
        kept[split] = [row for row, label in enumerate(labels) if label < record["classes"]]
    if test is not None:
        for part, split in (("train", train), ("test", test)):
            yield part, split, source.splits[split].select(kept[split])
        return
    met, held_out = Counter[int](), set[int]()
    for row in kept[train]:
        met[labels[row]] += 1
        if met[labels[row]] % HELD_OUT == 0:
            held_out.add(row)
    rest = [row for row in kept[train] if row not in held_out]
    yield "train", train, source.splits[train].select(rest)
    yield "test", train, source.splits[train].select(sorted(held_out))


def _labels(source: Source, split: str, column: str) -> list[int]:
    rows = source.splits[split]
    if column not in rows.column_names:
        raise DataError(f"{source.name}: its split {split!r} has no column {column!r}")
    labels: list[int] = rows[column][:]
    if any(label is None or label < 0 for label in labels):
        raise DataError(
            f"{source.name}: its split {split!r} has examples without a label: choose another by "
            ",test=NAME or ,train=NAME"
        )
    return labels


def _told(features: Mapping[str, Any]) -> str:
    kinds = [
        f"{name} ({getattr(feature, 'dtype', None) or type(feature).__name__})"
        for name, feature in features.items()
    ]
    return f"its columns are {', '.join(kinds)}"
