"""Cosine learning rates with warm restarts whose cycles double: 1, 2, 4, ... epochs."""

import math


def warm_restart_lr(epoch: int, high: float, low: float) -> float:
    """Learning rate of an epoch: a tenth of `high` first, then restarts at 1, 2, 4, 8, ...

    Within the cycle that starts at 2^j the rate falls from `high` towards `low` along a cosine.
    """
    if epoch == 0:
        return high / 10
    start = 1 << (epoch.bit_length() - 1)
    return low + (high - low) / 2 * (1 + math.cos(math.pi * (epoch - start) / start))
