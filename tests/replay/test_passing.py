"""What training computed anyway: kept with its age, and taken instead of a forward."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from replay.scripted import Scorer, filled, generator, overwrite
from sphere_replay.allocation import Sphere
from sphere_replay.memory import Memory
from sphere_replay.replay import (
    Economy,
    Engine,
    LossProportional,
    Replay,
    SphereSelection,
)
from sphere_replay.replay.passing import Passing
from sphere_replay.scoring import Scores
from sphere_replay.storage.trees import flatten, from_bytes, to_bytes, unflatten

TABLE = torch.linspace(-1.5, 1.5, 64).sin()
EVERYBODY = torch.arange(8)
TWO = torch.tensor([1, 2])


def rows(slots: Tensor, shift: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Slots with features and losses that name them."""
    features = torch.stack([slots + shift, -slots.float()], dim=1)
    return slots, features, 10.0 * slots + shift


# What is known.


def test_the_latest_of_what_was_computed_is_known_with_its_places() -> None:
    passing = Passing(filled(8), longest=4)
    passing.note(*rows(torch.tensor([5, 2])))
    passing.note(*rows(torch.tensor([2, 6, 2]), shift=0.5))
    asked = torch.tensor([6, 0, 2, 5, 7])
    known = passing.known(asked)
    assert known is not None
    assert known.places.tolist() == [0, 2, 3]
    assert known.features.tolist() == [[6.5, -6.0], [2.5, -2.0], [5.0, -5.0]]
    assert known.losses.tolist() == [60.5, 20.5, 50.0]
    assert passing.known(torch.tensor([0, 7])) is None


def test_what_is_too_old_or_overwritten_or_not_stored_is_not_known() -> None:
    memory = filled(8)
    passing = Passing(memory, longest=2)
    assert passing.known(EVERYBODY) is None
    passing.note(*rows(torch.tensor([1, 3])))
    passing.count()
    slots = torch.tensor([4, -1, 5])  # the second of three was not admitted
    passing.note(slots, *rows(EVERYBODY[4:7])[1:])
    overwrite(memory, 3, 4)
    found = passing.known(EVERYBODY)
    assert found is not None
    assert found.places.tolist() == [1, 5]
    assert found.losses.tolist() == [10.0, 60.0]
    passing.count()
    found = passing.known(EVERYBODY)
    assert found is not None
    assert found.places.tolist() == [5]
    passing.count()
    assert passing.known(EVERYBODY) is None


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_is_left_to_a_forward_of_its_own(wrong: float) -> None:
    passing = Passing(filled(8), longest=2)
    slots, features, losses = rows(torch.tensor([1, 2, 3]))
    features[0, 1], losses[2] = wrong, wrong
    passing.note(slots, features, losses)
    found = passing.known(EVERYBODY)
    assert found is not None
    assert found.places.tolist() == [2]


def test_it_holds_on_to_no_graph() -> None:
    passing = Passing(filled(8), longest=2)
    weight = torch.ones(2, requires_grad=True)
    passing.note(torch.tensor([1]), weight[None] * 3, weight.sum(dim=0, keepdim=True))
    found = passing.known(EVERYBODY)
    assert found is not None
    assert not found.features.requires_grad
    assert not found.losses.requires_grad


def test_it_keeps_copies_and_no_more_than_is_given() -> None:
    passing = Passing(filled(8), longest=2)
    hidden, slots, losses = torch.ones(2, 1000, 3), torch.tensor([1, 2]), torch.ones(2)
    passing.note(slots, hidden[:, 0], losses)
    for values in (hidden, slots, losses):
        values.zero_()
    found = passing.known(EVERYBODY)
    assert found is not None
    assert found.places.tolist() == [1, 2]
    assert torch.equal(found.features, torch.ones(2, 3))
    assert torch.equal(found.losses, torch.ones(2))
    known = passing.state_dict()["known"]
    assert sum(values.untyped_storage().nbytes() for values in known.values()) < 200


def test_what_is_drawn_is_known_by_what_the_slots_held_then() -> None:
    memory = filled(8)
    passing = Passing(memory, longest=2)
    slots = torch.tensor([1, 2, 3])
    versions = memory.versions_of(slots)
    overwrite(memory, 2)
    passing.note(*rows(slots), versions)
    found = passing.known(EVERYBODY)
    assert found is not None
    assert found.places.tolist() == [1, 3]


def test_who_was_not_admitted_is_not_kept() -> None:
    passing = Passing(filled(8), longest=2)
    passing.note(torch.tensor([-1, -1]), torch.ones(2, 2), torch.ones(2))
    assert passing.state_dict()["known"] is None
    passing.note(torch.tensor([-1, 3]), torch.ones(2, 5), torch.ones(2))
    assert len(passing.state_dict()["known"]["slots"]) == 1


