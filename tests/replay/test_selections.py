"""Every selection against its formula, at ordinary values and at the ends of the number range."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sphere_replay import Control, Sphere, allocate
from sphere_replay.replay import (
    SELECTIONS,
    LossProportional,
    MirProportional,
    MirTop,
    Selection,
    SphereSelection,
    Uniform,
    Weighting,
    selection_named,
)
from sphere_replay.scoring import Scores

NAMES = (
    "uniform",
    "loss",
    "mir",
    "mir-top",
    "sphere",
    "sphere-identity",
    "sphere-consensus",
    "sphere-no-transport",
    "sphere-permuted",
    "mir-matched",
    "sphere-no-floor",
    "sphere-calibrated",
)
RECIPE = Sphere.vision(k_s=3, k_t=8)
CONTROLS = {
    "sphere": None,
    "sphere-identity": Control.IDENTITY,
    "sphere-consensus": Control.CONSENSUS,
    "sphere-no-transport": Control.NO_TRANSPORT,
    "sphere-permuted": Control.PERMUTED,
    "mir-matched": Control.MATCHED_MIR,
    "sphere-no-floor": Control.NO_FLOOR,
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scored(increments: Tensor, losses: Tensor | None = None, seed: int = 0) -> Scores:
    """Scores with the given increments (or losses) and random features."""
    features = torch.randn(len(increments), 4, generator=generator(seed))
    labels = torch.arange(len(increments)) % 3
    return Scores(increments, increments if losses is None else losses, features, labels)


def random_scores(size: int, seed: int = 0, scale: float = 1.0) -> Scores:
    source = generator(100 + seed)
    increments = torch.randn(size, generator=source) * scale
    losses = torch.rand(size, generator=source) * scale
    return scored(increments, losses, seed)


def weigh(selection: Selection, scores: Scores, running_scale: float | None = None) -> Weighting:
    return selection.weigh(scores, running_scale, generator(7))


def assert_uniform(weighting: Weighting, size: int) -> None:
    assert weighting.weights.tolist() == [1 / size] * size
    assert weighting.mass == 1.0


def test_uniform_gives_everyone_the_same() -> None:
    assert_uniform(weigh(Uniform(), random_scores(8)), 8)


def test_loss_proportional_by_hand() -> None:
    weighting = weigh(LossProportional(), scored(torch.ones(4), torch.tensor([1.0, 3.0, 0.0, 4.0])))
    assert weighting.weights.tolist() == [0.125, 0.375, 0.0, 0.5]
    assert weighting.mass == 1.0
    assert weighting.running_scale is None


def test_loss_proportional_is_uniform_where_all_is_learnt() -> None:
    assert_uniform(weigh(LossProportional(), scored(torch.ones(5), torch.zeros(5))), 5)


def test_mir_proportional_by_hand() -> None:
    weighting = weigh(MirProportional(), scored(torch.tensor([2.0, -1.0, 0.0, 6.0])))
    assert weighting.weights.tolist() == [0.25, 0.0, 0.0, 0.75]
    assert weighting.mass == 1.0


@pytest.mark.parametrize(
    "increments", [[-1.0, -2.0, -3.0, -4.0], [0.0] * 4, [-0.0, 0.0, -5.0, 0.0], [-1e38, -1e-38]]
)
def test_mir_is_uniform_if_no_loss_would_rise(increments: list[float]) -> None:
    assert_uniform(weigh(MirProportional(), scored(torch.tensor(increments))), len(increments))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_mir_is_the_positive_part_over_its_sum(increments: list[float]) -> None:
    positive = [max(value, 0.0) for value in increments]
    total = math.fsum(positive)
    expected = [value / total if total else 1 / len(positive) for value in positive]
    weights = weigh(MirProportional(), scored(torch.tensor(increments))).weights.tolist()
    assert weights == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("magnitude", [1e-45, 1e-30, 1.0, 1e30, 1.5e38])
@pytest.mark.parametrize("selection", [LossProportional(), MirProportional()])
def test_proportions_do_not_depend_on_the_magnitude(selection: Selection, magnitude: float) -> None:
    values = torch.tensor([1.0, 2.0, 0.0, 1.0]) * magnitude
    assert weigh(selection, scored(values)).weights.tolist() == [0.25, 0.5, 0.0, 0.25]


def test_mir_keeps_double_precision_extremes_apart() -> None:
    values = torch.tensor([1e308, 1e308, 1e-308, -1e308], dtype=torch.float64)
    assert weigh(MirProportional(), scored(values)).weights.tolist() == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("shift", [0.0, -100.0])
def test_mir_top_is_uniform_on_the_largest_increments_whatever_their_sign(shift: float) -> None:
    increments = torch.tensor([3.0, -1.0, 7.0, 0.0, 5.0]) + shift
    weights = weigh(MirTop(3), scored(increments)).weights
    assert weights.nonzero().flatten().tolist() == [0, 2, 4]
    assert weights[[0, 2, 4]].tolist() == pytest.approx([1 / 3] * 3, rel=1e-12)


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 5))
def test_no_memory_outside_the_top_beats_one_inside(size: int, top: int, seed: int) -> None:
    scores = random_scores(size, seed)
    inside = weigh(MirTop(top), scores).weights > 0
    assert int(inside.sum()) == min(top, size)
    if top < size:
        assert scores.increments[inside].min() >= scores.increments[~inside].max()


def test_mir_top_of_more_than_there_are_is_uniform() -> None:
    assert_uniform(weigh(MirTop(16), scored(torch.tensor([1.0, -2.0, 3.0, 0.0]))), 4)


def test_the_names_are_those_of_the_command_line() -> None:
    assert tuple(SELECTIONS) == NAMES


def test_an_unknown_name_is_answered_with_a_known_one() -> None:
    with pytest.raises(ValueError, match=r"unknown selection 'shpere'.* sphere\b"):
        selection_named("shpere", RECIPE)


@pytest.mark.parametrize("name", NAMES)
def test_only_uniform_works_without_scores(name: str) -> None:
    assert selection_named(name, RECIPE).needs_scores == (name != "uniform")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 40])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_every_selection_gives_a_probability_vector(name: str, size: int, scale: float) -> None:
    weighting = weigh(selection_named(name, RECIPE), random_scores(size, scale=scale))
    weights = weighting.weights.double()
    assert weights.shape == (size,)
    assert bool(weights.isfinite().all())
    assert bool((weights >= 0).all())
    assert float(weights.sum()) == pytest.approx(weighting.mass, rel=1e-5)
    assert 0 <= weighting.mass <= 1
    assert 1 - 1e-9 <= weighting.effective_sample_size <= size * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "mass"),
    [
        ("uniform", 1.0),
        ("mir", 1.0),
        ("mir-matched", 1.0),
        ("sphere", 0.5),
        ("sphere-identity", 0.5),
        ("sphere-consensus", 0.5),
        ("sphere-no-transport", 0.5),
        ("sphere-permuted", 0.5),
        ("sphere-no-floor", 0.0),
    ],
)
def test_where_nothing_is_at_risk_all_share_alike(name: str, mass: float) -> None:
    increments = torch.tensor([-1.0, -0.5, -2.0, -1.0, 0.0, -3.0])
    weighting = weigh(selection_named(name, RECIPE), scored(increments, torch.ones(6)))
    assert weighting.mass == pytest.approx(mass)
    assert weighting.weights.tolist() == pytest.approx([mass / 6] * 6)
    assert weighting.effective_sample_size == pytest.approx(6)


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("running_scale", [None, 3.0])
def test_sphere_and_its_controls_are_the_weights_of_allocate(
    name: str, running_scale: float | None
) -> None:
    scores = random_scores(30)
    assert scores.features is not None
    recipe = Sphere.vision(k_s=3, k_t=8, alpha=0.7, control=CONTROLS[name])
    expected = allocate(
        scores.increments,
        scores.features,
        recipe,
        running_scale=running_scale,
        generator=generator(7),
    )
    plain = Sphere.vision(k_s=3, k_t=8, alpha=0.7)
    weighting = weigh(selection_named(name, plain), scores, running_scale)
    assert torch.equal(weighting.weights, expected.weights)
    assert weighting.mass == expected.mass
    assert weighting.running_scale == expected.running_scale
    assert weighting.effective_sample_size == pytest.approx(expected.effective_sample_size)


def test_the_recipe_and_the_running_scale_matter() -> None:
    scores = random_scores(30)
    base = weigh(SphereSelection(RECIPE), scores).weights
    assert not torch.allclose(base, weigh(SphereSelection(RECIPE), scores, 50.0).weights)
    other = SphereSelection(Sphere.vision(k_s=3, k_t=8, alpha=0.2))
    assert not torch.allclose(base, weigh(other, scores).weights)


def test_the_permuted_control_shuffles_with_the_generator_it_is_given() -> None:
    selection, scores = selection_named("sphere-permuted", RECIPE), random_scores(30)
    first, again, other = (
        selection.weigh(scores, None, generator(seed)).weights for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize(
    ("weights", "size"),
    [([0.25, 0.25, 0.0], 2.0), ([1e-9, 1e-9, 1e-9], 3.0), ([0.0, 0.0, 0.0], 3.0), ([3, 1], 1.6)],
)
def test_effective_sample_size_of_a_weighting_by_hand(weights: list[float], size: float) -> None:
    weighting = Weighting(torch.tensor(weights), mass=sum(weights))
    assert weighting.effective_sample_size == pytest.approx(size)


def test_calibrated_weights_are_those_of_allocate_with_the_stored_labels() -> None:
    scores = random_scores(30)
    assert scores.features is not None
    weighting = weigh(selection_named("sphere-calibrated", RECIPE), scores)
    expected = allocate(
        scores.increments, scores.features, Sphere.calibrated(), labels=scores.labels
    )
    assert torch.equal(weighting.weights, expected.probabilities)
    assert weighting.mass == 1.0
    assert weighting.details["mass"] == expected.mass < 1
    assert expected.backing is not None
    assert weighting.details["backing"] == float(expected.backing.mean())
    assert weighting.details["label_noise"] == expected.label_noise
    with pytest.raises(ValueError, match="vote on labels, and these memories have none"):
        weigh(selection_named("sphere-calibrated", RECIPE), replace(scores, labels=None))
