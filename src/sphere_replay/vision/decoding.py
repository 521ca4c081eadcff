"""Compressed images of Hugging Face `datasets` into one uint8 tensor."""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.runs.progress import step_progress
from sphere_replay.vision.specs import DatasetSpec

_CHUNK = 256


@dataclass(frozen=True)
class OpenSplit:
    """An opened split: `rows` is a `datasets` object, `size` its number of examples."""

    rows: Any
    size: int
    origin: str
    """File or hub id, for messages."""
    files: tuple[Path, ...] = ()
    """Folders below which pictures may lie in files of their own; others are not opened."""


def split_from_file(path: Path, spec: DatasetSpec) -> OpenSplit:
    """Open one Parquet file; nothing but its footer is read yet."""
    try:
        footer = require("pyarrow.parquet", "vision").read_metadata(path)
    except (OSError, ValueError) as error:  # Arrow's own errors derive from ValueError
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error
    columns = [str(name) for name in footer.schema.to_arrow_schema().names]
    _check_columns(columns, spec, str(path))
    # Streaming reads the file in place; otherwise `datasets` would first copy it to its own cache.
    rows = require("datasets", "vision").load_dataset(
        "parquet", data_files={"rows": str(path)}, split="rows", streaming=True
    )
    return OpenSplit(rows, int(footer.num_rows), str(path))


def split_from_hub(spec: DatasetSpec, split: str) -> OpenSplit:
    """Download a split from the hub, or take it from the cache of `datasets`."""
    datasets = require("datasets", "vision")
    origin = f"{spec.hub} ({split})"
    try:
        rows = datasets.load_dataset(spec.hub, split=split)
    except Exception as error:  # the hub client raises a dozen unrelated classes
        raise DataError(
            f"could not get {origin} from the Hugging Face hub: {error}. Check the network, or "
            f"name a folder that holds {spec.name}/{split}.parquet (--data, or SPHERE_DATA)"
        ) from error
    _check_columns(rows.column_names, spec, origin)
    return OpenSplit(rows, len(rows), origin, hub_folders())


def hub_folders() -> tuple[Path, ...]:
    """Where the clients of the hub put what they download."""
    hub = require("huggingface_hub", "vision").constants.HF_HUB_CACHE
    return Path(require("datasets", "vision").config.HF_DATASETS_CACHE), Path(hub)


def decode(
    split: OpenSplit, spec: DatasetSpec, *, progress: bool, square: int | None = None
) -> tuple[Tensor, Tensor]:
    """Images uint8 `[n, c, h, w]` and labels int64 `[n]`; grey and palette images are converted.

    Where `square` says a side, they are cut square around their centres and scaled to it.
    """
    numpy = require("numpy", "vision")
    channels, height, width = spec.shape
    mode = "L" if channels == 1 else "RGB"
    pixels = numpy.empty((split.size, height, width, channels), dtype=numpy.uint8)
    labels = torch.empty(split.size, dtype=torch.int64)
    if split.size == 0:
        raise DataError(f"{split.origin} has no rows; {spec.name} needs some of every class")
    rows = split.rows.select_columns([spec.image_column, spec.label_column])
    rows = rows.cast_column(spec.image_column, require("datasets", "vision").Image(decode=False))
    done = 0
    with step_progress(f"Decoding {split.origin}", hidden=not progress) as report:
        for chunk in rows.iter(batch_size=_CHUNK):
            for stored, label in zip(
                chunk[spec.image_column], chunk[spec.label_column], strict=True
            ):
                where = f"image {done} of {split.origin}"
                if isinstance(label, bool) or not isinstance(label, int):
                    raise DataError(
                        f"the label of {where} is {label!r}: labels are whole numbers, "
                        f"0 to {spec.num_classes - 1}"
                    )
                image = _opened(stored, where, split.files)
                if square is not None:
                    image = _cut(image, square, where)
                if image.size != (width, height):
                    raise DataError(
                        f"{where} is {image.width} x {image.height} "
                        f"pixels, and {spec.name} has {width} x {height}"
                    )
                if not 0 <= label < spec.num_classes:
                    raise DataError(
                        f"label {label} of {where} lies outside 0..{spec.num_classes - 1}"
                    )
                pixels[done] = _pixels(image, mode, where).reshape(height, width, channels)
                labels[done] = label
                done += 1
            if report is not None:
                report(done, split.size, "")
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels


def _lies_in(path: Path, folders: Sequence[Path]) -> bool:
    """Whether it is a file below one of the folders, links resolved."""
    there = path.resolve()
    return there.is_file() and any(there.is_relative_to(each.resolve()) for each in folders)


def _opened(stored: Any, where: str, folders: Sequence[Path]) -> Any:
    """An image whose header alone was read: a picture of any size costs nothing yet."""
    stored = stored if isinstance(stored, dict) else {}
    content, path = stored.get("bytes"), stored.get("path")
    if not isinstance(content, bytes):
        if not (path and _lies_in(Path(path), folders)):
            raise DataError(
                f"{where} holds no picture{f', only the name {path!r}' if path else ''}: what lies "
                "outside of the file is not opened; store the pictures themselves, as "
                "datasets.Dataset.to_parquet does"
            )
        content = Path(path).read_bytes()
    pillow = require("PIL.Image", "vision")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of size: the caller compares it
            return pillow.open(io.BytesIO(content))
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise DataError(f"{where} is no picture that can be read: {error}") from error


def _cut(image: Any, side: int, where: str) -> Any:
    """The square around its centre, scaled to that side."""
    try:
        return require("PIL.ImageOps", "vision").fit(image, (side, side))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{where} is damaged: {error}") from error


def _pixels(image: Any, mode: str, where: str) -> Any:
    numpy = require("numpy", "vision")
    try:
        return numpy.asarray(image if image.mode == mode else image.convert(mode))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{where} is damaged: {error}") from error


def _check_columns(found: list[str], spec: DatasetSpec, origin: str) -> None:
    expected = [spec.image_column, spec.label_column]
    if not set(expected) <= set(found):
        raise DataError(
            f"{origin} has the columns {', '.join(found)}; {spec.name} needs "
            f"{' and '.join(expected)}, as in {spec.hub} on the hub"
        )
