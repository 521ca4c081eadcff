"""Replay in a training loop that is not ours: five lines that leave the model alone."""

import copy
import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay import Economy, Sphere, allocate
from sphere_replay.memory import Memory
from sphere_replay.numeric import median
from sphere_replay.replay import Replay, SphereSelection, Uniform
from sphere_replay.replay.reading import reading
from sphere_replay.scoring import NonFiniteError
from sphere_replay.validation import spelled


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Net(nn.Module):
    """A network with batch norm, whose statistics would give careless scoring away."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.head = nn.Linear(12, 4)
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.normal_(0, 0.5, generator=generator(parameter.numel()))

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)[1]


def bits(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and gradients, copied."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            state[f"{name}.grad"] = parameter.grad.clone()
    return state


def assert_same_bits(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


def examples(seed: int, size: int = 16) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 6, generator=generator(seed))
    return x, torch.randint(4, (size,), generator=generator(seed + 1))


def remembered(size: int = 16, capacity: int = 40) -> Memory:
    memory = Memory(capacity, generator=generator(1))
    memory.add(**dict(zip("xy", examples(50, size), strict=True)))
    return memory


def learnt(model: nn.Module, scale: float = 1.0) -> None:
    """A stream gradient."""
    x, y = examples(0)
    (scale * functional.cross_entropy(model(x), y)).backward()  # type: ignore[no-untyped-call]  # torch's


SPHERE = SphereSelection(Sphere.vision(3, 8))


def test_the_five_line_loop_draws_and_leaves_the_model_untouched() -> None:
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = remembered()
    replay = Replay(
        memory, select=SPHERE, model=model, optimizer=optimizer, every=2, generator=generator(2)
    )
    scales = set()
    for step in range(6):
        x, y = examples(step)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        before, random_state = bits(model), torch.get_rng_state()
        draw = replay.draw(8)
        assert_same_bits(before, bits(model))
        assert model.training
        assert torch.equal(random_state, torch.get_rng_state())
        assert len(set(draw.indices.tolist())) == 8
        assert torch.equal(draw["x"], memory["x"][draw.indices])
        assert torch.equal(draw["y"], memory["y"][draw.indices])
        assert 0.5 <= draw.scale <= 1
        scales.add(draw.scale)
        (draw.scale * criterion(model(draw["x"]), draw["y"])).backward()
        optimizer.step()
        memory.add(x=x, y=y)
    assert len(scales) == 3  # as many as there were scorings


def test_scoring_copies_a_chunk_at_a_time_and_never_writes_into_the_memory() -> None:
    model, sizes = Net(), []
    memory = remembered(size=1200, capacity=1200)
    stored = memory["x"].clone()

    def doubled_in_place(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x.mul_(2)

    learnt(model)
    weights = []
    for prepare in (doubled_in_place, lambda x: x * 2):
        replay = Replay(
            memory, select=SPHERE, model=model, lr=0.1, prepare=prepare, generator=generator(2)
        )
        weighting = replay.draw(8).weighting
        assert weighting is not None
        weights.append(weighting.weights)
    assert sizes == 2 * [512, 512, 176]  # one pass before the virtual step, one after
    assert torch.equal(memory["x"], stored)
    assert torch.equal(*weights)


def test_its_weights_are_those_of_allocate_after_a_virtual_step_by_hand() -> None:
    model = Net()
    memory = Memory(40, generator=generator(1))
    memory.add(inputs=examples(50, 30)[0], targets=examples(50, 30)[1])
    replay = Replay(
        memory,
        select=SPHERE,
        model=model,
        lr=0.2,
        generator=generator(2),
        inputs="inputs",
        targets="targets",
    )
    learnt(model)
    weighting = replay.draw(8).weighting

    base, moved = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    with torch.no_grad():
        for parameter, source in zip(moved.parameters(), model.parameters(), strict=True):
            assert source.grad is not None
            parameter.sub_(source.grad, alpha=0.2)
        features, logits = base.forward_features(memory["inputs"])
        after = moved(memory["inputs"])
    targets = memory["targets"]
    increments = functional.cross_entropy(
        after, targets, reduction="none"
    ) - functional.cross_entropy(logits, targets, reduction="none")
    expected = allocate(increments, features, SPHERE.recipe)
    assert weighting is not None
    assert float(increments.max()) > 0
    torch.testing.assert_close(weighting.weights, expected.weights, rtol=1e-3, atol=1e-6)
    assert weighting.mass == pytest.approx(expected.mass, rel=1e-4)


def test_an_adaptive_optimizer_takes_the_virtual_step_with_its_own_rates() -> None:
    model = Net()
    learnt(model)
    optimizer = torch.optim.Adam(
        [
            {"params": model.body.parameters(), "lr": 0.05},
            {"params": model.head.parameters(), "lr": 0.01},
        ]
    )
    memory = remembered(30)
    options: dict[str, Any] = {"select": "mir", "model": model, "generator": generator(2)}
    weighting = Replay(memory, optimizer=optimizer, **options).draw(8).weighting
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.01]
    assert not optimizer.state

    moved = copy.deepcopy(model)
    for parameter, source in zip(moved.parameters(), model.parameters(), strict=True):
        parameter.grad = source.grad
    twin = torch.optim.Adam(
        [
            {"params": moved.body.parameters(), "lr": 0.05},
            {"params": moved.head.parameters(), "lr": 0.01},
        ]
    )
    twin.step()
    with torch.no_grad():
        before, after = model.eval()(memory["x"]), moved.eval()(memory["x"])
    rise = functional.cross_entropy(after, memory["y"], reduction="none")
    rise = (rise - functional.cross_entropy(before, memory["y"], reduction="none")).clamp(min=0)
    assert weighting is not None
    torch.testing.assert_close(weighting.weights.float(), rise / rise.sum(), rtol=1e-3, atol=1e-5)


def test_one_word_changes_the_selection_and_uniform_replay_never_scores() -> None:
    model = Net()
    uniform = Replay(remembered(), select="uniform", generator=generator(2))
    assert isinstance(uniform.engine.selection, Uniform)
    assert uniform.draw(4).scale == 1.0
    with pytest.raises(ValueError, match="made without a model"):
        _ = uniform.model
    with pytest.raises(ValueError, match="pass model="):
        Replay(remembered(), select="sphere", generator=generator(2), lr=0.1)
    learnt(model)
    for name in ("loss", "mir", "mir-top", "sphere"):
        replay = Replay(remembered(), select=name, model=model, lr=0.1, generator=generator(2))
        assert replay.draw(4).rescored
    with pytest.raises(ValueError, match="did you mean sphere"):
        Replay(remembered(), select="shpere", model=model, lr=0.1, generator=generator(2))


def test_features_come_from_a_submodule_by_its_name() -> None:
    model = Net()
    learnt(model)
    own, hooked = (
        Replay(
            remembered(),
            select=SPHERE,
            model=model,
            lr=0.1,
            features=features,
            generator=generator(2),
        )
        for features in (None, "body")
    )
    first, second = own.draw(4), hooked.draw(4)
    assert first.weighting is not None
    assert second.weighting is not None
    torch.testing.assert_close(first.weighting.weights, second.weighting.weights)
    assert not model.body._forward_hooks
    with pytest.raises(ValueError, match="unknown module 'boby': did you mean body"):
        Replay(remembered(), model=model, lr=0.1, features="boby", generator=generator(2))


class Convolutional(nn.Module):
    """Maps instead of vectors, and a layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Conv1d(1, 5, 3)
        self.deeper = nn.Conv2d(1, 5, (1, 3))
        self.twice = nn.Identity()
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.twice(self.deeper(x[:, None, None]))
        return self.head(self.twice(maps.mean(dim=(2, 3))))  # type: ignore[no-any-return]  # a module's


