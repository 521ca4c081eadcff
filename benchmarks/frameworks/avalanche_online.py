"""Avalanche, the memory offered every batch instead of whole experiences."""

from functools import partial

from benchmarks.frameworks import avalanche

PACKAGE = avalanche.PACKAGE
train = partial(avalanche.train, online=True)
