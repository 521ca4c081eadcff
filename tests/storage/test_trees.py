"""Nested state comes back exactly: types, order, bits."""

import enum
import json
import math
import struct
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sphere_replay.storage.trees import fingerprint, flatten, from_bytes, to_bytes, unflatten

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def _there_and_back(tree: dict[str, Any]) -> dict[str, Any]:
    tensors, skeleton = flatten(tree)
    return unflatten(
        from_bytes(to_bytes(tensors)), json.loads(json.dumps(skeleton, allow_nan=False))
    )


def _same(left: object, right: object) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        same_form = left.dtype == right.dtype and left.shape == right.shape
        return same_form and left.numpy().tobytes() == right.numpy().tobytes()
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(
            type(a) is type(b) and _same(left[a], right[b])
            for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left):
            return math.isnan(right)
        return struct.pack("d", left) == struct.pack("d", right)
    return left == right


_text = st.text("ab/$'0é😀 \n", max_size=3)
_keys = _text | st.sampled_from(["$tensor", "$items", "$tuple", "$float", "a/b", "0"])
_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | _text
    | st.builds(lambda n: torch.arange(n, dtype=torch.int16), st.integers(0, 3))
)
_trees = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_keys | st.integers(-2, 2), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abc/_'", max_size=3), _trees, max_size=4))
def test_any_tree_comes_back(tree: dict[str, Any]) -> None:
    assert _same(_there_and_back(tree), tree)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)], ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    back = _there_and_back({"x": tensor})["x"]
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_names_are_paths() -> None:
    tensors, _ = flatten({"model": {"layer": {"weight": torch.ones(1)}}, "groups": [torch.ones(2)]})
    assert list(tensors) == ["model/layer/weight", "groups/0"]


def test_paths_that_collide_keep_their_own_tensor() -> None:
    tree = {
        "a/b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        "s": {0: torch.tensor(3), "0": torch.tensor(4)},
        "__metadata__": torch.tensor(5),
        "": torch.tensor(6),
    }
    assert _same(_there_and_back(tree), tree)


def test_special_floats_keep_their_bits() -> None:
    values = [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, 1 / 3]
    back = _there_and_back({"x": values})["x"]
    assert [struct.pack("d", x) for x in back] == [struct.pack("d", x) for x in values]


def test_shared_transposed_and_overlapping_tensors_are_copied() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    tree = {
        "base": base,
        "same": base,
        "turned": base.T,
        "row": base[1],
        "wide": base[:1].expand(4, 3),
    }
    back = _there_and_back(tree)
    assert _same(back, {key: value.contiguous() for key, value in tree.items()})
    back["same"].zero_()
    assert float(back["base"].sum()) == 15


def test_a_snapshot_does_not_follow_the_original() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    tensors, _ = flatten({"w": weight})
    with torch.no_grad():
        weight.zero_()
    assert tensors["w"].tolist() == [1, 1]
    assert not tensors["w"].requires_grad


def test_training_goes_on_bit_for_bit() -> None:
    """Model, AdamW with integer keys and tuple betas, scheduler numbers and generator state."""

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Generator]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.3)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1), torch.Generator()

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, g: torch.Generator) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(8, 4, generator=g)
            (model(x) * torch.randn(8, 3, generator=g)).sum().backward()
            optimizer.step()

    model, optimizer, generator = build()
    train(model, optimizer, generator)
    saved = _there_and_back(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": generator.get_state(),
        }
    )
    assert _same(saved["optimizer"], optimizer.state_dict())
    train(model, optimizer, generator)

    resumed_model, resumed_optimizer, resumed_generator = build()
    resumed_model.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    resumed_generator.set_state(saved["generator"])
    train(resumed_model, resumed_optimizer, resumed_generator)
    assert _same(dict(resumed_model.state_dict()), dict(model.state_dict()))
    assert _same(resumed_optimizer.state_dict(), optimizer.state_dict())


def test_equal_trees_give_equal_bytes() -> None:
    tree = {"b": torch.ones(2), "a": torch.zeros(3, dtype=torch.int64)}
    reordered = OrderedDict(reversed(tree.items()))
    assert to_bytes(flatten(tree)[0]) == to_bytes(flatten(reordered)[0])


def test_fingerprints_are_what_manifests_and_file_names_hold() -> None:
    tensors = {
        "b": torch.arange(6).reshape(2, 3).T,
        "a": torch.nn.Parameter(torch.tensor([0.5, -1.0])),
        "c": torch.tensor(True),
        "e": torch.zeros(0, 2),
    }
    expected = "7e1bfa303f51a740506b31b9cbaa27111d50226112297cc46f699d2dd7e2863e"
    assert fingerprint(tensors) == expected
    assert fingerprint(dict(reversed(tensors.items()))) == expected
    for changed in (
        {"c": torch.tensor(False)},
        {"c": torch.tensor([True])},
        {"c": torch.tensor(1, dtype=torch.uint8)},
        {"d": torch.tensor(True)},
    ):
        assert fingerprint(tensors | changed) != expected


def test_fingerprints_of_half_precision_and_of_views_that_are_not_resolved() -> None:
    half = torch.tensor([1.0, -2.5], dtype=torch.bfloat16)
    assert fingerprint({"a": half}) != fingerprint({"a": -half})
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    flipped = torch.tensor([1 - 2j, 3 + 1j])
    assert fingerprint({"a": numbers.conj()}) == fingerprint({"a": flipped})


def test_a_model_has_the_fingerprint_of_its_state() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter))
    assert fingerprint(model.state_dict()) == (
        "f3de6844c03e6888a1b27961f3c406d28af213a892b10c864d760c511e79148e"
    )


class _Color(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        ({1, 2}, "outer/inner is a set"),
        (b"raw", "outer/inner is a bytes"),
        (_Color.RED, "outer/inner is a _Color"),
        (torch.float32, "outer/inner is a dtype"),
        ({(1, 2): 3}, "keys must be text or integers"),
        ({True: 3}, "keys must be text or integers"),
        (torch.zeros(2, dtype=torch.complex128), "outer/inner is a .*complex128"),
        (torch.eye(2).to_sparse(), "outer/inner is a torch.sparse_coo"),
    ],
)
def test_what_cannot_be_restored_is_refused(leaf: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        flatten({"outer": {"inner": leaf}})


def test_outermost_keys_are_text() -> None:
    with pytest.raises(TypeError, match="outermost keys"):
        flatten({"$items": 1})
