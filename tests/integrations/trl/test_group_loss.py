"""The group loss is the paper's clipped surrogate, whatever TRL does around it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from integrations.trl.grpo import Witness, surrogate, trainer
from language import tiny
from sphere_replay.integrations.trl.groups import (
    Group,
    _trimmed,
    books_aside,
    differs,
    group_loss,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Group]]:
    """A trainer after a few updates, and mixed groups it has sampled."""
    training = trainer(tmp_path_factory.mktemp("run"), replay={"select": "uniform"})
    witness = Witness(training)
    training.train()
    sampled = [candidates for candidates in witness.candidates if candidates is not None]
    groups = [group for each in sampled for group in each.own.values() if group.mixed]
    assert len(groups) > 3
    return training, groups


@contextmanager
def evaluating(training: Any) -> Iterator[None]:
    training.model.eval()
    try:
        with books_aside(training), torch.no_grad():
            yield
    finally:
        training.model.train()


def oracle(training: Any) -> Any:
    model: Any = tiny.qwen2()
    model.load_state_dict(training.model.state_dict())
    return model.eval()


def perturbed(group: Group, size: float, like: Tensor, seed: int) -> Tensor:
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return like + size * noise * group.inputs["completion_mask"]


def noted(training: Any, group: Group) -> Tensor:
    with evaluating(training), training.log_probabilities_noted() as noted:
        group_loss(training, group)
    (logs,) = noted
    assert isinstance(logs, Tensor)
    return logs


def test_it_equals_the_surrogate_by_hand(trained: tuple[Any, list[Group]]) -> None:
    training, groups = trained
    model = oracle(training)
    outside = 0
    for seed, group in enumerate(groups):
        pinned = perturbed(group, 0.3, noted(training, group), seed)
        with evaluating(training):
            fresh, moved = group_loss(training, group), group_loss(training, group, pinned)
        torch.testing.assert_close(fresh, surrogate(model, group.inputs), rtol=1e-4, atol=1e-6)
        wanted = surrogate(model, group.inputs, pinned=pinned)
        torch.testing.assert_close(moved, wanted, rtol=1e-4, atol=1e-6)
        outside += int(((noted(training, group) - pinned).exp() - 1).abs().gt(0.2).sum())
    assert outside > 5  # clipping has something to do


def test_the_samplers_correction_is_truncated_at_two(
    trained: tuple[Any, list[Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    training, groups = trained
    monkeypatch.setattr(training, "use_vllm", True)
    group = groups[0]
    logs = noted_with_correction(training, group)
    q = perturbed(group, 1.0, logs, 7)
    correction = torch.exp(logs - q).clamp(max=2.0)
    assert (correction == 2.0).any()
    given = Group({**group.inputs, "importance_sampling_ratio": correction})
    pinned = perturbed(group, 0.3, logs, 8)
    with evaluating(training):
        loss = group_loss(training, given, pinned)
    wanted = surrogate(oracle(training), group.inputs, pinned=pinned, correction=correction)
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-6)


def noted_with_correction(training: Any, group: Group) -> Tensor:
    ones = torch.ones_like(group.inputs["completion_ids"], dtype=torch.float32)
    return noted(training, Group({**group.inputs, "importance_sampling_ratio": ones}))


@pytest.mark.parametrize("kind", ["dr_grpo", "dapo", "grpo", "bnpo", "cispo", "luspo"])
def test_nothing_divides_it_in_training(
    trained: tuple[Any, list[Group]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, groups = trained
    assert training.current_gradient_accumulation_steps == 2
    monkeypatch.setattr(training, "loss_type", kind)
    if kind == "cispo":
        monkeypatch.setattr(training, "epsilon_high", 5.0)
    for group in groups[:2]:
        with evaluating(training):
            alone = group_loss(training, group)
        with books_aside(training):
            assert training.model.training
            inside = group_loss(training, group)
        torch.testing.assert_close(inside.detach(), alone, rtol=1e-5, atol=1e-7)
    assert training.current_gradient_accumulation_steps == 2


def test_padding_for_longer_neighbors_is_cut_off(trained: tuple[Any, list[Group]]) -> None:
    training, groups = trained
    group = groups[0]
    size, length = group.inputs["completion_ids"].shape
    wide = {name: values for name, values in group.inputs.items() if values.ndim > 0}
    for name, values in wide.items():
        if name.startswith("prompt"):
            wide[name] = torch.cat([values.new_zeros(size, 3), values], dim=1)
        elif values.ndim == 2:
            wide[name] = torch.cat([values, values.new_zeros(size, 2)], dim=1)
    cut = _trimmed(wide)
    assert cut["completion_ids"].shape == (size, length)
    for name, values in cut.items():
        assert torch.equal(values, group.inputs[name]), name
    with evaluating(training):
        losses = [group_loss(training, Group(inputs)) for inputs in (wide, cut)]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)


def test_what_counts_as_mixed() -> None:
    ids = torch.ones(3, 2, dtype=torch.int64)
    mean = torch.tensor([0.1, 0.1, 0.1]).mean()
    rounded = torch.tensor([0.1, 0.1, 0.1]) - mean
    inputs = {"completion_mask": ids, "advantages": torch.tensor([1.0, 0.0, -1.0])}
    assert Group(inputs).mixed
    assert not Group({**inputs, "advantages": rounded}).mixed
    masked = Group({**inputs, "completion_mask": torch.zeros_like(ids)})
    assert masked.empty
    assert not masked.mixed
    by_tools = Group({**inputs, "tool_mask": torch.zeros_like(ids)})
    assert by_tools.empty
    assert differs(torch.tensor([0.0, -0.5])).tolist() == [False, True]


def test_the_streams_books_come_back(trained: tuple[Any, list[Group]]) -> None:
    training, groups = trained
    training._metrics["train"]["reward"].append(0.25)
    training._logs["prompt"].append("before")
    tokens = training.state.num_input_tokens_seen
    with books_aside(training):
        group_loss(training, groups[0])
        training._metrics["train"]["reward"].append(9.0)
        training._logs["prompt"].append("inside")
        training.state.num_input_tokens_seen += 5
        assert training._metrics["train"]["entropy"]
    assert list(training._metrics["train"]["reward"]) == [0.25]
    assert training._logs["prompt"][-1] == "before"
    assert "entropy" not in training._metrics["train"]
    assert training.state.num_input_tokens_seen == tokens
