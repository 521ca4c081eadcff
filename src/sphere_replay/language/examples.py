"""What an example is to replay: how a batch is taken apart, put together again, and evaluated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sphere_replay.language.forward import check_model, features_and_losses
from sphere_replay.language.rows import Row, pad_rows, rows_of, target_count


class Examples(Protocol):
    """One kind of examples; a trainer with another loss has others."""

    def check(self, model: nn.Module) -> None:
        """Refuse a model that cannot be asked about them, before training starts."""
        ...

    def rows(self, batch: Mapping[str, object]) -> list[Row]:
        """The examples of a batch, each a few 1-D tensors of whole numbers on the CPU."""
        ...

    def counts(self, row: Row) -> bool:
        """Whether the example has a loss."""
        ...

    def batch(self, rows: Sequence[Row], device: torch.device) -> Any:
        """Examples put together."""
        ...

    def evaluate(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """Features `[n, d]` and losses `[n]` of a batch, differentiable."""
        ...


@dataclass(frozen=True)
class TokenExamples:
    """Tokens with labels, and the mean cross entropy over those that count."""

    pad_token_id: int = 0
    encoder_decoder: bool = False

    def check(self, model: nn.Module) -> None:
        """A language model whose states can be read."""
        check_model(model)

    def rows(self, batch: Mapping[str, object]) -> list[Row]:
        """Rows without padding."""
        return rows_of(batch, encoder_decoder=self.encoder_decoder)

    def counts(self, row: Row) -> bool:
        """Some token is a target."""
        return target_count(row, encoder_decoder=self.encoder_decoder) > 0

    def batch(self, rows: Sequence[Row], device: torch.device) -> dict[str, Tensor]:
        """Padded on the right."""
        return pad_rows(rows, self.pad_token_id, device)

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """States averaged over the target tokens, and their mean loss."""
        return features_and_losses(model, batch)
