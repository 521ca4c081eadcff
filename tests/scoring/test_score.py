"""Increments agree with a copied model; scoring costs two forwards and leaves nothing behind."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay.scoring import Scores, cross_entropy_per_example, score


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, 3)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 2

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.dropout(torch.relu(self.norm(self.first(x))))
        return features, self.head(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)[1]


def data(count: int = 23, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return x, torch.randint(3, (count,), generator=generator)


def backward(model: nn.Module) -> None:
    x, y = data(9, seed=2)
    dtype = next(model.parameters()).dtype
    torch.autograd.backward(functional.cross_entropy(model(x.to(dtype)).float(), y))


def snapshot(model: nn.Module) -> tuple[list[Tensor], list[Tensor | None], list[bool]]:
    return (
        [t.clone() for t in model.state_dict().values()],
        [p.grad for p in model.parameters()],
        [module.training for module in model.modules()],
    )


def assert_untouched(model: nn.Module, before: tuple[list[Tensor], list[Any], list[bool]]) -> None:
    after = snapshot(model)
    assert all(map(torch.equal, before[0], after[0]))
    assert all(left is right for left, right in zip(before[1], after[1], strict=True))
    assert before[2] == after[2]


def reference(
    model: Mlp, x: Tensor, y: Tensor, step: Callable[[Mlp], None], *, training: bool = False
) -> tuple[Tensor, Tensor]:
    """Increments and losses by moving a copy, one example's cross entropy written out."""

    def losses(net: Mlp) -> Tensor:
        net = copy.deepcopy(net).train(training)
        logits = net.forward_features(x)[1].detach()
        picked = logits[torch.arange(len(y)), y]
        return torch.log(torch.exp(logits).sum(1)) - picked

    moved = copy.deepcopy(model)
    for parameter, original in zip(moved.parameters(), model.parameters(), strict=True):
        parameter.grad = original.grad
    step(moved)
    before = losses(model)
    return losses(moved) - before, before


def plain_step(lr: float, model: Mlp) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data = parameter.data - lr * parameter.grad


def adamw_step(lr: float, model: Mlp) -> None:
    torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.2).step()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("adamw", [False, True])
def test_increments_equal_those_of_a_moved_copy(norm: bool, mode: Any, adamw: bool) -> None:
    model = Mlp(norm=norm).double()
    backward(model)
    x, y = data()
    x = x.double()
    step = partial(adamw_step if adamw else plain_step, 0.3)
    increments, losses = reference(model, x, y, step, training=mode == "train")
    before = snapshot(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.2) if adamw else None
    scores = score(model, x, y, lr=0.3, mode=mode, optimizer=optimizer)
    torch.testing.assert_close(scores.increments, increments, rtol=0, atol=1e-12)
    torch.testing.assert_close(scores.losses, losses, rtol=0, atol=1e-12)
    assert scores.increments.abs().min() > 0
    assert_untouched(model, before)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_without_increments_one_forward_and_no_gradient_are_enough(mode: Any) -> None:
    x, y = data()
    stepped, still = Mlp(dropout=0.3, norm=True), Mlp(dropout=0.3, norm=True)
    backward(stepped)
    still.load_state_dict(stepped.state_dict())
    before = snapshot(still)
    seen: list[Tensor] = []
    still.first.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.random.fork_rng():
        full = score(stepped, x, y, lr=0.3, mode=mode)
        scores = score(still, x, y, lr=0.3, mode=mode, increments=False)
    assert torch.equal(torch.cat(seen), x)
    assert torch.equal(scores.losses, full.losses)
    assert scores.features is not None
    assert full.features is not None
    assert torch.equal(scores.features, full.features)
    assert torch.equal(scores.increments, torch.zeros(23))
    assert (len(scores.known_increments), len(full.known_increments)) == (0, 23)
    assert (scores.passes, full.passes) == (1, 2)
    assert_untouched(still, before)


def test_features_are_those_before_the_step() -> None:
    model = Mlp()
    backward(model)
    x, y = data()
    scores = score(model, x, y, lr=0.3)
    expected, _ = model.eval().forward_features(x)
    torch.testing.assert_close(scores.features, expected.detach())
    assert len(scores) == 23


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_no_step_no_increment(mode: Any) -> None:
    model = Mlp(dropout=0.5, norm=True)
    backward(model)
    scores = score(model, *data(), lr=0.0, mode=mode)
    assert torch.equal(scores.increments, torch.zeros(23))


