"""The virtual step goes where the optimizer would and comes back to the very same bits."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay.scoring import virtual_step

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer | None]


class SmallNet(nn.Module):
    """Convolution, batch norm, a frozen layer, a parameter that gets no gradient, odd buffers."""

    expanded: Tensor
    replaced: Tensor

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.bn = nn.BatchNorm2d(3)
        self.frozen = nn.Linear(12, 5).requires_grad_(False)
        self.head = nn.Linear(5, 4)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("expanded", torch.ones(1).expand(6))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("missing", None)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 3

    def forward(self, x: Tensor) -> Tensor:
        self.replaced = self.replaced + 1
        hidden = functional.relu(self.bn(self.conv(x))).flatten(1)
        return torch.as_tensor(self.head(torch.relu(self.frozen(hidden))))


@dataclass
class State:
    values: dict[str, Tensor]
    gradients: dict[str, Tensor | None]
    identities: dict[str, tuple[int, ...]]
    modes: dict[str, bool]
    trainable: dict[str, bool]
    optimizer: Any


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> State:
    """Deep copy of everything that must return, and the identity of what must stay in place."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return State(
        values={name: t.detach().clone() for name, t in tensors.items()},
        gradients={n: None if g is None else g.clone() for n, g in gradients.items()},
        identities={name: (id(t), t.data_ptr(), t._version) for name, t in tensors.items()}
        | {f"{n}.grad": (id(g),) for n, g in gradients.items() if g is not None},
        modes={name: module.training for name, module in model.named_modules()},
        trainable={name: p.requires_grad for name, p in model.named_parameters()},
        optimizer=None if optimizer is None else copy.deepcopy(optimizer.state_dict()),
    )


def same(left: Any, right: Any) -> bool:
    """Deep, bitwise equality (0.0 and -0.0 differ, a NaN equals itself)."""
    if isinstance(left, Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return bool(left.contiguous().numpy().tobytes() == right.contiguous().numpy().tobytes())
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def assert_same_state(before: State, after: State) -> None:
    for name, value in vars(before).items():
        assert same(value, getattr(after, name)), name


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 2, 4, 4, generator=generator)
    return x, torch.randint(4, (8,), generator=generator)


def backward(model: nn.Module, seed: int = 1) -> None:
    x, y = batch(seed)
    torch.autograd.backward(functional.cross_entropy(model(x), y))


def no_optimizer(model: nn.Module) -> None:
    return None


def fresh_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)


def warm_adamw(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, amsgrad=True)
    for seed in (5, 6):
        optimizer.zero_grad()
        backward(model, seed)
        optimizer.step()
    optimizer.zero_grad()
    return optimizer


