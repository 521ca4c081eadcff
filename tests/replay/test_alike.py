"""Which models compute the same in training as in scoring."""

from types import SimpleNamespace

import pytest
from torch import nn

from sphere_replay.replay import alike_in_training


class Noisy(nn.Embedding):
    """As trainers of language models mark an embedding to which a hook adds noise."""

    neftune_noise_alpha = 0.0

    def __init__(self, alpha: float) -> None:
        super().__init__(3, 3)
        self.neftune_noise_alpha = alpha


class Depth(nn.Module):
    """As networks for images skip a block."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p


class Attention(nn.Module):
    """As language models write it: a rate of its own, and no module that drops."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.attention_dropout = rate


class Configured(nn.Module):
    """As others do: rates are looked up when they are needed."""

    def __init__(self, **rates: float) -> None:
        super().__init__()
        self.config = SimpleNamespace(**rates)


@pytest.mark.parametrize(
    ("module", "alike"),
    [
        (nn.ReLU(), True),
        (nn.LayerNorm(3), True),
        (nn.GroupNorm(1, 3), True),
        (nn.BatchNorm1d(3), False),
        (nn.SyncBatchNorm(3), False),
        (nn.Dropout(0.0), True),
        (nn.Dropout(0.1), False),
        (nn.Dropout(1), False),
        (nn.Dropout2d(0.1), False),
        (nn.MultiheadAttention(4, 2), True),
        (nn.MultiheadAttention(4, 2, dropout=0.1), False),
        (Attention(0.0), True),
        (Attention(0.1), False),
        (Noisy(0), True),
        (Noisy(5), False),
        (Configured(hidden_dropout=0.0), True),
        (Configured(hidden_dropout=0.1), False),
        (Depth(0.0), True),
        (Depth(0.2), False),
        (nn.RReLU(), False),
    ],
)
def test_batch_norm_dropout_and_noise_make_training_differ(module: nn.Module, alike: bool) -> None:
    assert alike_in_training(nn.Sequential(nn.Linear(3, 3), module)) == alike
