"""The state of memories and policies: a tree of tensors and plain values, checked when loaded."""

from collections.abc import Collection, Mapping
from typing import Any


def check_keys(state: Mapping[str, object], expected: Collection[str], *, owner: str) -> None:
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


def check_policy(
    state: Mapping[str, Any], expected: Collection[str], *, label: str, policy: str
) -> None:
    """Exactly the expected entries, and labels from the same field as the policy's own."""
    check_keys(state, ("label", *expected), owner=f"the state of a {policy} policy")
    saved = state["label"]
    if saved != label:
        raise ValueError(
            f"the saved {policy} policy reads labels from field {saved!r}, this one from "
            f"{label!r}: build it with label={saved!r}"
        )