@pytest.mark.parametrize("chunk", [None, 1, 5, 23, 100])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_two_forwards_over_the_set_and_no_more(chunk: int | None, mode: Any) -> None:
    model = Mlp()
    backward(model)
    seen: list[Tensor] = []
    model.first.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x, y = data()
    score(model, x, y, lr=0.1, chunk=chunk, mode=mode)
    assert torch.equal(torch.cat(seen), torch.cat([x, x]))
    assert len(seen) == 2 * math.ceil(23 / (chunk or 23))


@pytest.mark.parametrize("chunk", [1, 4, 22])
def test_chunks_do_not_change_the_result(chunk: int) -> None:
    model = Mlp(norm=True)
    backward(model)
    x, y = data()
    whole, parts = score(model, x, y, lr=0.1), score(model, x, y, lr=0.1, chunk=chunk)
    torch.testing.assert_close(parts.increments, whole.increments, rtol=0, atol=1e-6)
    torch.testing.assert_close(parts.losses, whole.losses, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(parts.features, whole.features, rtol=1e-6, atol=1e-6)


def test_train_mode_uses_the_statistics_of_the_batch() -> None:
    model = Mlp(norm=True)
    backward(model)
    x, y = data()
    before = snapshot(model)
    train = score(model, 5 + x, y, lr=0.1, mode="train")
    assert_untouched(model, before)
    norm = model.norm
    assert isinstance(norm, nn.BatchNorm1d)
    normalized = functional.batch_norm(
        model.first(5 + x), None, None, norm.weight, norm.bias, training=True
    )
    torch.testing.assert_close(train.features, torch.relu(normalized).detach())
    evaluated = score(model, 5 + x, y, lr=0.1)
    assert evaluated.features is not None
    assert train.features is not None
    assert not torch.allclose(evaluated.features, train.features)


def test_dropout_is_the_same_in_both_passes_and_costs_no_randomness() -> None:
    model = Mlp(dropout=0.5)
    backward(model)
    x, y = data()
    state = torch.get_rng_state()
    first = score(model, x, y, lr=0.1, mode="train")
    assert torch.equal(torch.get_rng_state(), state)
    second = score(model, x, y, lr=0.1, mode="train")
    assert torch.equal(first.increments, second.increments)
    assert first.features is not None
    assert (first.features == 0).float().mean() > 0.6


def test_modes_return_also_where_they_differ() -> None:
    model = Mlp(norm=True)
    backward(model)
    model.eval()
    model.norm.train()
    before = snapshot(model)
    score(model, *data(), lr=0.1)
    assert_untouched(model, before)


def test_model_is_untouched_when_the_loss_fails() -> None:
    model = Mlp(norm=True)
    backward(model)
    before = snapshot(model)
    calls = 0

    def fails_after_the_step(logits: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyError("unknown label")
        return functional.cross_entropy(logits, targets, reduction="none")

    with pytest.raises(KeyError, match="unknown label"):
        score(model, *data(), lr=0.1, loss=fails_after_the_step)
    assert calls == 2
    assert_untouched(model, before)


def test_stored_bytes_are_prepared_chunk_by_chunk() -> None:
    model = Mlp()
    backward(model)
    generator = torch.Generator().manual_seed(3)
    stored = torch.randint(256, (23, 6), dtype=torch.uint8, generator=generator)
    _, y = data()
    sizes = []

    def prepare(part: Tensor) -> Tensor:
        sizes.append(len(part))
        return part.float() / 255

    scores = score(model, stored, y, lr=0.1, prepare=prepare, chunk=10)
    expected = score(model, stored.float() / 255, y, lr=0.1)
    torch.testing.assert_close(scores.increments, expected.increments, rtol=0, atol=1e-6)
    assert sizes == [10, 10, 3] * 2


@pytest.mark.parametrize("classes", [2, 15, 16, 40])
def test_cross_entropy_for_few_and_many_classes(classes: int) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = 5 * torch.randn(30, classes, generator=generator)
    targets = torch.randint(classes, (30,), generator=generator)
    shares = torch.rand(30, classes, generator=generator).softmax(1)
    for target in (targets, shares):
        found = cross_entropy_per_example(logits, target)
        single = [
            functional.cross_entropy(row[None], t[None])
            for row, t in zip(logits, target, strict=True)
        ]
        torch.testing.assert_close(found, torch.stack(single), rtol=1e-6, atol=1e-6)
    with pytest.raises(IndexError, match="out of bounds"):
        cross_entropy_per_example(logits, targets + classes)


def test_own_loss_and_forward() -> None:
    model = nn.Linear(6, 2)
    x, _ = data()
    y = torch.zeros(23, 2)
    torch.autograd.backward(model(x).square().mean())

    def forward(inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, model(inputs)

    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(1)

    scores = score(model, x, y, lr=0.01, loss=squared, forward=forward)
    assert scores.features is not None
    assert torch.equal(scores.features, x)
    assert scores.increments.sum() < 0, "the step goes down this very loss"


def test_scores_are_ordinary_detached_tensors() -> None:
    model = Mlp()
    backward(model)
    scores = score(model, *data(), lr=0.1)
    assert scores.features is not None
    for tensor in (scores.increments, scores.losses, scores.features):
        assert not tensor.requires_grad
        assert not tensor.is_inference()
        tensor.add_(1)


def test_bfloat16_model_has_losses_in_single_precision() -> None:
    model = Mlp().bfloat16()
    backward(model)
    before = snapshot(model)
    x, y = data()
    scores = score(model, x.bfloat16(), y, lr=0.5)
    assert scores.losses.dtype is scores.increments.dtype is torch.float32
    assert scores.increments.abs().max() > 0
    assert_untouched(model, before)


def test_autocast_does_not_serve_old_casts() -> None:
    model = Mlp()
    backward(model)
    x, y = data()
    exact = score(model, x, y, lr=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        scores = score(model, x, y, lr=0.5)
        # Training goes on in the same region: weights cast while scoring carry no gradient.
        model.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(x), y))
    torch.testing.assert_close(scores.increments, exact.increments, rtol=0.1, atol=0.05)
    assert model.first.weight.grad is not None


def call(model: nn.Module, **changes: Any) -> Scores:
    x, y = data()
    arguments: dict[str, Any] = {"inputs": x, "targets": y, "lr": 0.1} | changes
    return score(model, **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(0, 6), "targets": torch.zeros(0)}, "nothing to score"),
        ({"targets": torch.zeros(4)}, "23 inputs but 4 targets"),
        ({"mode": "test"}, "mode must be 'eval' or 'train'"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"lr": -1.0}, "lr must be finite"),
        ({"loss": functional.cross_entropy}, r"must have shape \[23\], got \[\]"),
        ({"forward": lambda x: (x[:, 0], x)}, r"must have shape \[23, d\], got \[23\]"),
        ({"forward": lambda x: (x / 0, x)}, r"features\[0, 0\].*memory 0 is not finite"),
    ],
)
def test_errors_say_what_was_wrong(changes: dict[str, Any], message: str) -> None:
    model = Mlp()
    backward(model)
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        call(model, **changes)
    assert_untouched(model, before)


