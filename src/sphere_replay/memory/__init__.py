"""Bounded memory of past examples, and the policies that decide which examples it keeps."""

from collections.abc import Callable, Mapping

from sphere_replay.memory.admission import Admission, Insight, Judgement, Offer
from sphere_replay.memory.asymmetric_balanced import AsymmetricBalanced
from sphere_replay.memory.class_balanced import ClassBalanced
from sphere_replay.memory.greedy_balanced import GreedyBalanced
from sphere_replay.memory.memory import Memory
from sphere_replay.memory.purity_diversity import PurityDiversity
from sphere_replay.memory.reservoir import Reservoir

ADMISSIONS: Mapping[str, Callable[[], Admission]] = {
    policy.name: policy
    for policy in (Reservoir, ClassBalanced, GreedyBalanced, PurityDiversity, AsymmetricBalanced)
}
"""Names on the command line."""

__all__ = [
    "ADMISSIONS",
    "Admission",
    "AsymmetricBalanced",
    "ClassBalanced",
    "GreedyBalanced",
    "Insight",
    "Judgement",
    "Memory",
    "Offer",
    "PurityDiversity",
    "Reservoir",
]
