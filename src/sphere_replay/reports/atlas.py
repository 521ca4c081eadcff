"""Many small pictures in one PNG, which a page holds as text and cuts up again."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sphere_replay.extras import require

COLUMNS = 40
LARGEST_SIDE = 32
"""Pixels of a picture; larger ones are shrunk."""


def atlas(images: Mapping[int, Tensor]) -> dict[str, Any]:
    """Pictures uint8 `[c, h, w]` with c = 1 or 3, by key: a data address, and where each stands."""
    pictures = torch.stack([_shrunk(picture) for picture in images.values()])
    count, channels, height, width = pictures.shape
    rows = -(-count // COLUMNS)
    sheet = torch.zeros(rows * COLUMNS, channels, height, width, dtype=torch.uint8)
    sheet[:count] = pictures
    grid = sheet.view(rows, COLUMNS, channels, height, width).permute(0, 3, 1, 4, 2)
    pixels = grid.reshape(rows * height, COLUMNS * width, channels)
    return {
        "picture": "data:image/png;base64," + base64.b64encode(_png(pixels)).decode(),
        "width": width,
        "height": height,
        "columns": COLUMNS,
        "places": {str(key): place for place, key in enumerate(images)},
    }


def _png(pixels: Tensor) -> bytes:
    """The file of a grey or coloured picture, uint8 `[h, w, 1 or 3]`."""
    file = io.BytesIO()
    picture = require("PIL.Image", "vision").fromarray(pixels.squeeze(2).numpy())
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def _shrunk(picture: Tensor) -> Tensor:
    channels, height, width = picture.shape
    if channels not in (1, 3):
        picture = picture[:1]
    factor = -(-max(height, width) // LARGEST_SIDE)
    if factor == 1:
        return picture
    small = torch.nn.functional.avg_pool2d(picture.float(), factor)
    return small.round().to(torch.uint8)