def test_maps_are_averaged_over_their_places() -> None:
    model = Convolutional()
    learnt(model)
    replay = Replay(
        remembered(), select=SPHERE, model=model, lr=0.1, features="deeper", generator=generator(2)
    )
    replay.draw(4)
    with torch.no_grad():
        features = model.deeper(replay.memory["x"][:, None, None]).mean(dim=(2, 3))
    assert replay.weighting is not None
    assert replay.weighting.allocation is not None
    radii = allocate(torch.ones(16), features, SPHERE.recipe).eps_s
    assert replay.weighting.allocation.eps_s == pytest.approx(radii)


@pytest.mark.parametrize(("name", "message"), [("twice", "ran 2 times"), ("maps", "was not run")])
def test_a_submodule_that_does_not_give_one_tensor_is_named(name: str, message: str) -> None:
    model = Convolutional()
    learnt(model)
    replay = Replay(remembered(), model=model, lr=0.1, features=name, generator=generator(2))
    with pytest.raises(ValueError, match=message):
        replay.draw(4)


def test_models_wrapped_for_data_parallelism_are_looked_through() -> None:
    model = Net()
    learnt(model)
    wrapped = nn.DataParallel(nn.DataParallel(model))
    replay = Replay(remembered(), select=SPHERE, model=wrapped, lr=0.1, generator=generator(2))
    assert replay.draw(4).rescored


