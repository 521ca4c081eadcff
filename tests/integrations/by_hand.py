"""A small stream and the loop that one would write by hand: every framework must agree with it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay import Memory, Replay
from sphere_replay.randomness import generator_for

BATCH, COUNT, CAPACITY = 6, 8, 20
OPTIONS: dict[str, Any] = {"select": "sphere", "every": 2}


def examples(seed: int, count: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return x, torch.randint(4, (count,), generator=generator)


def network() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def backward(loss: Tensor, **options: Any) -> None:
    loss.backward(**options)  # type: ignore[no-untyped-call]  # torch's


def trained(
    *,
    joint: bool = False,
    epochs: int = 1,
    accumulate: int = 1,
    clip: float | None = None,
    autocast: bool = False,
    fresh_optimizers: bool = False,
    decay: float = 1.0,
    online: bool = True,
) -> nn.Module:
    """A network after two tasks: one loss of stream and replay, one backward, one step."""
    model = network()
    memory = Memory(CAPACITY, generator=generator_for(0, "admission"))
    optimizer, generator = momentum(model), generator_for(0, "replay")
    options = {**OPTIONS, "features": "0", "generator": generator}
    replay = Replay(memory, model=model, optimizer=optimizer, **options)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return functional.cross_entropy(model(x), y)

    for task in range(2):
        batches = list(zip(*(torch.split(part, BATCH) for part in examples(task)), strict=True))
        if fresh_optimizers:
            replay.optimizer = optimizer = momentum(model)
        replay.start_task()
        for epoch in range(epochs):
            for first in range(0, len(batches), accumulate):
                group = batches[first : first + accumulate]
                total = sum((loss(x, y) for x, y in group), torch.zeros(())) / accumulate
                if len(memory):
                    optimizer.zero_grad()
                    backward(total, retain_graph=True)
                    draw = replay.draw(COUNT)
                    replayed = draw.scale * loss(draw["x"], draw["y"])
                    share = len(draw) / (len(draw) + sum(len(y) for _, y in group))
                    total = (1 - share) * total + share * replayed if joint else total + replayed
                optimizer.zero_grad()
                backward(total)
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                for x, y in group if online and epoch == 0 else ():
                    memory.add(x=x, y=y)
            for each in optimizer.param_groups:
                each["lr"] *= decay
        if not online:
            memory.add(**dict(zip("xy", examples(task), strict=True)))
    return model


def assert_same(found: nn.Module, wanted: nn.Module) -> None:
    for mine, theirs in zip(found.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=1e-4, atol=1e-5)