def test_loss_that_is_not_finite_names_its_slot() -> None:
    model = Mlp()
    backward(model)
    x, _ = data()
    x[17] = torch.nan
    with pytest.raises(ValueError, match="example 17 before the virtual step is nan"):
        call(model, inputs=x, chunk=4)
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"example \d+ after the virtual step .* smaller lr"):
        call(model, lr=1e38)
    assert_untouched(model, before)


@pytest.mark.parametrize("chunk", [1, 4])
def test_of_some_rows_the_stored_one_is_named(chunk: int) -> None:
    model = Mlp()
    backward(model)
    x, _ = data()
    x[17] = torch.nan
    rows = torch.tensor([5, 3, 17])
    with pytest.raises(ValueError, match="example 17 before the virtual step is nan"):
        call(model, inputs=x, chunk=chunk, rows=rows)

    def spoiled(inputs: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = model.forward_features(inputs.nan_to_num())
        return features / (~inputs.isnan()).all(dim=1, keepdim=True), logits

    with pytest.raises(ValueError, match="features of scored example 17 are not finite"):
        call(model, inputs=x, chunk=chunk, rows=rows, forward=spoiled)


def test_without_gradient_no_forward_is_spent() -> None:
    model = Mlp()
    seen: list[int] = []
    model.first.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    with pytest.raises(RuntimeError, match=r"loss\.backward\(\)"):
        call(model)
    assert seen == []


def test_model_without_features_says_what_to_add() -> None:
    model = nn.Linear(6, 3)
    torch.autograd.backward(model(data()[0]).sum())
    with pytest.raises(ValueError, match="Linear has no forward_features"):
        call(model)