def test_features_and_losses_of_ones_own() -> None:
    model = nn.Linear(6, 1)
    memory = Memory(20, generator=generator(1))
    x, _ = examples(3)
    memory.add(x=x, y=x.sum(dim=1, keepdim=True))
    model(x).square().mean().backward()
    options: dict[str, Any] = {"select": SphereSelection(Sphere.vision(2, 5)), "model": model}
    options |= {"lr": 0.1, "generator": generator(2)}
    with pytest.raises(ValueError, match="does not say what its features are"):
        Replay(memory, **options)
    seen = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.detach().clone())
        return (outputs - targets).square().sum(dim=1)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, model(x)

    assert len(Replay(memory, loss=loss, features=both, **options).draw(4)) == 4
    before, after = seen
    assert torch.equal(before, model(x).detach())
    assert not torch.equal(before, after)
    with pytest.raises(ValueError, match="pass loss="):
        Replay(memory, features=both, **options).draw(4)
    with pytest.raises(ValueError, match=r"gave a Tensor, but scoring needs both"):
        Replay(memory, loss=loss, features=lambda x: x, **options).draw(4)


def test_a_backbone_that_returns_one_tensor_is_told_what_is_missing() -> None:
    class Backbone(Net):
        def forward_features(self, x: Tensor) -> Tensor:  # type: ignore[override]  # as others do
            features: Tensor = self.body(x)
            return features

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(self.body(x))
            return outputs

    model = Backbone()
    learnt(model)
    # Two examples would unpack into something, and go wrong in silence.
    replay = Replay(remembered(), model=model, lr=0.1, pool=2, generator=generator())
    with pytest.raises(ValueError, match=r"Backbone.forward_features gave a Tensor, but scoring"):
        replay.draw(2)


def test_a_loop_without_a_stream_gradient_is_told_so() -> None:
    replay = Replay(remembered(), model=Net(), lr=0.1, generator=generator())
    with pytest.raises(RuntimeError, match=r"loss\.backward"):
        replay.draw(4)
    with pytest.raises(ValueError, match="pass optimizer=, or lr="):
        Replay(remembered(), model=Net(), generator=generator())


def scaler(model: nn.Module) -> torch.amp.GradScaler:
    made = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = examples(0)
    made.scale(functional.cross_entropy(model(x), y)).backward()  # type: ignore[no-untyped-call]  # torch's
    return made


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
def test_the_scale_of_a_gradient_scaler_is_taken_out(adaptive: bool, unscaled: bool) -> None:
    kind = torch.optim.Adam if adaptive else torch.optim.SGD
    weights = []
    for scaled in (False, True):
        model, scales = Net(), None
        optimizer = kind(model.parameters(), lr=0.1)
        if scaled:
            scales = scaler(model)
            if unscaled:
                scales.unscale_(optimizer)
        else:
            learnt(model)
        replay = Replay(
            remembered(),
            select="mir",
            model=model,
            optimizer=optimizer,
            scaler=scales,
            generator=generator(2),
        )
        weighting = replay.draw(4).weighting
        assert weighting is not None
        weights.append(weighting.weights)
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


def test_scaled_gradients_without_their_scaler_are_noticed_once() -> None:
    model = Net()
    learnt(model, scale=65536.0)
    replay = Replay(
        remembered(), select="mir", model=model, lr=0.1, every=1, generator=generator(2)
    )
    with pytest.warns(UserWarning, match="pass it as scaler=") as told:
        replay.draw(4)
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay.draw(4)


