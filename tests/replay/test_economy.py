"""The economical schedule: who is scored, what is carried to the others, and when."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from replay.scripted import Scorer, Scripted, filled, generator, overwrite, scorings
from sphere_replay.allocation import Control, Sphere
from sphere_replay.errors import ConfigError
from sphere_replay.geometry import build_geometry
from sphere_replay.memory import Memory
from sphere_replay.replay import (
    Economy,
    Engine,
    LossProportional,
    MirProportional,
    ScheduledSettings,
    SphereSelection,
)
from sphere_replay.replay.economy import economical_scores
from sphere_replay.replay.landmarks import carried_increments
from sphere_replay.replay.weighing import drift
from sphere_replay.scoring import Scores

TABLE = torch.linspace(-1.5, 1.5, 64).sin()
RECIPE = Sphere.vision(2, 4)
ECONOMICAL = ScheduledSettings(
    schedule="economical", landmarks=3, longest=16, capacity=64, replay_batch=2
)


def engine(size: int = 20, every: int = 1, **economy: Any) -> Engine:
    numbers = {"landmarks": 5, "shortest": every, "longest": every, "steady": 0.0} | economy
    return Engine(
        filled(size),
        SphereSelection(RECIPE),
        generator=generator(),
        every=every,
        economy=Economy(**numbers),
    )


# What is carried.


def by_hand(points: Tensor, delta: Tensor, landmarks: list[int], eps: float) -> list[list[float]]:
    """Carried increments and N_eff, term by term in float64."""
    unit = points.double() / points.double().norm(dim=1, keepdim=True)
    found = []
    for i in range(len(points)):
        kernel = [math.exp(-float((unit[i] - unit[j]).square().sum()) / eps) for j in landmarks]
        average = sum(k * float(delta[j]) for k, j in zip(kernel, landmarks, strict=True))
        neighbors = sum(kernel) ** 2 / sum(k * k for k in kernel)
        own = float(delta[i]) if i in landmarks else average / sum(kernel)
        found.append([own, neighbors])
    return found


@pytest.mark.parametrize("eps", [0.05, 0.4, 5.0])
def test_the_kernel_carries_increments_of_landmarks_and_tells_how_many_took_part(
    eps: float,
) -> None:
    points = torch.randn(12, 3, generator=generator())
    delta = 1e3 * torch.randn(12, generator=generator(1), dtype=torch.float64)
    landmarks = torch.tensor([7, 0, 4, 9])
    # What is not known must not be read.
    given = torch.full_like(delta, torch.nan).index_copy(0, landmarks, delta[landmarks])
    found, neighbors = carried_increments(given, landmarks, build_geometry(points.double()), eps)
    expected = torch.tensor(by_hand(points, delta, landmarks.tolist(), eps), dtype=torch.float64)
    torch.testing.assert_close(found, expected[:, 0], rtol=1e-9, atol=0)
    torch.testing.assert_close(neighbors, expected[:, 1], rtol=1e-9, atol=0)
    assert torch.equal(found[landmarks], delta[landmarks])


def test_out_of_reach_of_all_landmarks_their_mean_stands() -> None:
    points = torch.tensor([[1.0, 0.0], [1.0, 1e-4], [-1.0, 0.0]], dtype=torch.float64)
    delta = torch.tensor([2.0, 4.0, 0.0], dtype=torch.float64)
    found, neighbors = carried_increments(
        delta, torch.tensor([0, 1]), build_geometry(points), eps=1e-3
    )
    assert float(found[2]) == pytest.approx(3.0)
    assert float(neighbors[2]) < 1e-6


def test_out_of_reach_in_an_approximate_geometry_their_mean_stands() -> None:
    points = torch.eye(3)[torch.arange(300) % 3] + 1e-3 * torch.randn(300, 3, generator=generator())
    geometry = build_geometry(points, kind="sparse")
    landmarks = torch.tensor([0, 3])  # of the first group alone
    found, neighbors = carried_increments(torch.ones(300), landmarks, geometry, eps=1e-3)
    assert found.isfinite().all()
    torch.testing.assert_close(found, torch.ones(300))
    assert (neighbors[torch.arange(300) % 3 > 0] < 1e-6).all()


def test_what_is_carried_is_weighed_with_the_scales_of_all() -> None:
    replay = engine(landmarks=6)
    draw = replay.draw(4, Scorer(TABLE))
    assert draw.weighting is not None
    full = SphereSelection(RECIPE).weigh(Scorer(TABLE)(torch.arange(20)), None, generator())
    for name in ("eps_s", "eps_t"):
        assert draw.weighting.details[name] == pytest.approx(full.details[name])
    assert 1 <= draw.weighting.details["landmark_neighbors"] <= 6
    assert "landmark_neighbors" not in full.details


def test_with_everybody_a_landmark_nothing_is_lost() -> None:
    economical = engine(landmarks=64)
    published = Engine(filled(20), SphereSelection(RECIPE), generator=generator(), every=1)
    first, second = (each.draw(4, Scorer(TABLE)).weighting for each in (economical, published))
    assert first is not None
    assert second is not None
    assert torch.equal(first.weights, second.weights)
    assert (first.mass, first.cost) == (second.mass, second.cost)


# Who is scored.


def test_landmarks_are_passed_twice_and_the_others_once() -> None:
    replay, scorer = engine(), Scorer(TABLE)
    assert [replay.draw(4, scorer).cost for _ in range(8)] == [25] * 8
    for chosen, others in zip(scorer.asked, scorer.glanced, strict=True):
        assert len(chosen) == 5
        assert sorted([*chosen.tolist(), *others.tolist()]) == list(range(20))
    assert len({tuple(slots.tolist()) for slots in scorer.asked}) == 8


def test_scores_of_both_parts_come_back_in_order() -> None:
    slots = torch.tensor([4, 9, 1, 30, 2, 17])
    scores = economical_scores(slots, Scorer(TABLE), lambda of: 10 * of, 2, generator())
    full = Scorer(TABLE)(slots)
    assert torch.equal(scores.losses, full.losses)
    assert scores.features is not None
    assert full.features is not None
    assert torch.equal(scores.features, full.features)
    assert scores.labels is not None
    assert torch.equal(scores.labels, 10 * slots)
    assert scores.landmarks is not None
    assert torch.equal(scores.known_increments, full.increments[scores.landmarks])
    assert int(scores.increments.count_nonzero()) == 2
    assert round(scores.passes * len(scores)) == 2 * 2 + 4


@pytest.mark.parametrize("landmarks", [20, 5])
def test_memories_that_ask_for_no_increments_cost_one_forward(landmarks: int) -> None:
    recipe = Sphere.calibrated(alpha=0.0, neighbors=2, far=4)
    numbers = torch.arange(20) % 2

    def labels(slots: Tensor) -> Tensor:
        return numbers[slots]

    class Labelled(Scorer):
        def __call__(self, slots: Tensor, *, increments: bool = True) -> Scores:
            return replace(super().__call__(slots, increments=increments), labels=labels(slots))

    selection = SphereSelection(recipe)
    economy = Economy(landmarks=landmarks, longest=1)
    economical = Engine(filled(20), selection, generator=generator(), every=1, economy=economy)
    published = Engine(filled(20), selection, generator=generator(), every=1)
    scorer = Labelled(TABLE)
    first = economical.draw(4, scorer, labels)
    second = published.draw(4, Labelled(TABLE))
    assert scorer.asked == []
    assert first.cost == 20
    assert second.cost == 40
    assert first.weighting is not None
    assert second.weighting is not None
    assert torch.equal(first.weighting.weights, second.weighting.weights)
    assert "increment_p50" not in first.weighting.details


@pytest.mark.parametrize(
    ("selection", "needed"),
    [
        (LossProportional(), False),
        (MirProportional(), True),
        (SphereSelection(RECIPE), True),
        (SphereSelection(Sphere.calibrated(alpha=0.0)), False),
        (SphereSelection(Sphere.vision(alpha=0.0, control=Control.NO_FLOOR)), True),
        (SphereSelection(Sphere.vision(alpha=0.0, control=Control.MATCHED_MIR)), True),
    ],
)
def test_selections_say_whether_they_need_increments(selection: Any, needed: bool) -> None:
    assert selection.needs_increments == needed


def test_without_neighbours_nobody_is_a_landmark_for_others() -> None:
    def cost(selection: Any, economy: Economy | None) -> int:
        scorer = Scorer(TABLE)
        replay = Engine(filled(8), selection, generator=generator(), economy=economy)
        return replay.draw(2, scorer).cost

    few = Economy(landmarks=3)
    assert [cost(LossProportional(), economy) for economy in (few, None)] == [8, 16]
    assert [cost(MirProportional(), economy) for economy in (few, None)] == [16, 16]


@pytest.mark.parametrize("increments", [(1.0, 2.0), (2.0, 1.0)])
def test_in_an_approximate_geometry_exact_rows_of_landmarks_carry_increments(
    increments: tuple[float, float],
) -> None:
    angles = torch.tensor([0.0, 1.0, 0.3]).repeat_interleave(100)  # the third has no landmark
    angles = angles + 0.01 * torch.randn(300, generator=generator())
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    given, landmarks = torch.zeros(300), torch.tensor([5, 105])
    given[landmarks] = torch.tensor(increments)
    found, expected = (
        carried_increments(given, landmarks, build_geometry(points, kind=kind), eps=0.05)
        for kind in ("sparse", "exact")
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


# When.


@pytest.mark.parametrize(
    ("every", "longest", "expected"),
    [(1, 4, [0, 1, 3, 7, 11, 15]), (3, 8, [0, 3, 9, 17]), (4, 2, [0, 4, 8, 12, 16])],
)
def test_intervals_double_up_to_the_longest(every: int, longest: int, expected: list[int]) -> None:
    assert scorings(engine(every=every, longest=longest), Scorer(TABLE), 18) == expected


@pytest.mark.parametrize(
    ("steady", "expected"),
    [(0.0, [0, 1, 3, 5, 7, 9, 11]), (0.1, [0, 1, 3, 7, 15, 31, 47])],
)
def test_where_hardly_anything_is_news_intervals_go_on_doubling(
    steady: float, expected: list[int]
) -> None:
    replay = engine(landmarks=20, longest=2, steady=steady)
    assert scorings(replay, Scorer(TABLE), 13 if steady == 0 else 48) == expected


def test_what_is_news_shortens_them_again() -> None:
    replay, scorer = engine(landmarks=20, longest=2, steady=0.1), Scorer(TABLE)
    assert scorings(replay, scorer, 31) == [0, 1, 3, 7, 15]
    scorer.increments = TABLE.flip(0)
    assert scorings(replay, scorer, 7) == [0, 2, 6]  # the second finds nothing new


def test_so_does_a_memory_of_which_too_much_is_new() -> None:
    replay, scorer = engine(landmarks=20, longest=2, steady=0.4), Scorer(TABLE)
    assert scorings(replay, scorer, 32) == [0, 1, 3, 7, 15, 31]
    overwrite(replay.memory, *range(8))
    assert scorings(replay, scorer, 4) == []
    overwrite(replay.memory, 8)
    assert scorings(replay, scorer, 3) == [1]


def test_drift_is_what_is_drawn_otherwise_of_all_that_is_not_drawn_uniformly() -> None:
    uniform, one = torch.full((4,), 0.25), torch.tensor([0.7, 0.1, 0.1, 0.1])
    assert drift(one, one) == drift(uniform, uniform) == 0
    assert drift(uniform, one) == drift(one, uniform) == 1
    assert drift(one.flip(0), one) == 1
    halfway = (uniform + one) / 2
    assert drift(halfway, one) == pytest.approx(0.5)


def test_drift_is_that_of_the_probabilities_in_use() -> None:
    replay = engine(landmarks=20, steady=0.0)
    first = replay.draw(2, Scorer(TABLE)).weighting
    assert first is not None
    assert "drift" not in first.details
    overwrite(replay.memory, 3, 8)
    used = first.weights.clone()
    used[[3, 8]] = first.mass / 20
    second = replay.draw(2, Scorer(TABLE.flip(0))).weighting
    assert second is not None
    expected = drift(used / used.sum(), second.weights / second.weights.sum())
    assert second.details["drift"] == pytest.approx(expected)
    assert 0.5 < expected <= 1


def test_a_memory_that_was_loaded_may_be_smaller() -> None:
    replay = engine(every=4)
    replay.draw(2, Scorer(TABLE))
    replay.memory.load_state_dict(filled(7).state_dict())
    replay.start_task()
    weighting = replay.draw(2, Scorer(TABLE)).weighting
    assert weighting is not None
    assert len(weighting.weights) == 7
    assert "drift" not in weighting.details


def test_a_pool_has_others_at_every_rescoring_and_no_drift() -> None:
    replay = Engine(filled(20), SphereSelection(RECIPE), generator=generator(), every=1, pool=8)
    for _ in range(2):
        weighting = replay.draw(2, Scorer(TABLE)).weighting
        assert weighting is not None
        assert "drift" not in weighting.details
    replay = Engine(filled(6), SphereSelection(RECIPE), generator=generator(), every=1, pool=8)
    for known in (False, True):
        weighting = replay.draw(2, Scorer(TABLE)).weighting
        assert weighting is not None
        assert ("drift" in weighting.details) == known


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        # A rescoring takes 1.25 passes of each candidate instead of 2.
        ({"every": 16, "shortest": 3, "longest": 8}, [0, 16, 22, 34, 50]),
        ({"every": 12, "shortest": 2, "longest": 4}, [0, 12, 16, 24, 36, 48]),
        ({"every": 2, "shortest": 3, "longest": 8}, [0, 2, 6, 14, 22, 30, 38, 46, 54]),
        ({"every": 12, "shortest": 2, "landmarks": 20}, [0, 12, 24, 36, 48]),
    ],
)
def test_short_intervals_are_paid_for_by_passes_that_were_saved(
    numbers: dict[str, int], expected: list[int]
) -> None:
    assert scorings(engine(**numbers), Scorer(TABLE), 56) == expected


@pytest.mark.parametrize("landmarks", [2, 7, 40])
@pytest.mark.parametrize("every", [1, 5, 16])
@pytest.mark.parametrize("task", [3, 11, 16, 32, 40])
@pytest.mark.parametrize("held", [4, 40])
def test_never_has_it_passed_more_than_a_schedule_that_saves_nothing(
    landmarks: int, every: int, task: int, held: int
) -> None:
    economy = Economy(landmarks=landmarks, shortest=2, longest=8)
    spent = []
    for numbers in (economy, None):
        memory = Memory(40, Scripted())
        memory.add(x=torch.arange(held))
        selection = SphereSelection(RECIPE)
        replay = Engine(memory, selection, generator=generator(), every=every, economy=numbers)
        costs = []
        for number in range(120):
            if number % task == 0:
                replay.start_task()
            costs.append(replay.draw(2, Scorer(TABLE)).cost)
            if len(memory) < 40:
                memory.add(x=torch.arange(4))
        spent.append(torch.tensor(costs).cumsum(0))
    economical, published = spent
    assert (economical <= published).all()
    assert landmarks == 40 or economical[-1] < published[-1]


def test_a_new_task_begins_with_short_intervals() -> None:
    replay, scorer = engine(every=1, longest=8), Scorer(TABLE)
    assert scorings(replay, scorer, 10) == [0, 1, 3, 7]
    replay.start_task()
    assert scorings(replay, scorer, 5) == [0, 1, 3]


def test_the_memory_may_grow_and_hold_fewer_than_there_are_landmarks() -> None:
    memory = Memory(64, Scripted())
    memory.add(x=torch.arange(2))
    replay = Engine(
        memory,
        SphereSelection(RECIPE),
        generator=generator(),
        every=1,
        economy=Economy(8, 1, 1, steady=0),
    )
    scorer = Scorer(TABLE)
    for size in (2, 5, 9, 33):
        if size > len(memory):
            memory.add(x=torch.arange(len(memory), size))
        assert len(replay.draw(2, scorer)) == 2
        assert len(scorer.asked[-1]) == min(8, size)


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "economic"}, "economical"),
        ({"landmarks": 0}, "landmarks must be a whole number of at least 1, got 0"),
        ({"shortest": 0}, "shortest must be a whole number of at least 1"),
        ({"longest": 1.5}, "longest must be a whole number of at least 1, got 1.5"),
        ({"steady": 1.5}, r"steady must lie in \[0, 1\], got 1.5"),
        ({"reuse": -1}, "reuse must be a whole number of at least 0, got -1"),
        ({"landmarks": 64, "steady": 0.1}, "landmarks, steady: of the economical schedule alone"),
    ],
)
def test_settings_that_make_no_schedule_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScheduledSettings(**settings).check_replay()


def test_settings_make_the_engine_they_say() -> None:
    for settings, cost in ((ScheduledSettings(), 16), (ECONOMICAL, 11)):
        replay = settings.engine(filled(8), RECIPE, generator())
        assert replay.draw(2, Scorer(TABLE)).cost == cost
    assert ECONOMICAL.economy == Economy(landmarks=3, longest=16)
    assert ScheduledSettings().economy is None
