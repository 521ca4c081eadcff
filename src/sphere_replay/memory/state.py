"""Saved state as a flat dictionary of tensors: the helpers that memory and policies share."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor


def text_to_tensor(text: str) -> Tensor:
    """UTF-8 bytes as uint8, because a state holds nothing but tensors."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")


def tensor_to_text(values: Tensor) -> str:
    """The text that `text_to_tensor` wrote."""
    return bytes(values.tolist()).decode()


def integers(*values: int) -> Tensor:
    """Counters as int64 `[n]`, at any n."""
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def without_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose key starts with the prefix, under the rest of their key."""
    return {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}


def check_keys(state: Mapping[str, Tensor], expected: Collection[str], *, owner: str) -> None:
    """Exactly the expected entries, or an error that names those missing and those unknown."""
    missing = sorted(set(expected) - state.keys())
    unknown = sorted(state.keys() - set(expected))
    if missing or unknown:
        parts = [
            f"{what} {', '.join(keys)}"
            for what, keys in (("lacks", missing), ("has unknown entries", unknown))
            if keys
        ]
        raise ValueError(f"{owner} {' and '.join(parts)}: was it saved by another version?")


def check_label(saved: Tensor | None, expected: str, policy: str) -> None:
    """A saved policy read its labels from the same field as the one it is loaded into."""
    if saved is None:
        raise ValueError(f"the state of a {policy} policy lacks its label field")
    name = tensor_to_text(saved)
    if name != expected:
        raise ValueError(
            f"the saved {policy} policy reads labels from field {name!r}, this one from "
            f"{expected!r}: build it with label={name!r}"
        )