def test_a_gradient_that_overflowed_is_not_scored() -> None:
    model = Net()
    scales = scaler(model)
    next(model.parameters()).grad = torch.full_like(next(model.parameters()), float("inf"))
    replay = Replay(
        remembered(), select=SPHERE, model=model, lr=0.1, scaler=scales, generator=generator(2)
    )
    assert not replay.draw(4).rescored
    model.zero_grad()
    learnt(model)
    assert replay.draw(4).rescored


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_neighbours_vote_on_whole_numbers_of_any_kind(dtype: torch.dtype) -> None:
    memory = Memory(40, generator=generator(1))
    x, y = examples(50)
    memory.add(x=x, y=y.to(dtype))
    model = Net()
    learnt(model)
    replay = Replay(memory, select=Sphere.calibrated(), model=model, lr=0.1, generator=generator(2))
    drawn = replay.draw(4)
    assert drawn.weighting is not None
    assert "label_noise" in drawn.weighting.details


def test_what_is_no_selection_is_named() -> None:
    with pytest.raises(TypeError, match="a selection or a recipe, got None"):
        Replay(remembered(), select=None, model=Net(), lr=0.1, generator=generator())  # type: ignore[arg-type]  # on purpose


def test_a_recipe_is_replayed_as_the_selection_of_its_name() -> None:
    model = Net()
    learnt(model)
    by_name, by_recipe = (
        Replay(remembered(), select=select, model=model, lr=0.1, generator=generator(2))
        for select in ("sphere-calibrated", Sphere.calibrated())
    )
    assert by_recipe.engine.selection == by_name.engine.selection
    assert by_recipe.engine.schedule.every == 16
    assert by_recipe.draw(4).scale == 1.0


def test_what_cannot_be_used_is_refused_at_once() -> None:
    def made(**options: Any) -> None:
        Replay(remembered(), model=Net(), **{"generator": generator(), "lr": 0.1, **options})

    with pytest.raises(TypeError, match=r"must be a torch\.Generator, got 3"):
        made(generator=3)
    with pytest.raises(TypeError, match=r"such as Economy\(\), got True"):
        made(economy=True)
    with pytest.raises(ValueError, match="lr must be finite and not negative, got -1"):
        made(lr=-1)


def test_soft_targets_are_no_labels_to_vote_on() -> None:
    memory, model = Memory(40, generator=generator(1)), Net()
    memory.add(x=examples(50)[0], y=torch.rand(16, 4, generator=generator(3)))
    learnt(model)
    replay = Replay(
        memory,
        select="sphere-calibrated",
        model=model,
        lr=0.1,
        loss=lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
        generator=generator(2),
    )
    with pytest.raises(ValueError, match="vote on labels, and these memories have none"):
        replay.draw(4)


def test_the_state_of_another_replay_is_refused() -> None:
    def made(**options: Any) -> Replay:
        settings: dict[str, Any] = {"select": SPHERE, "every": 3, **options}
        return Replay(remembered(), model=Net(), lr=0.1, generator=generator(2), **settings)

    state = made().state_dict()
    made().load_state_dict(state)
    for options, told in (
        ({"every": 4}, "every: saved 3, now 4"),
        ({"pool": 8}, "pool: saved None, now 8"),
        ({"select": "uniform"}, r"select: saved SphereSelection.* now Uniform"),
        ({"economy": Economy()}, "economy: saved None, now Economy"),
    ):
        with pytest.raises(ValueError, match=told):
            made(**options).load_state_dict(state)


def test_a_scaler_that_is_switched_off_excuses_no_gradient() -> None:
    model = Net()
    learnt(model)
    next(model.parameters()).grad = torch.full_like(next(model.parameters()), float("nan"))
    off = torch.amp.GradScaler("cpu", enabled=False)
    replay = Replay(
        remembered(), select=SPHERE, model=model, lr=0.1, scaler=off, generator=generator(2)
    )
    with pytest.raises(NonFiniteError):
        replay.draw(4)


def test_a_resumed_loop_draws_the_same() -> None:
    def trained(steps: range, state: dict[str, Any] | None = None) -> tuple[list[Any], Any]:
        model, memory = Net(), remembered()
        replay = Replay(memory, select=SPHERE, model=model, lr=0.1, every=3, generator=generator(2))
        if state is not None:
            memory.load_state_dict(state["memory"])
            replay.load_state_dict(state["replay"])
        drawn = []
        for step in steps:
            model.zero_grad()
            learnt(model)
            drawn.append(replay.draw(5).indices.tolist())
            memory.add(**dict(zip("xy", examples(step, 4), strict=True)))
        return drawn, {"memory": memory.state_dict(), "replay": replay.state_dict()}

    whole, _ = trained(range(7))
    first, state = trained(range(4))
    assert first + trained(range(4, 7), state)[0] == whole