def test_without_draws_it_does_not_grow_and_forgets_nothing() -> None:
    passing, again = Passing(filled(8), longest=2), Passing(filled(8), longest=2)
    passing.note(*rows(EVERYBODY))
    for shift in range(100):
        if shift == 90:
            again.load_state_dict(passing.state_dict())
        for each in (passing, again):
            each.note(*rows(EVERYBODY[:5], shift=float(shift)))
    for each in (passing, again):
        assert len(each._batches) <= 16
        found = each.known(EVERYBODY)
        assert found is not None
        assert found.losses.tolist() == [99.0, 109.0, 119.0, 129.0, 139.0, 50.0, 60.0, 70.0]
        each.count()
        each.count()
        assert each.known(EVERYBODY) is None


def test_half_precision_is_finite_though_its_sum_is_not() -> None:
    passing = Passing(filled(8), longest=2)
    passing.note(TWO, torch.full((2, 4), 6e4, dtype=torch.float16), torch.ones(2))
    found = passing.known(EVERYBODY)
    assert found is not None
    assert found.places.tolist() == [1, 2]


def test_another_models_passes_are_forgotten() -> None:
    passing = Passing(filled(8), longest=2)
    passing.note(*rows(torch.tensor([1, 2])))
    passing.note(torch.tensor([3]), torch.ones(1, 7), torch.ones(1))  # of another width
    found = passing.known(EVERYBODY)
    assert found is not None
    assert found.places.tolist() == [3]
    passing.forget()
    assert passing.known(EVERYBODY) is None


@pytest.mark.parametrize(
    ("slots", "features", "losses"),
    [
        (TWO, torch.ones(3, 2), torch.ones(2)),
        (TWO, torch.ones(2), torch.ones(2)),
        (TWO, torch.ones(2, 2), torch.tensor(1.0)),
        (TWO, torch.ones(2, 2), torch.ones(2, 1)),
        (TWO[:, None], torch.ones(2, 2), torch.ones(2)),
        (TWO > 1, torch.ones(2, 2), torch.ones(2)),
        (TWO.float(), torch.ones(2, 2), torch.ones(2)),
    ],
)
def test_rows_that_do_not_belong_together_are_refused(
    slots: Tensor, features: Tensor, losses: Tensor
) -> None:
    with pytest.raises(ValueError, match=r"need a row of features \[n, d\] and a loss \[n\] each"):
        Passing(filled(8), longest=2).note(slots, features, losses)


def test_slots_that_do_not_exist_are_refused() -> None:
    passing = Passing(filled(8), longest=2)
    for wrong in (8, -2):
        with pytest.raises(ValueError, match=f"of 8 memories, or -1 for none; got .*{wrong}"):
            passing.note(torch.tensor([3, wrong]), torch.ones(2, 2), torch.ones(2))
    with pytest.raises(TypeError, match=r"slots must be a torch\.Tensor, got list"):
        passing.note([1, 2], torch.ones(2, 2), torch.ones(2))  # type: ignore[arg-type]  # a mistake


# At a rescoring.


def engine(reuse: int = 3, seed: int = 0, memory: Memory | None = None) -> Engine:
    return Engine(
        filled(20) if memory is None else memory,
        SphereSelection(Sphere.vision(2, 4)),
        generator=generator(seed),
        every=2,
        economy=Economy(landmarks=5, shortest=2, longest=2, reuse=reuse),
    )


def hand_on(replay: Engine, slots: Tensor) -> None:
    scores = Scorer(TABLE)(slots, increments=False)
    assert scores.features is not None
    replay.passed(slots, scores.features, scores.losses)


def test_what_is_known_gets_no_forward_and_weights_are_the_same() -> None:
    scorers, weights = (Scorer(TABLE), Scorer(TABLE)), []
    for scorer, reuse in zip(scorers, (0, 3), strict=True):
        replay = engine(reuse)
        hand_on(replay, torch.arange(4, 14))
        draw = replay.draw(4, scorer)
        assert draw.weighting is not None
        weights.append(draw.weighting.weights)
        passed = 2 * 5 + len(scorer.glanced[0])
        assert draw.cost == passed
        assert draw.weighting.details.get("reused", 0.0) == pytest.approx((25 - passed) / 20)
        assert ("reused" in draw.weighting.details) == bool(reuse)
    assert torch.equal(*weights)
    without, with_it = (scorer.glanced[0].tolist() for scorer in scorers)
    assert with_it == [slot for slot in without if not 4 <= slot < 14]
    assert torch.equal(scorers[0].asked[0], scorers[1].asked[0])  # landmarks are passed anyway


def test_if_all_others_are_known_landmarks_alone_are_passed() -> None:
    replay, scorer = engine(), Scorer(TABLE)
    hand_on(replay, torch.arange(20))
    assert replay.draw(4, scorer).cost == 10
    assert (len(scorer.asked), scorer.glanced) == (1, [])


def test_only_a_schedule_that_reuses_keeps_anything() -> None:
    for replay in (engine(0), Engine(filled(20), generator=generator(), economy=Economy())):
        assert not replay.reuses
        hand_on(replay, torch.arange(20))
        assert "passing" not in replay.state_dict()
    assert engine().reuses


