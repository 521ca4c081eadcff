"""The six controls of the paper's ablation table, and one of backing: each replaces a part."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sphere_replay.allocation.smoothing import Smoother
from sphere_replay.numeric import effective_sample_size
from sphere_replay.validation import Choice

_BISECTIONS = 80
_RANGE = 1e12


class Control(Choice):
    """An ablation, by the name that `Sphere(control=...)` takes.

    On the command line it is a selection, `sphere-identity` for instance; `mir-matched` is one
    without a prefix.
    """

    IDENTITY = "identity"
    """S = I: no aggregation and no pullback; clipping, transport and uniform floor stay."""
    CONSENSUS = "consensus"
    """softmax_T of the support instead of transport, T matching the full method's ESS."""
    NO_TRANSPORT = "no-transport"
    """The support normalised to mass one: neither transport nor pullback; the floor stays."""
    PERMUTED = "permuted"
    """Feature rows shuffled among the memories; everything else stays."""
    MATCHED_MIR = "mir-matched"
    """softmax_T of [δ]_+ alone, without floor, T matching the full method's ESS."""
    NO_FLOOR = "no-floor"
    """alpha = 1: no uniform replay."""
    BACKING_PERMUTED = "backing-permuted"
    """Beyond the paper: backing dealt out anew among the memories of each label."""


def softmax_sensitivity(smoother: Smoother, consensus: Tensor, temperature: float) -> Tensor:
    """S^T(softmax_T(v) ⊙ 1[Sδ > 0]): the pullback of a softmax in the place of q*."""
    weights = softmax(consensus.clamp(min=0), temperature)
    return smoother.pull_back(weights * (consensus > 0))


def normalized(values: Tensor) -> Tensor:
    """Non-negative values scaled to sum to one; zero if they are all zero."""
    largest = values.max()
    if largest == 0:
        return torch.zeros_like(values)
    scaled = values / largest
    return scaled / scaled.sum()


def softmax(values: Tensor, temperature: float) -> Tensor:
    """exp(values/T), normalised."""
    return torch.softmax((values - values.max()) / temperature, dim=0)


def matching_temperature(
    probabilities: Callable[[float], Tensor], target_ess: float, scale: float
) -> float:
    """The temperature at which `probabilities(T)` has the given effective sample size.

    Bisection over 24 decades around `scale`; ESS grows with T, and where the target lies outside
    its range the nearer end is taken.
    """
    low, high = -math.log(_RANGE), math.log(_RANGE)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if effective_sample_size(probabilities(scale * math.exp(middle))) < target_ess:
            low = middle
        else:
            high = middle
    return scale * math.exp((low + high) / 2)
