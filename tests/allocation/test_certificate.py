"""The certificate: what approximate kernels really change lies inside, in every control."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sphere_replay import Allocation, Sphere, allocate
from sphere_replay.allocation import Control, FixedScales
from sphere_replay.allocation.allocate import solve
from sphere_replay.allocation.backing import Strength
from sphere_replay.allocation.certificate import _Terms, certify
from sphere_replay.geometry import (
    CellGeometry,
    Geometry,
    SquaredEuclidean,
    build_geometry,
    exact_rows,
)
from tensors import seeded

poor = pytest.mark.filterwarnings("ignore:replay probabilities of .* are certified")

SIZE = 400


class Noisy:
    """An exact geometry whose kernel is off by a symmetric random factor."""

    def __init__(self, features: Tensor, level: float, seed: int) -> None:
        self._exact = build_geometry(features)
        noise = torch.randn(SIZE, SIZE, generator=seeded(seed), dtype=torch.float64)
        self._factor = ((noise + noise.T) * level).exp().fill_diagonal_(1.0)
        self.size, self.dtype, self.device = SIZE, torch.float64, torch.device("cpu")
        self.neighbor_radius = self._exact.neighbor_radius
        self.kernel_scales = self._exact.kernel_scales
        self.median_distance = self._exact.median_distance
        self.neighborhood = self._exact.neighborhood
        self.apply_log_kernel = self._exact.apply_log_kernel
        self.log_transport = self._exact.log_transport

        self.order = torch.arange(SIZE).flip(0)

    def costs(self, memories: Tensor, part: slice) -> Tensor:
        wanted = torch.eye(SIZE, dtype=torch.float64)[:, memories]
        return -self._exact.apply_kernel(1.0, wanted).T.log()[:, self.order[part]]

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        everybody = torch.eye(SIZE, dtype=torch.float64)
        kernel = self._exact.apply_kernel(1.0, everybody).pow(1 / eps) * self._factor
        if others_only:
            kernel.fill_diagonal_(0)
        return kernel @ vectors.double()


def memories(seed: int, size: int = SIZE, spread: float = 0.4) -> tuple[Tensor, Tensor, Tensor]:
    """Increments, features and noisy labels of a clustered memory."""
    generator = seeded(seed)
    labels = torch.randint(8, (size,), generator=generator)
    centers = torch.randn(8, 12, generator=generator)
    features = centers[labels] + spread * torch.randn(size, 12, generator=generator)
    risky = torch.rand(8, generator=generator)[labels]
    increments = risky - 0.4 + 0.5 * torch.randn(size, generator=generator)
    wrong = torch.rand(size, generator=generator) < 0.2
    return increments, features, torch.where(wrong, (labels + 3) % 8, labels)


def variation(one: Allocation, other: Allocation) -> float:
    return float((one.probabilities - other.probabilities).double().abs().sum()) / 2


def at_scales_of(found: Allocation, recipe: Sphere) -> Sphere:
    """The recipe with the scales, temperature and agreement that an allocation has found."""
    scales = FixedScales(found.eps_s, found.eps_t, found.temperature / found.eps_t)
    return replace(recipe, scales=scales, agreement=found.agreement, strength=Strength.FIXED)


RECIPES = {
    "vision": Sphere.vision(),
    "no floor": Sphere.vision(control="no-floor"),
    "identity": Sphere.vision(control="identity"),
    "permuted": Sphere.vision(control="permuted"),
    "no transport": Sphere.vision(control="no-transport"),
    "spread": Sphere.instruct(),
    "backed": Sphere.calibrated(votes="plain"),
    "backing alone": Sphere.calibrated(strength="fixed", alpha=0.0),
    "balanced, alone": Sphere.calibrated(votes="balanced", leave_one_out=True),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("level", [0.0, 1e-3, 0.03, 0.3])
def test_whatever_is_wrong_with_a_kernel_lies_inside(name: str, level: float) -> None:
    recipe = replace(RECIPES[name], distance=SquaredEuclidean())
    for seed in range(2):
        increments, features, labels = memories(seed)
        noisy: Geometry = Noisy(features, level, seed)
        found = allocate(increments, noisy, recipe, labels=labels, generator=seeded(1))
        true = allocate(
            increments, features, at_scales_of(found, recipe), labels=labels, generator=seeded(1)
        )
        assert found.error is not None
        assert variation(found, true) <= found.error.total_variation + 1e-6
        off = abs(found.mass - true.mass)
        assert off <= found.error.total_variation * found.mass + 1e-6
        assert found.error.total_variation <= 40 * level + 1e-4


def test_an_approximate_kernel_moves_as_much_mass_as_an_exact_one() -> None:
    increments, features, _ = memories(0)
    noisy: Geometry = Noisy(features, 0.3, 0)
    found = allocate(increments.double(), noisy)
    passed = found.target * (found.consensus > 0)
    assert float(found.target.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(found.sensitivity.sum()) == pytest.approx(float(passed.sum()), abs=1e-12)
    assert found.mass == pytest.approx(0.5 + 0.5 * float(passed.sum()), abs=1e-12)


@poor
@pytest.mark.parametrize("kind", ["cells", "sparse", "low-rank"])
def test_true_errors_of_large_geometries_lie_inside(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping.LEAST_MEMBERS", 16)
    monkeypatch.setattr("sphere_replay.geometry.large.PAIRS", 100)
    monkeypatch.setattr("sphere_replay.geometry.large._WIDER", (2,))
    monkeypatch.setattr("sphere_replay.geometry.sparse.MOST", 40)
    inside = 0
    for seed in range(6):
        increments, features, _ = memories(seed, size=600, spread=0.2 + 0.15 * seed)
        found = allocate(increments, features, geometry=kind)
        assert found.error is not None
        assert (found.error.confidence, found.error.rows) == (0.99, 512)
        inside += variation(found, allocate(increments, features)) <= found.error.total_variation
    assert inside == 6


@poor
@pytest.mark.parametrize("few", [20, 90])
def test_risks_far_apart_are_certified_where_kernels_are_no_numbers(few: int) -> None:
    directions = torch.eye(4)[[0, 1]].repeat_interleave(torch.tensor([few, 400 - few]), dim=0)
    features = directions + 0.01 * torch.randn(400, 4, generator=seeded(3))
    increments = torch.where(torch.arange(400) < few, 1.0, 0.01)
    recipe = Sphere(eps_s=0.01, eps_t=0.01, tau=0.2)
    found, true = (allocate(increments, features, recipe, geometry=k) for k in ("cells", "exact"))
    assert float(true.probabilities[:few].sum()) > 0.5
    assert found.error is not None
    assert variation(found, true) <= found.error.total_variation
    if few <= 64:  # so many are carried exactly
        assert found.error.total_variation < 0.1


@poor
@pytest.mark.parametrize("eps", [1e-3, 2e-3])
def test_weights_are_numbers_however_far_off_a_kernel_is(
    eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping.LEAST_MEMBERS", 16)
    monkeypatch.setattr("sphere_replay.geometry.large.PAIRS", 100)
    increments, features, _ = memories(0, size=1500)
    recipe = Sphere(eps_s=eps, eps_t=eps, tau=1.0)
    found, true = (allocate(increments, features, recipe, geometry=k) for k in ("cells", "exact"))
    assert bool(found.weights.isfinite().all())
    assert float(found.target.sum()) == pytest.approx(1.0, abs=1e-6)
    assert found.error is not None
    assert variation(found, true) <= found.error.total_variation + 1e-6


def test_risks_that_no_number_holds_have_a_certificate() -> None:
    features = torch.randn(400, 6, generator=seeded(3))
    increments = torch.full((400,), 1e-4).index_fill(0, torch.tensor([7]), 1.0)
    recipe = Sphere(eps_s=0.05, eps_t=0.05, tau=1e-3)
    found, true = (allocate(increments, features, recipe, geometry=k) for k in ("cells", "exact"))
    assert float((true.support.max() - true.support.min()) / true.temperature) > 1000
    assert found.error is not None
    assert variation(found, true) <= found.error.total_variation + 1e-6
    assert found.error.total_variation < 0.5


def test_logarithms_certify_as_plain_numbers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    increments, features, _ = memories(0)
    noisy: Geometry = Noisy(features, 0.03, 0)
    plain = allocate(increments, noisy).error
    monkeypatch.setattr("sphere_replay.allocation.certificate._PLAIN_UP_TO", -1.0)
    by_logarithms = allocate(increments, noisy).error
    assert plain is not None
    assert by_logarithms is not None
    assert by_logarithms.total_variation == pytest.approx(plain.total_variation, rel=1e-4)


def test_votes_on_many_labels_are_asked_for_some_memories_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    increments, features, labels = memories(0)
    noisy: Geometry = Noisy(features, 0.03, 0)
    recipe = RECIPES["backed"]
    at_once = allocate(increments, noisy, recipe, labels=labels).error
    monkeypatch.setattr("sphere_replay.allocation.certificate._VOTES_HELD", 1)
    one_by_one = allocate(increments, noisy, recipe, labels=labels).error
    assert at_once is not None
    assert one_by_one is not None
    assert one_by_one.total_variation == pytest.approx(at_once.total_variation, rel=1e-5)


@poor
def test_a_good_geometry_is_told_from_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping.LEAST_MEMBERS", 16)
    monkeypatch.setattr("sphere_replay.geometry.large.PAIRS", 100)
    increments, features, _ = memories(0, size=600)
    wide = Sphere(eps_s=0.5, eps_t=0.5, tau=0.1)
    errors = [
        allocate(increments, features, wide, geometry=kind).error for kind in ("cells", "sparse")
    ]
    good, bad = (error.total_variation for error in errors if error is not None)
    assert good < bad / 3


def test_exact_allocations_and_controls_that_match_everything_have_no_certificate() -> None:
    increments, features, labels = memories(0)
    assert allocate(increments, features).error is None
    noisy: Geometry = Noisy(features, 0.1, 0)
    for control in (Control.CONSENSUS, Control.MATCHED_MIR):
        assert allocate(increments, noisy, Sphere.vision(control=control)).error is None
    shuffled = Sphere.calibrated(control="backing-permuted")
    found = allocate(increments, noisy, shuffled, labels=labels, generator=seeded())
    assert found.error is None


def test_nothing_at_risk_leaves_nothing_to_certify() -> None:
    _, features, _ = memories(0)
    nothing = allocate(torch.zeros(SIZE), features, geometry="cells")
    assert nothing.error is not None
    assert nothing.error.total_variation == 0.0


def test_support_as_it_is_has_a_certificate_at_temperature_zero() -> None:
    increments, features, _ = memories(0)
    recipe = replace(Sphere(eps_s=0.3, eps_t=0.3, tau=0.0), control=Control.NO_TRANSPORT)
    found = allocate(increments, Noisy(features, 0.03, 0), recipe)
    true = allocate(increments, features, recipe)
    assert found.error is not None
    assert found.temperature == 0
    assert 0 < variation(found, true) <= found.error.total_variation < 0.1


def test_a_sample_is_as_unsure_as_it_should_be() -> None:
    increments, features, _ = memories(0)
    delta, recipe = increments.double(), Sphere.vision()
    noisy: Geometry = Noisy(features, 0.1, 0)
    found, trace = solve(delta, noisy, recipe)

    rows = exact_rows(noisy)
    assert rows is not None
    terms = _Terms(rows, found, trace, delta, recipe, None)
    terms.level(torch.arange(SIZE))
    whole = float(terms.of(torch.arange(SIZE)).sum()) + terms.missed
    errors = [certify(found, trace, delta, noisy, recipe, seed=seed) for seed in range(100)]
    bounds = [error.total_variation for error in errors if error is not None]
    # The mean of a sample is as often below what all rows add up to as above.
    assert sum(bound >= whole for bound in bounds) >= 95
    assert sum(bounds) / 100 < 1.4 * whole


def test_backing_is_certified_where_no_loss_would_rise() -> None:
    _, features, labels = memories(0)
    recipe = Sphere.calibrated(strength="fixed")
    noisy: Geometry = Noisy(features, 0.03, 0)
    found = allocate(torch.zeros(SIZE), noisy, recipe, labels=labels)
    true = allocate(torch.zeros(SIZE), features, at_scales_of(found, recipe), labels=labels)
    assert found.error is not None
    assert 0 < variation(found, true) <= found.error.total_variation < 0.1


def test_small_memories_are_exact_to_the_last_bit_unless_asked_otherwise() -> None:
    increments, features, _ = memories(0)
    usual, exact = allocate(increments, features), allocate(increments, features, geometry="exact")
    assert torch.equal(usual.weights, exact.weights)
    assert isinstance(allocate(increments, features, geometry="cells").geometry, CellGeometry)


def test_other_samples_of_rows_certify_the_same_weights_too() -> None:
    increments, features, _ = memories(0)
    recipe = Sphere.vision()
    noisy: Geometry = Noisy(features, 0.03, 0)
    found, trace = solve(increments.double(), noisy, recipe)
    true = variation(found, allocate(increments, features, at_scales_of(found, recipe)))
    errors = [
        certify(found, trace, increments.double(), noisy, recipe, seed=seed) for seed in range(20)
    ]
    bounds = [error.total_variation for error in errors if error is not None]
    assert len(set(bounds)) == 20
    assert sum(true <= bound for bound in bounds) == 20


def test_poor_certificates_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    increments, features, _ = memories(0)
    monkeypatch.setattr("sphere_replay.geometry.build.EXACT_UP_TO", 100)
    monkeypatch.setattr("sphere_replay.allocation.certificate.POOR", -1.0)
    few = r"400 memories .* So few are exact if geometry= is left out"
    with pytest.warns(UserWarning, match=few):
        allocate(increments, features, geometry="cells")
    monkeypatch.setattr("sphere_replay.allocation.certificate.EXACT_UP_TO", 100)
    for kind in ("auto", "cells", "sparse"):
        with pytest.warns(UserWarning, match=r'400 memories .* geometry="exact".* pool') as told:
            allocate(increments, features, geometry=kind)
        assert [warning.filename for warning in told] == [__file__]
        assert ("Cells may be closer" in str(told[0].message)) == (kind == "sparse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        allocate(increments, features, geometry="exact")
        monkeypatch.undo()
        allocate(increments, features)
