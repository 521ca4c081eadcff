"""What the frameworks share: a replay that waits for its model, and follows optimizers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from integrations.by_hand import backward, examples, network
from sphere_replay import Memory
from sphere_replay.integrations.embedded import EmbeddedReplay


def learnt(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad()
    backward(functional.cross_entropy(model(x), y))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


OPTIONS: dict[str, Any] = {"batch": 8, "features": "0", "every": 2}


def filled(**options: Any) -> tuple[EmbeddedReplay, nn.Module]:
    embedded, model = EmbeddedReplay(40, **{**OPTIONS, **options}), network()
    embedded.follow(model, torch.optim.SGD(model.parameters(), lr=0.1))
    embedded.remember(*examples(1, 30))
    return embedded, model


def test_the_gradient_is_that_of_the_stream_plus_the_scaled_one_of_what_was_drawn() -> None:
    embedded, model = filled()
    twin, (x, y) = copy.deepcopy(model), examples(2)
    learnt(model, x, y)
    draw = embedded.add_gradient(lambda x, y: functional.cross_entropy(model(x), y), len(y))
    assert draw is not None
    assert len(draw) == 8
    assert draw.rescored
    loss = functional.cross_entropy(twin(x), y)
    loss = loss + draw.scale * functional.cross_entropy(twin(draw["x"]), draw["y"])
    backward(loss)
    torch.testing.assert_close(gradients(model), gradients(twin))


def test_a_joint_batch_of_uniform_replay_is_the_mean_over_both() -> None:
    embedded, model = filled(select="uniform", joint_batch=True)
    twin, (x, y) = copy.deepcopy(model), examples(2)
    learnt(model, x, y)
    draw = embedded.add_gradient(lambda x, y: functional.cross_entropy(model(x), y), len(y))
    assert draw is not None
    learnt(twin, torch.cat([x, draw["x"]]), torch.cat([y, draw["y"]]))
    torch.testing.assert_close(gradients(model), gradients(twin))


def test_nothing_is_replayed_before_anything_is_remembered() -> None:
    embedded, model = EmbeddedReplay(40, **OPTIONS), network()
    embedded.follow(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learnt(model, *examples(2, 10))
    before = gradients(model)
    assert embedded.add_gradient(lambda x, y: model(x).sum(), 10) is None
    torch.testing.assert_close(gradients(model), before, rtol=0, atol=0)


def test_a_new_optimizer_is_followed_and_another_model_refused() -> None:
    embedded, model = filled()
    replay = embedded.replay
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    assert embedded.follow(model, adam) is replay
    assert replay is not None
    assert replay.optimizer is adam
    with pytest.raises(ValueError, match="belongs to another model"):
        embedded.follow(network(), adam)


def test_a_state_may_come_before_the_model() -> None:
    def steps(embedded: EmbeddedReplay, model: nn.Module, seeds: range) -> list[list[int]]:
        drawn = []
        for seed in seeds:
            x, y = examples(seed, 10)
            learnt(model, x, y)
            draw = embedded.add_gradient(lambda x, y: functional.cross_entropy(model(x), y), 10)
            assert draw is not None
            drawn.append(draw.indices.tolist())
            embedded.remember(x, y)
        return drawn

    embedded, model = filled()
    steps(embedded, model, range(3, 6))
    state = copy.deepcopy(embedded.state_dict())
    later = EmbeddedReplay(40, **OPTIONS, seed=9)
    later.load_state_dict(state)
    assert later.state_dict()["replay"] is state["replay"]
    twin = network()
    later.follow(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    expected = steps(embedded, model, range(6, 10))
    assert steps(later, twin, range(6, 10)) == expected


def test_mistakes_are_found_before_training() -> None:
    with pytest.raises(ValueError, match="did you mean sphere"):
        EmbeddedReplay(40, select="shpere")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        EmbeddedReplay(Memory(4, generator=torch.Generator()), batch=0)
