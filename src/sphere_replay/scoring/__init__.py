"""How each stored example's loss would change after the next update: Algorithm 1, lines 2 and 3.

The model is asked and left exactly as it was: every parameter, buffer, gradient, mode and optimizer
state returns bit for bit, so a run that scores and one that does not differ only in their replay.
"""

from sphere_replay.scoring.folding import FoldableModel, FoldedForward
from sphere_replay.scoring.score import (
    Forward,
    Loss,
    NonFiniteError,
    Scores,
    cross_entropy_per_example,
    score,
    score_batches,
)
from sphere_replay.scoring.sharding import is_sharded, resharded
from sphere_replay.scoring.virtual import virtual_step

__all__ = [
    "FoldableModel",
    "FoldedForward",
    "Forward",
    "Loss",
    "NonFiniteError",
    "Scores",
    "cross_entropy_per_example",
    "is_sharded",
    "resharded",
    "score",
    "score_batches",
    "virtual_step",
]
