"""Comparing states: trees of tensors and plain values, to the last bit."""

import json
from collections.abc import Mapping

from sphere_replay.storage.trees import flatten, to_bytes


def spelled(tree: Mapping[str, object]) -> tuple[bytes, str]:
    """Every bit of a state, as its files would hold it: equal ones are equal states."""
    tensors, skeleton = flatten(tree)
    return to_bytes(tensors), json.dumps(skeleton)
