"""Algorithm 1 written down from the paper, line by line: what the library is measured against.

Vision's scales (`Sphere.vision()`) on dense m x m matrices, with rows sorted or, better, searched
for their nearest neighbours only. The peers do the same with the tools of
other packages, as far as these reach:

- POT: the plan. The paper's problem fixes the columns of the plan and leaves its rows free, which
  is semi-relaxed optimal transport with cost tau C_ij - v_i and no penalty on the rows.
- KeOps: kernel products and neighbour radii without a matrix, through lazy tensors.
"""

import contextlib
import sys
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import normalize

K_S, K_T, T_FRAC, ALPHA = 5, 25, 0.5, 0.5

Allocator = Callable[[Tensor, Tensor], Tensor]


def naive_weights(increments: Tensor, features: Tensor) -> Tensor:
    """w̄ `[m]` from δ `[m]` and h `[m, d]`, holding C, K, S and Π."""
    return _dense_weights(increments, features, _softmax_plan)


def topk_weights(increments: Tensor, features: Tensor) -> Tensor:
    """The same without sorting: only as many neighbours of each row as the scales ask for."""
    return _dense_weights(increments, features, _softmax_plan, _nearest)


def pot_weights(increments: Tensor, features: Tensor) -> Tensor:
    """The same with Π from POT."""
    return _dense_weights(increments, features, _pot_plan)


def keops_weights(increments: Tensor, features: Tensor) -> Tensor:
    """The same with every kernel product and the neighbour search from KeOps."""
    with contextlib.redirect_stdout(sys.stderr):  # it greets and compiles on standard output
        import pykeops
        from pykeops.torch import LazyTensor

        pykeops.set_verbose(False)
    size = len(features)
    h = normalize(features, dim=1)
    cost = LazyTensor(h[:, None, :]).sqdist(LazyTensor(h[None, :, :]))
    near, far = min(K_S, size - 1), min(K_T, size - 1)
    eps_s, eps_t = _bandwidths(cost.Kmin(far + 1, dim=1), near, far)

    def kernel(eps: Tensor, vector: Tensor) -> Tensor:
        product: Tensor = (-cost / float(eps)).exp() @ vector[:, None].contiguous()
        return product[:, 0]

    row_sums = kernel(eps_s, torch.ones_like(increments))
    consensus = kernel(eps_s, increments) / row_sums
    a = (consensus.clamp(min=0) / _temperature(increments)).exp()
    target = a * kernel(eps_t, 1 / kernel(eps_t, a)) / size
    sensitivity = kernel(eps_s, target * (consensus > 0) / row_sums)
    return (1 - ALPHA) / size + ALPHA * sensitivity


def available_peers() -> dict[str, Allocator]:
    """The peers whose packages are installed."""
    peers: dict[str, tuple[str, Allocator]] = {
        "pot": ("ot", pot_weights),
        "keops": ("pykeops", keops_weights),
    }
    return {name: peer for name, (package, peer) in peers.items() if find_spec(package)}


def _sorted(cost: Tensor) -> Tensor:
    return cost.sort(dim=1).values


def _nearest(cost: Tensor) -> Tensor:
    return cost.topk(min(K_T + 1, len(cost)), dim=1, largest=False).values


def _dense_weights(
    increments: Tensor,
    features: Tensor,
    plan: Callable[[Tensor, Tensor, Tensor], Tensor],
    order: Callable[[Tensor], Tensor] = _sorted,
) -> Tensor:
    size = len(features)
    h = normalize(features, dim=1)
    cost = torch.cdist(h, h).square()
    cost.fill_diagonal_(0)
    eps_s, eps_t = _bandwidths(order(cost), min(K_S, size - 1), min(K_T, size - 1))
    temperature = _temperature(increments)
    kernel = torch.exp(-cost / eps_s)
    smoothing = kernel / kernel.sum(dim=1, keepdim=True)
    consensus = smoothing @ increments
    support = consensus.clamp(min=0)
    tau = temperature / eps_t
    target = plan(support, tau * cost, temperature).sum(dim=1)
    sensitivity = smoothing.T @ (target * (consensus > 0))
    return (1 - ALPHA) / size + ALPHA * sensitivity


def _softmax_plan(support: Tensor, price: Tensor, temperature: Tensor) -> Tensor:
    """Π_ij = exp((v_i - tau C_ij)/T) / (m Σ_k exp((v_k - tau C_kj)/T))."""
    return torch.softmax((support[:, None] - price) / temperature, dim=0) / len(support)


def _pot_plan(support: Tensor, price: Tensor, temperature: Tensor) -> Tensor:
    import ot

    uniform = torch.full_like(support, 1 / len(support))
    rows_free = (0.0, float("inf"))
    plan: Tensor = ot.unbalanced.sinkhorn_unbalanced(
        uniform, uniform, price - support[:, None], float(temperature), rows_free
    )
    return plan


def _bandwidths(ordered: Tensor, near: int, far: int) -> tuple[Tensor, Tensor]:
    """Medians of the distances to two neighbours; column 0 is the memory itself."""
    eps_s = ordered[:, near].quantile(0.5)
    return eps_s, torch.maximum(ordered[:, far].quantile(0.5), eps_s)


def _temperature(increments: Tensor) -> Tensor:
    """T of a first rescoring, whose running average is its own 95th percentile."""
    return T_FRAC * increments.clamp(min=0).quantile(0.95)