def test_a_saved_engine_continues_with_what_is_known() -> None:
    def steps(replay: Engine, numbers: range) -> list[tuple[list[int], int]]:
        result = []
        for step in numbers:
            draw = replay.draw(4, Scorer(TABLE))
            hand_on(replay, (draw.indices + step) % 20)
            result.append((draw.indices.tolist(), draw.cost))
        return result

    whole = steps(engine(), range(8))
    assert len({cost for _, cost in whole}) > 2
    for stop in (3, 4):
        replay = engine()
        steps(replay, range(stop))
        tensors, skeleton = flatten(replay.state_dict())
        state = unflatten(from_bytes(to_bytes(tensors)), json.loads(json.dumps(skeleton)))
        again = engine(seed=9)
        again.load_state_dict(state)
        assert steps(again, range(stop, 8)) == whole[stop:]
        first = engine()  # and by changes, from the beginning
        saved, mark = first.state_dict(), first.mark
        steps(first, range(stop))
        again = engine(seed=9)
        again.load_state_dict(saved)
        again.apply_changes(first.changes(mark))
        assert steps(again, range(stop, 8)) == whole[stop:]


def test_a_state_from_before_there_was_anything_to_reuse_can_be_loaded() -> None:
    old, replay = engine(), engine()
    old.draw(4, Scorer(TABLE))
    hand_on(replay, torch.arange(20))
    state = old.state_dict()
    for entries, names in ((state, ["passing"]), (state["schedule"], ["draws", "saved"])):
        for name in names:
            del entries[name]
    replay.load_state_dict(state)
    scorer = Scorer(TABLE)
    assert replay.draw(4, scorer).cost == 0
    assert replay.draw(4, scorer).cost == 25


def test_a_draw_says_what_its_slots_held() -> None:
    replay = engine()
    hand_on(replay, torch.arange(20))
    draw = replay.draw(4, Scorer(TABLE))
    overwrite(replay.memory, *draw.indices[:3].tolist())
    replay.forget_passes()
    scores = Scorer(TABLE)(draw.indices, increments=False)
    assert scores.features is not None
    replay.passed(draw, scores.features, scores.losses)
    known = replay.state_dict()["passing"]["known"]
    assert known["slots"].tolist() == draw.indices[3:].tolist()


def test_another_memory_has_been_passed_by_nobody() -> None:
    replay = engine()
    hand_on(replay, torch.arange(20))
    replay.memory.load_state_dict(filled(20).state_dict())  # of the same versions
    assert replay.state_dict()["passing"]["known"] is None
    assert replay.draw(4, Scorer(TABLE)).cost == 25
    hand_on(replay, torch.arange(20))
    replay.memory.load_state_dict(filled(20).state_dict())
    hand_on(replay, TWO)  # of the new one
    assert replay.state_dict()["passing"]["known"]["slots"].tolist() == TWO.tolist()


def test_losses_alone_are_not_reused_for_they_fell_by_the_step_that_follows() -> None:
    economy = Economy(landmarks=5, shortest=1, longest=1)
    replay = Engine(filled(20), LossProportional(), generator=generator(), every=1, economy=economy)
    hand_on(replay, torch.arange(20))
    assert not replay.reuses
    assert replay.draw(4, Scorer(TABLE)).cost == 20


def test_who_finds_no_features_gets_none() -> None:
    class Blind(Scorer):
        def __call__(self, slots: Tensor, *, increments: bool = True) -> Scores:
            return replace(super().__call__(slots, increments=increments), features=None)

    replay = engine()
    hand_on(replay, torch.arange(20))
    with pytest.raises(ValueError, match="score memories with their features"):
        replay.draw(4, Blind(TABLE))


def test_other_features_than_scoring_finds_are_told() -> None:
    replay = engine()
    replay.passed(torch.arange(20), torch.ones(20, 7), torch.ones(20))
    with pytest.raises(ValueError, match=r"of 7 numbers were handed on by passed\(\), but .* 2:"):
        replay.draw(4, Scorer(TABLE))


# In a loop.


def test_a_loop_hands_on_what_it_computed() -> None:
    memory = Memory(40, generator=generator(1))
    body, head = nn.Linear(4, 3), nn.Linear(3, 2)
    x = torch.randn(40, 4, generator=generator(2))
    model = nn.Sequential(body, head)
    replay = Replay(
        memory,
        select="sphere",
        model=model,
        features="0",
        lr=0.1,
        generator=generator(3),
        economy=Economy(landmarks=4),
    )
    criterion = nn.CrossEntropyLoss(reduction="none")
    y = torch.arange(40) % 2
    features = body(x)
    losses = criterion(head(features), y)
    losses.mean().backward()
    replay.passed(memory.add(x=x, y=y), features, losses)
    replay.draw(4)
    assert replay.weighting is not None
    assert replay.weighting.cost == 8
    assert replay.weighting.details["reused"] == pytest.approx(0.9)
