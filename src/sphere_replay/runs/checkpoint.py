"""Two generations of checkpoints that a kill at any moment leaves loadable. No pickle.

A generation is a pair of files, see `storage.saved`, named `checkpoint` for the newest and
`previous` for the one before.

    save(folder, {"model": model.state_dict(), "step": 120})
    tree = load_latest(folder).tree
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphere_replay.errors import UserError
from sphere_replay.storage.files import replace_durably, stage
from sphere_replay.storage.saved import pair, verified
from sphere_replay.storage.trees import flatten, from_bytes, unflatten

# Newest first. The middle pair exists only if a save was cut short between moving the tensors of
# the older checkpoint and moving its JSON.
_PAIRS = (("checkpoint", "checkpoint"), ("checkpoint", "previous"), ("previous", "previous"))


class CheckpointError(UserError, RuntimeError):
    """There are checkpoints, but none can be trusted."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What was saved, verified."""

    tree: dict[str, Any]
    problems: tuple[str, ...]
    """Why newer checkpoints were passed over; empty in the ordinary case."""


@dataclass(frozen=True)
class _Found:
    document: Path
    tensors: Path
    content: bytes
    state: dict[str, Any]


def save(folder: str | Path, tree: Mapping[str, object]) -> None:
    """Write a new checkpoint and keep the newest intact one before it as the previous.

    Errors, such as a full disk, leave the old checkpoints as they are.
    """
    folder = Path(folder)
    tensors, state = flatten(tree)
    content, document = pair(tensors, state=state)
    staged_tensors = stage(folder / "checkpoint.safetensors", content)
    staged_document = stage(folder / "checkpoint.json", document)
    # Only an intact checkpoint may replace the previous one: after falling back to it, a damaged
    # newest must not take its place. Tensors move before the JSON that vouches for them, so that
    # after each single step one of the pairs is whole.
    newest, _ = _find(folder)
    if newest and newest.tensors.stem == "checkpoint":
        replace_durably(newest.tensors, folder / "previous.safetensors")
    if newest and newest.document.stem == "checkpoint":
        replace_durably(newest.document, folder / "previous.json")
    replace_durably(staged_tensors, folder / "checkpoint.safetensors")
    replace_durably(staged_document, folder / "checkpoint.json")


def load_latest(folder: str | Path) -> Checkpoint | None:
    """The newest checkpoint that is intact; None if none was ever completed.

    Raises CheckpointError if there were some and all are damaged.
    """
    folder = Path(folder)
    found, problems = _find(folder)
    if found:
        tree = unflatten(from_bytes(found.content), found.state)
        return Checkpoint(tree, tuple(problems))
    if problems:
        raise CheckpointError(
            f"no checkpoint in {folder} is intact:\n  " + "\n  ".join(problems) + "\n"
            "Restore the files from a copy, or delete checkpoint.* and previous.* to start the run "
            "from the beginning."
        )
    return None


def _find(folder: Path) -> tuple[_Found | None, list[str]]:
    """The newest intact pair, and what was wrong with those before it."""
    problems: list[str] = []
    for name, partner in _PAIRS:
        document, tensors = folder / f"{name}.json", folder / f"{partner}.safetensors"
        if not document.exists():
            continue
        try:
            content, saved = verified(document, tensors)
        except (OSError, ValueError) as error:
            if name == partner:
                problems.append(str(error))
        else:
            # The middle pair is the newest checkpoint in two places, and nothing is wrong with it.
            found = _Found(document, tensors, content, saved["state"])
            return found, problems if name == partner else []
    return None, problems