def test_metrics_end_in_a_sentence() -> None:
    model = Net()
    replay = Replay(remembered(), select=SPHERE, model=model, lr=0.1, generator=generator(2))
    assert replay.metrics()["summary"] == "nothing is scored yet: the next draw does it"
    learnt(model)
    replay.draw(4)
    weighting = replay.weighting
    assert weighting is not None
    assert weighting.allocation is not None
    replay.memory.add(**dict(zip("xy", examples(1, 16), strict=True)))
    metrics = replay.metrics()
    assert metrics["ess"] == weighting.effective_sample_size
    assert metrics["mass"] == weighting.mass
    assert metrics["neighbors"] == median(weighting.allocation.effective_neighbors)
    assert metrics["share_scored"] == 0.5
    assert float(metrics["seconds"]) > 0
    assert metrics["passes"] == 32
    assert "drift" not in metrics
    for _ in range(4):
        replay.draw(4)
    assert 0 < float(replay.metrics()["drift"]) <= 1
    assert replay.weighting is not None
    details = {**replay.weighting.details, "error": 0.3}
    replay.engine.weigher.latest = replace(replay.weighting, details=details)
    assert replay.metrics()["error"] == 0.3
    assert "up to 30% of the draws" in str(replay.metrics()["summary"])
    assert str(metrics["summary"]).startswith("ESS ")
    uniform = Replay(remembered(), select="uniform", model=model, generator=generator(2))
    assert uniform.metrics()["summary"] == "uniform replay: every memory alike, nothing is scored"


@pytest.mark.parametrize(
    ("share", "mass", "neighbors", "sentence"),
    [
        (0.97, 0.73, 20.0, "ESS 97% of the candidates: replay is nearly uniform; most of the "
         "effect is the mass 0.73"),
        (0.97, 1.0, None, "ESS 97% of the candidates: replay is nearly uniform"),
        (0.6, 0.8, 8.0, "ESS 60% of the candidates: replay prefers some memories, at mass 0.80"),
        (0.6, 1.0, 400.0, "ESS 60% of the candidates: replay prefers some memories, at mass 1.00; "
         "a neighbourhood holds 400 of 500 memories, so neighbours are nearly everybody"),
        (0.05, 1.0, None, "ESS 5% of the candidates: replay repeats few memories; a smaller alpha, "
         "or a wider kernel, spreads it"),
    ],
)  # fmt: skip
def test_the_sentence_says_what_matters(
    share: float, mass: float, neighbors: float | None, sentence: str
) -> None:
    assert reading(share, mass, neighbors, 500) == sentence
    assert reading(share, mass, neighbors, 500, {"error": 0.04}) == sentence
    lonely = "; increments come from 1.3 landmarks each: more of them, or a wider kernel, would "
    told = reading(share, mass, neighbors, 500, {"landmark_neighbors": 1.3})
    assert told == f"{sentence}{lonely}make them surer"
    assert reading(share, mass, neighbors, 500, {"landmark_neighbors": 2.0}) == sentence
    poor = "; kernels are approximate, and up to 30% of the draws may be others"
    assert reading(share, mass, neighbors, 500, {"error": 0.3}) == sentence + poor


def test_a_selection_of_ones_own_is_known_by_its_class() -> None:
    class Mine(Uniform):
        __repr__ = object.__repr__  # as of a class that is no dataclass

    one, other = (
        Replay(Memory(4, generator=generator()), select=select, generator=generator())
        for select in (Mine(), Mine())
    )
    other.load_state_dict(one.state_dict())
    third = Replay(Memory(4, generator=generator()), select="uniform", generator=generator())
    with pytest.raises(ValueError, match="another replay's"):
        third.load_state_dict(one.state_dict())


def test_values_are_spelled_alike_in_every_process() -> None:
    @dataclass(frozen=True)
    class Value:
        parts: tuple[object, ...]
        rule: object = abs

    class Plain:
        """Whose repr tells its address."""

    spelling = spelled(Value((1, Plain(), Plain)))
    assert spelling.endswith("Plain), rule=abs)")
    assert " at 0x" not in spelling
    assert spelled(Sphere.vision()) == repr(Sphere.vision())
