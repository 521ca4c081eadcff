"""Forwards that use the statistics of their batch and leave the running ones alone."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def frozen_statistics(network: nn.Module, frozen: bool = True) -> Iterator[None]:
    """Inside, batch norms in training mode do not learn what their batches look like.

    Running means, variances and counters stay as they are, also after an error; nothing else
    changes. `frozen=False` changes nothing at all.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    tracked = [norm for norm in norms if norm.track_running_stats] if frozen else []
    try:
        for norm in tracked:
            norm.track_running_stats = False
        yield
    finally:
        for norm in tracked:
            norm.track_running_stats = True
