"""Numbers at the ends of the scale, against sums of sixty digits."""

import itertools
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor

from sphere_replay import Sphere, allocate
from sphere_replay.geometry import Precomputed, TiledGeometry, build_geometry
from sphere_replay.geometry.sources import MatrixSource
from tensors import seeded

DOUBLE = torch.float64


def symmetric(values: Tensor) -> Tensor:
    costs = (values + values.T) / 2
    return costs.fill_diagonal_(0)


def precise_target(support: Tensor, costs: Tensor, eps_t: float, temperature: float) -> list[float]:
    """q* of the paper's plan, every step in sixty digits."""
    with localcontext() as context:
        context.prec = 60
        context.Emin, context.Emax = -(10**12), 10**12
        v = [Decimal(float(x)) for x in support]
        c = [[Decimal(float(x)) for x in row] for row in costs]
        t, eps = Decimal(temperature), Decimal(eps_t)
        target = [Decimal(0)] * len(v)
        for j in range(len(v)):
            exponents = [v[i] / t - c[i][j] / eps for i in range(len(v))]
            top = max(exponents)
            terms = [(x - top).exp() if x - top > -5000 else Decimal(0) for x in exponents]
            for i, term in enumerate(terms):
                target[i] += term / sum(terms) / len(v)
        return [float(x) for x in target]


@pytest.mark.parametrize("costs", list(itertools.permutations([3.48e27, 8.53e28, 6.5e28])))
def test_huge_costs_and_increments_lose_no_mass(costs: tuple[float, ...]) -> None:
    matrix = torch.zeros(3, 3, dtype=DOUBLE)
    for (i, j), cost in zip([(0, 1), (0, 2), (1, 2)], costs, strict=True):
        matrix[i, j] = matrix[j, i] = cost
    increments = torch.tensor([2.36e29, 1.52e29, 3.57e29], dtype=DOUBLE)
    recipe = Sphere(eps_s=52100, eps_t=0.1436, tau=11.5, distance=Precomputed())
    found = allocate(increments, matrix, recipe)
    expected = precise_target(found.support, matrix, 0.1436, found.temperature)
    assert found.target.tolist() == pytest.approx(expected, abs=1e-12)
    assert found.mass == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("scale", [1e6, 1e12, 1e14, 1e16, 1e18, 1e30, 1e300])
@pytest.mark.parametrize("tile", [3, 512])
def test_transport_at_any_scale(scale: float, tile: int) -> None:
    generator = seeded(len(f"{scale:.0f}"))
    recipe = Sphere(eps_s=1e-3, eps_t=1.0, tau=1.0, distance=Precomputed())
    for _ in range(5):
        costs = symmetric(torch.rand(7, 7, dtype=DOUBLE, generator=generator) * scale)
        increments = torch.rand(7, dtype=DOUBLE, generator=generator) * scale
        geometry = TiledGeometry(MatrixSource(costs))
        geometry._tile = tile
        found = allocate(increments, geometry, recipe)
        expected = precise_target(found.support, costs, 1.0, 1.0)
        assert found.target.tolist() == pytest.approx(expected, abs=1e-9)
        assert float(found.target.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("control", ["mir-matched", "consensus", "no-transport", "identity", None])
def test_increments_where_numbers_end_count_as_zero(control: str | None) -> None:
    features = torch.randn(4, 3, generator=seeded(0))
    increments = torch.tensor([5e-313, 0.0, 0.0, 0.0], dtype=DOUBLE)
    found = allocate(increments, features, Sphere.vision(control=control))
    assert found.probabilities.tolist() == [0.25] * 4
    assert found.temperature == 0.0


def test_a_temperature_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tau \* eps_t is no number: 1e\+200 \* 1e\+200"):
        Sphere(eps_s=1.0, eps_t=1e200, tau=1e200)


def test_the_largest_increments_have_a_finite_value() -> None:
    increments = torch.tensor([1e308, 0.0, 1.7e308, 1e307], dtype=DOUBLE)
    features = torch.randn(4, 3, generator=seeded(0))
    for recipe in (Sphere.vision(), Sphere.instruct(), Sphere.coding(fraction=10.0)):
        found = allocate(increments, features, recipe)
        assert abs(found.value) < float("inf")
        assert float(found.probabilities.sum()) == pytest.approx(1)


class TestCancellation:
    @pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
    @pytest.mark.parametrize("leave_one_out", [False, True])
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_a_sum_that_is_rounding_has_no_sign(
        self, order: tuple[int, ...], leave_one_out: bool, dtype: torch.dtype
    ) -> None:
        cancelling = torch.tensor([0.1, 0.2, -0.3], dtype=dtype)[list(order)]
        increments = torch.cat([cancelling, torch.ones(1, dtype=dtype)])
        features = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]], dtype=dtype)
        recipe = Sphere(eps_s=1e-3, eps_t=1.0, tau=1.0, leave_one_out=leave_one_out)
        found = allocate(increments, features, recipe)
        if not leave_one_out:
            assert found.consensus.tolist() == [0.0, 0.0, 0.0, 1.0]
            # Of the mass, only what goes to the one risk that neighbours support.
            assert found.mass == pytest.approx(0.64971797, abs=1e-6)
        else:
            undone = found.consensus[:3] + cancelling / 2
            assert undone.abs().max() < 1e-6

    def test_small_but_certain_averages_stay(self) -> None:
        increments = torch.tensor([1e-5, -1e-12, 1.0], dtype=DOUBLE)
        features = torch.eye(3, dtype=DOUBLE)
        found = allocate(increments, features, Sphere(eps_s=1e-3, eps_t=1.0, tau=1.0))
        assert found.consensus.tolist() == pytest.approx([1e-5, -1e-12, 1.0], rel=1e-9, abs=0)

    def test_half_precision_is_not_asked_for_more(self) -> None:
        increments = torch.tensor([1.0, -0.99, 0.5, 0.2], dtype=torch.bfloat16)
        found = allocate(increments, torch.ones(4, 2), Sphere(eps_s=1.0, eps_t=1.0, tau=1.0))
        assert float(found.consensus.min()) > 0.1


def test_near_ties_do_not_move_the_matched_softmax() -> None:
    features = torch.tensor([[1.0, 0.0]] * 4 + [[0.6, 0.8]] * 5)
    increments = torch.full((9,), 3.771e-18)
    increments[6] *= 1 + 2e-7
    increments[8] *= 1 - 2e-7
    recipe = Sphere.coding(d0=None, control="consensus")
    base = allocate(increments, features, recipe).probabilities
    for seed in range(6):
        order = torch.randperm(9, generator=seeded(seed))
        moved = allocate(increments[order], features[order], recipe).probabilities
        torch.testing.assert_close(moved, base[order], rtol=0, atol=2e-4)


def test_cells_of_any_spread_come_to_an_end() -> None:
    features = torch.randn(300, 6, generator=seeded(0))
    increments = torch.randn(300, generator=seeded(1))
    geometry = build_geometry(features, kind="cells")
    found = allocate(increments, geometry, Sphere(eps_s=0.1, eps_t=0.5, tau=1e-9))
    assert float(found.target.sum()) == pytest.approx(1, abs=1e-5)
