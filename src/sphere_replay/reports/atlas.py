"""Many small pictures in one PNG, which a page holds as text and cuts up again."""

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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
        "picture": "data:image/png;base64," + base64.b64encode(png(pixels)).decode(),
        "width": width,
        "height": height,
        "columns": COLUMNS,
        "places": {str(key): place for place, key in enumerate(images)},
    }


def png(pixels: Tensor) -> bytes:
    """The file of a grey or coloured picture, uint8 `[h, w, 1 or 3]`."""
    height, width, channels = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    # Every line begins with the number of its filter: none.
    lines = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), pixels.flatten(1)], dim=1)
    body = zlib.compress(lines.contiguous().numpy().tobytes(), 9)
    parts = [(b"IHDR", head), (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(*part) for part in parts)


def _part(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def _shrunk(picture: Tensor) -> Tensor:
    channels, height, width = picture.shape
    if channels not in (1, 3):
        picture = picture[:1]
    factor = -(-max(height, width) // LARGEST_SIDE)
    if factor == 1:
        return picture
    small = torch.nn.functional.avg_pool2d(picture.float(), factor)
    return small.round().to(torch.uint8)
