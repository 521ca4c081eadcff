"""Nested state as named tensors plus JSON, and back, with nothing lost on the way.

State dictionaries of models, optimizers, generators and memories are trees of dictionaries (with
text or integer keys), lists and tuples whose leaves are tensors, numbers, text or None. Two trees
that `flatten` alike are alike.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sphere_replay.extras import require

State = dict[str, Any]
"""A tree with text for outermost keys: what every `state_dict` gives and checkpoints hold."""

# Objects with exactly one of these keys stand for what JSON has no notation for.
_TENSOR, _TUPLE, _ITEMS, _FLOAT = "$tensor", "$tuple", "$items", "$float"


def flatten(tree: Mapping[str, object]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a tree into tensors, named by their path with '/', and JSON that refers to them.

    Tensors are copied to the CPU, so the result is a snapshot and shares no memory with the tree;
    gradients, strides and subclasses such as Parameter are not part of it. Dictionaries of any kind
    come back as plain ones, in the same order.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _encode({**tree}, "", tensors)
    if _ITEMS in skeleton:
        raise TypeError(f"the outermost keys must be text and not begin with '$', got {list(tree)}")
    return tensors, skeleton


def unflatten(tensors: Mapping[str, Tensor], skeleton: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    return {key: _decode(value, tensors) for key, value in skeleton.items()}


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Safetensors content; equal tensors give equal bytes."""
    content: bytes = require("safetensors.torch", "vision").save(dict(tensors))
    return content


def from_bytes(content: bytes) -> dict[str, Tensor]:
    """The inverse of `to_bytes`."""
    return dict(require("safetensors.torch", "vision").load(content))


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and raw bytes of some tensors, in order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{list(tensor.shape)};".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encode(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = _unused(path, tensors)
        tensors[name] = _snapshot(value, path)
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        encoded = [(key, _encode(item, _join(path, key), tensors)) for key, item in value.items()]
        if all(type(key) is str and not key.startswith("$") for key in value):
            return dict(encoded)
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{path} has the key {key!r}; keys must be text or integers")
        return {_ITEMS: [[key, item] for key, item in encoded]}
    if type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        items = [_encode(item, _join(path, index), tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    if type(value) is float and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    # Exact types only: an enumeration or a numpy number would come back as something else.
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold; store tensors, plain "
        "numbers, text, None, or lists, tuples and dictionaries of them"
    )


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _TUPLE in value:
        return tuple(_decode(item, tensors) for item in value[_TUPLE])
    if _FLOAT in value:
        return float(value[_FLOAT])
    if _ITEMS in value:
        return {key: _decode(item, tensors) for key, item in value[_ITEMS]}
    return {key: _decode(item, tensors) for key, item in value.items()}


def _snapshot(tensor: Tensor, path: str) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.dtype == torch.complex128:
        raise TypeError(
            f"{path} is a {tensor.layout} tensor of {tensor.dtype}, which a checkpoint cannot "
            "hold; store a dense one of real numbers (torch.view_as_real)"
        )
    whole = tensor.detach().resolve_conj().resolve_neg().cpu()
    return whole.clone(memory_format=torch.contiguous_format)


def _join(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)


def _unused(path: str, tensors: Mapping[str, Tensor]) -> str:
    # {"a/b": x, "a": {"b": y}} and {0: x, "0": y} give one path twice. The JSON names each tensor,
    # so any free name will do; the header of a safetensors file reserves __metadata__.
    name = path
    while name in tensors or name == "__metadata__":
        name += "'"
    return name