def warm_momentum(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    backward(model, 5)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


OPTIMIZERS: list[MakeOptimizer] = [no_optimizer, fresh_adamw, warm_adamw, warm_momentum]


class StopHereError(Exception):
    pass


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("fails", [False, True])
def test_everything_returns_bit_for_bit(make: MakeOptimizer, fails: bool) -> None:
    model = SmallNet()
    model.bn.eval()
    optimizer = make(model)
    backward(model)
    model.bn.train()
    with torch.no_grad():
        model.head.bias[0] = -0.0
    before = state_of(model, optimizer)
    rough = pytest.raises(StopHereError) if fails else torch.enable_grad()
    with rough, virtual_step(model, 0.05, optimizer=optimizer):
        model.conv.eval()
        backward(model, seed=2)
        model.requires_grad_(True)
        model.bn.running_var = torch.ones(3)
        if fails:
            raise StopHereError
    assert_same_state(before, state_of(model, optimizer))


def test_plain_step_is_exactly_p_minus_lr_times_gradient() -> None:
    model = SmallNet().double()
    x, y = batch()
    torch.autograd.backward(functional.cross_entropy(model(x.double()), y))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = {name: p.grad for name, p in model.named_parameters()}
    with virtual_step(model, 0.25):
        for name, p in model.named_parameters():
            gradient = gradients[name]
            expected = before[name] if gradient is None else before[name] - 0.25 * gradient
            torch.testing.assert_close(p.detach(), expected, rtol=1e-15, atol=1e-15)
        assert not torch.equal(model.head.weight, before["head.weight"])
        assert torch.equal(model.frozen.weight, before["frozen.weight"])
        assert torch.equal(model.unused.weight, before["unused.weight"])


@pytest.mark.parametrize("make", [fresh_adamw, warm_adamw, warm_momentum])
def test_optimizer_step_is_the_one_training_would_make(make: MakeOptimizer) -> None:
    model = SmallNet()
    optimizer = make(model)
    assert optimizer is not None
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    backward(model)
    backward(twin)
    for group in twin_optimizer.param_groups:
        group["lr"] = 0.02
    twin_optimizer.step()
    assert not torch.equal(model.head.weight, twin.head.weight)
    with virtual_step(model, 0.02, optimizer=optimizer):
        for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(parameter, other)


@pytest.mark.parametrize("make", [fresh_adamw, warm_adamw])
def test_training_continues_as_if_never_scored(make: MakeOptimizer) -> None:
    ends = []
    for scores in (False, True):
        model = SmallNet()
        optimizer = make(model)
        assert optimizer is not None
        for seed in range(3):
            optimizer.zero_grad()
            backward(model, seed)
            if scores:
                with virtual_step(model, 0.5, optimizer=optimizer):
                    model(batch(9)[0])
            optimizer.step()
        ends.append((model.state_dict(), optimizer.state_dict()))
    assert same(ends[0], ends[1])


def test_fresh_optimizer_stays_without_state() -> None:
    model = SmallNet()
    optimizer = fresh_adamw(model)
    backward(model)
    with virtual_step(model, 0.1, optimizer=optimizer):
        assert len(optimizer.state) > 0
    assert dict(optimizer.state) == {}
    assert optimizer.param_groups[0]["lr"] == 3e-3


def test_state_tensors_keep_their_identity() -> None:
    model = SmallNet()
    optimizer = warm_adamw(model)
    backward(model)
    moments = optimizer.state[model.head.weight]["exp_avg"]
    address = moments.data_ptr()
    with virtual_step(model, 0.1, optimizer=optimizer):
        assert optimizer.state[model.head.weight]["exp_avg"] is not moments
    assert optimizer.state[model.head.weight]["exp_avg"] is moments
    assert moments.data_ptr() == address


def test_frozen_parameters_with_old_gradients_stay_put() -> None:
    model = SmallNet()
    backward(model)
    model.conv.requires_grad_(False)
    before = model.conv.weight.clone()
    optimizer = fresh_adamw(model)
    for choice in (None, optimizer):
        with virtual_step(model, 0.1, optimizer=choice):
            assert torch.equal(model.conv.weight, before)
    assert model.conv.weight.grad is not None


def test_optimizer_with_parameters_outside_the_model() -> None:
    model, outside = SmallNet(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([*model.parameters(), outside], lr=0.1)
    backward(model)
    torch.autograd.backward(outside.square().sum())
    gradient = outside.grad
    with virtual_step(model, 0.1, optimizer=optimizer):
        assert not torch.equal(outside, torch.ones(3))
    assert torch.equal(outside, torch.ones(3))
    assert outside.grad is gradient


def test_gradient_hooks_of_the_optimizer_cannot_touch_the_gradients() -> None:
    model = SmallNet()
    optimizer = fresh_adamw(model)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    optimizer.register_step_pre_hook(clip)
    backward(model)
    before = state_of(model, optimizer)
    with virtual_step(model, 0.1, optimizer=optimizer):
        pass
    assert_same_state(before, state_of(model, optimizer))


def test_scheduler_still_notices_a_missing_real_step() -> None:
    model = SmallNet()
    optimizer = fresh_adamw(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    backward(model)
    with virtual_step(model, 0.1, optimizer=optimizer):
        pass
    with pytest.warns(UserWarning, match="before"):
        scheduler.step()


def test_earlier_graphs_stay_valid_and_inner_graphs_are_refused() -> None:
    model = SmallNet()
    x, y = batch()
    loss = functional.cross_entropy(model(x), y)
    torch.autograd.backward(loss, retain_graph=True)
    gradient = torch.as_tensor(model.conv.weight.grad).clone()
    with virtual_step(model, 0.1):
        inner = functional.cross_entropy(model(x), y)
    torch.autograd.backward(loss)
    torch.testing.assert_close(torch.as_tensor(model.conv.weight.grad), 2 * gradient)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(inner)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_inside_the_callers_inference_mode(make: MakeOptimizer) -> None:
    model = SmallNet()
    optimizer = make(model)
    backward(model)
    before = state_of(model, optimizer)
    with torch.inference_mode(), virtual_step(model, 0.1, optimizer=optimizer):
        assert not torch.equal(model.head.weight, before.values["head.weight"])
    assert_same_state(before, state_of(model, optimizer))
    backward(model)


def test_steps_nest() -> None:
    model = SmallNet()
    backward(model)
    before = state_of(model, None)
    with virtual_step(model, 0.1):
        once = model.head.weight.detach().clone()
        backward(model, seed=3)
        with virtual_step(model, 0.1):
            assert not torch.equal(model.head.weight, once)
        assert torch.equal(model.head.weight, once)
    assert_same_state(before, state_of(model, None))


def test_failing_optimizer_leaves_no_trace() -> None:
    model = SmallNet()
    optimizer = torch.optim.LBFGS(model.parameters())
    backward(model)
    before = state_of(model, optimizer)
    with pytest.raises(TypeError, match="closure"), virtual_step(model, 0.1, optimizer=optimizer):
        pytest.fail("an optimizer that needs a closure cannot make one step")
    assert_same_state(before, state_of(model, optimizer))


def test_without_gradient_says_what_to_do() -> None:
    model = SmallNet()
    for choice in (None, fresh_adamw(model)):
        with (
            pytest.raises(RuntimeError, match=r"loss\.backward\(\) on the stream batch first"),
            virtual_step(model, 0.1, optimizer=choice),
        ):
            pytest.fail("there is no gradient to follow")


def test_optimizer_of_another_model_is_refused() -> None:
    model, other = SmallNet(), SmallNet(1)
    backward(model)
    backward(other)
    with (
        pytest.raises(RuntimeError, match="optimizer that trains this model"),
        virtual_step(model, 0.1, optimizer=fresh_adamw(other)),
    ):
        pytest.fail("the optimizer has nothing to do with the model")


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf")])
def test_step_length_is_checked(lr: float) -> None:
    model = SmallNet()
    backward(model)
    with pytest.raises(ValueError, match="lr must be finite"), virtual_step(model, lr):
        pytest.fail("no such step")
