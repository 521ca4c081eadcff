"""Two Gaussians through numbers on a line: which examples belong to the lower group.

Trusted and doubtful memories are told apart by their losses, and doubtful ones again by how unsure
the network is. The components are always sorted by their means, so a posterior has one meaning.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ITERATIONS = 10
TOLERANCE = 1e-2
ADDED_VARIANCE = 5e-4
CONSTANTS = {
    "mixture_iterations": MAX_ITERATIONS,
    "mixture_tolerance": TOLERANCE,
    "mixture_added_variance": ADDED_VARIANCE,
}
"""By the names that a run's identity knows them by."""

UNFINISHED = "a mixture of the memory fit has not converged: its last estimate was used"


class NoSplitError(ValueError):
    """There are no two groups to be found; the message says why."""


@dataclass(frozen=True, eq=False)
class Split:
    """A fitted mixture of two groups, low and high."""

    low: Tensor
    """Posterior of the group with the smaller mean, float64 `[n]` on the CPU."""
    means: tuple[float, float]
    """Rising."""
    converged: bool
    """False if the likelihood still moved after the last iteration; the estimate stands."""

    @property
    def is_low(self) -> Tensor:
        """Whether each number more likely belongs to the low group, bool `[n]`."""
        return self.low > 0.5


def in_unit_interval(values: Tensor) -> Tensor:
    """Values `[n]` moved to [0, 1] by their least and largest; all 0 if these are equal."""
    low, high = values.aminmax()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def split_in_two(values: Tensor) -> Split:
    """Fit two Gaussians to finite `values` `[n]` by at most ten steps of EM.

    EM starts from the best two-means split, which on a line is found exactly, so the result depends
    on no seed and no number of threads.
    """
    points = values.detach().to("cpu", torch.float64)
    if len(points) < 2:
        raise NoSplitError(f"a mixture of two needs at least 2 examples, got {len(points)}")
    if not bool(points.isfinite().all()):
        raise ValueError("a mixture needs finite numbers: check what they were computed from")
    if points.min() == points.max():
        raise NoSplitError(f"all {len(points)} examples have the same value {float(points[0]):g}")
    # Loading scikit-learn takes a second, which only those who fit mixtures should wait for.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    groups = _two_means(points)
    variances = torch.stack([group.var(correction=0) for group in groups]) + ADDED_VARIANCE
    mixture = GaussianMixture(
        2,
        covariance_type="spherical",
        tol=TOLERANCE,
        reg_covar=ADDED_VARIANCE,
        max_iter=MAX_ITERATIONS,
        weights_init=[len(group) / len(points) for group in groups],
        means_init=[[float(group.mean())] for group in groups],
        precisions_init=(1 / variances).numpy(),
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(points[:, None].numpy())
    first, second = mixture.means_[:, 0].tolist()
    posterior = torch.from_numpy(mixture.predict_proba(points[:, None].numpy()))
    low = posterior[:, int(second < first)].clone()
    return Split(low, (min(first, second), max(first, second)), bool(mixture.converged_))


def _two_means(points: Tensor) -> tuple[Tensor, Tensor]:
    """The two groups of least squared distance to their means; neither is empty."""
    ordered = points.sort().values
    sums = ordered.cumsum(0)
    sizes = torch.arange(1, len(points), dtype=points.dtype)
    # Least distance within the groups is most distance between them: Σ sum² / size.
    below, above = sums[:-1], sums[-1] - sums[:-1]
    between = below.square() / sizes + above.square() / (len(points) - sizes)
    cut = int(between.argmax()) + 1
    return ordered[:cut], ordered[cut:]
