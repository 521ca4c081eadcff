"""Programming problems for reinforcement learning: records, preparation, sources, micro-problems.

See `docs/problems.md` for the rules and the file format.
"""

from .duplicates import hashed_ngrams, near_duplicates
from .examine import Settings
from .micro import micro_family, micro_problems, wrong_programs
from .prepare import Drop, Prepared, prepare
from .problem import SPLIT_SIZES, Problem, digest, read_problems, write_problems
from .sources import SOURCES, CandidateProblems, load_candidates
from .splits import split_problems, split_sizes

__all__ = [
    "SOURCES",
    "SPLIT_SIZES",
    "CandidateProblems",
    "Drop",
    "Prepared",
    "Problem",
    "Settings",
    "digest",
    "hashed_ngrams",
    "load_candidates",
    "micro_family",
    "micro_problems",
    "near_duplicates",
    "prepare",
    "read_problems",
    "split_problems",
    "split_sizes",
    "write_problems",
    "wrong_programs",
]
