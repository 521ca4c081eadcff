"""Recorded runs as plain data for the inspector: maps that do not jump, and pictures kept once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sphere_replay.reports.atlas import atlas
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.recording import FOLDER, read_recording

Content = dict[str, Any]
Moment = tuple[Mapping[str, Any], Mapping[str, Any]]
Map = tuple[int, Sequence[int], Tensor]
"""Step, keys of the memories, and their places `[m, 2]`."""

LONGEST_TEXT = 2000
"""Characters of a text that the page keeps."""


def has_recording(run: Path) -> bool:
    """Whether a run kept any rescoring."""
    return any((run / FOLDER).glob("step-*.json"))


@dataclass(frozen=True)
class Recorded:
    """A recorded run as it is called."""

    name: str
    """That no other has."""
    method: str
    folder: Path


def inspected(runs: Sequence[Recorded], *, thin: int = 1) -> Content:
    """Every recorded run, and what they remember of their streams.

    Runs with equal streams share their pictures or texts, and can be compared. `thin` keeps every
    so-manieth moment.
    """
    streams: dict[str, Content] = {}
    shown = []
    for run in runs:
        folder = RunFolder(run.folder)
        moments = read_recording(run.folder)
        moments = moments[::-1][::thin][::-1]  # the last one stays
        digest = folder.manifest["data"].get("stream", str(run.folder))
        items = streams.setdefault(digest, {"number": len(streams), "images": {}, "texts": {}})
        for _, tree in moments:
            _collect(items, tree)
        config, maps = folder.config, _maps(moments, items.get("maps", []))
        items.setdefault("maps", maps)
        shown.append(
            {
                "name": run.name,
                "method": run.method,
                "host": config["host"],
                "select": config["select"],
                "seed": config["seed"],
                "stream": items["number"],
                "names": moments[0][1]["names"],
                "moments": [
                    _moment(head, tree, places)
                    for (head, tree), (_, _, places) in zip(moments, maps, strict=True)
                ],
            }
        )
    return {"runs": shown, "streams": [_kept(items) for items in streams.values()]}


def _collect(items: Content, tree: Mapping[str, Any]) -> None:
    images, texts = tree["images"], tree["texts"]
    for place, key in enumerate(tree["keys"]):
        if images is not None:
            items["images"].setdefault(key, images[place])
        if texts is not None and not tree["fleeting"]:
            items["texts"].setdefault(str(key), texts[place][:LONGEST_TEXT])


def _kept(items: Content) -> Content:
    images: dict[int, Tensor] = items["images"]
    return {"atlas": atlas(images) if images else None, "texts": items["texts"] or None}


def _maps(moments: Sequence[Moment], first: Sequence[Map]) -> list[Map]:
    """The map of each moment, turned to that before it; or to the first run's at that time."""
    maps: list[Map] = []
    for head, tree in moments:
        step, keys, places = head["step"], tree["keys"], tree["places"].double()
        if first:
            _, known, there = min(first, key=lambda other: abs(other[0] - step))
            places = turned(keys, places, known, there)
        elif maps:
            _, known, there = maps[-1]
            places = turned(keys, places, known, there)
        maps.append((step, keys, places))
    return maps


def _moment(head: Mapping[str, Any], tree: Mapping[str, Any], places: Tensor) -> Content:
    weights = tree["weights"].double()
    fair = weights * len(weights) / weights.sum().clamp(min=1e-30)
    return {
        "step": head["step"],
        "mass": round(head["mass"], 4),
        "ess": round(head["ess"], 1),
        "agreement": round(tree["agreement"], 3),
        "keys": tree["keys"],
        "x": _rounded(places[:, 0], 4),
        "y": _rounded(places[:, 1], 4),
        "task": tree["tasks"].tolist(),
        "increment": _rounded(tree["increments"], 4),
        "loss": _rounded(tree["losses"], 3),
        "consensus": _rounded(tree["consensus"], 4),
        "weight": _rounded(fair, 3),
        "backing": _optional(tree["backing"]),
        "label": None if tree["labels"] is None else tree["labels"].tolist(),
        "true": None if tree["true"] is None else tree["true"].tolist(),
        "neighbours": tree["neighbours"].tolist(),
        "shares": _table(tree["shares"]),
        "voted": tree["voted"].tolist() if "voted" in tree else None,
        "votes": _table(tree["votes"]) if "votes" in tree else None,
        "texts": [text[:LONGEST_TEXT] for text in tree["texts"]] if tree["fleeting"] else None,
    }


def turned(
    keys: Sequence[int], places: Tensor, old_keys: Sequence[int], old_places: Tensor
) -> Tensor:
    """Places `[m, 2]` turned and mirrored so that memories of both moments move least.

    Principal directions have no sign and change places as the network learns; the best rotation
    (orthogonal Procrustes) takes that out, and leaves every distance as it is.
    """
    known = {key: place for place, key in enumerate(old_keys)}
    both = [(here, known[key]) for here, key in enumerate(keys) if key in known]
    if len(both) < 2:
        return places
    here, there = (torch.tensor(part) for part in zip(*both, strict=True))
    left, _, right = torch.linalg.svd(places[here].T @ old_places[there])
    turn: Tensor = left @ right
    return places @ turn


def _rounded(values: Tensor, digits: int) -> list[float]:
    return [round(value, digits) for value in values.tolist()]


def _optional(values: Tensor | None) -> list[float] | None:
    return None if values is None else _rounded(values, 3)


def _table(values: Tensor) -> list[list[float]]:
    return [_rounded(row, 3) for row in values]
