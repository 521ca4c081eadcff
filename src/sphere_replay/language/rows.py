"""Tokenized examples of any length: one batch taken apart into rows, and put together again."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Row = dict[str, Tensor]
"""One example: a 1-D tensor for every field, without padding."""

FIELDS = ("input_ids", "attention_mask", "token_type_ids", "labels")
"""What a row keeps of a batch; everything else can be computed from these."""

IGNORED = -100
"""The label of positions that are not targets."""

_ENOUGH = 64
"""Rows by which answers can be told from free text; a few may all be different by chance."""


def rows_of(batch: Mapping[str, object], *, encoder_decoder: bool = False) -> list[Row]:
    """Take a padded batch `[n, t]` apart into n rows on the CPU, without their padding.

    Either side may be padded. What the attention mask leaves out at both ends goes; without a mask
    nothing counts as padding. Labels of a decoder-only model stay aligned with the input, those of
    an encoder-decoder have a length of their own and lose the ignored ends.
    """
    fields = {name: value for name, value in batch.items() if name in FIELDS}
    for name in ("input_ids", "labels"):
        if name not in fields:
            raise ValueError(
                f"a batch for replay needs input_ids and labels, got {', '.join(batch)}: tokenize "
                "the data set and let the collator pad it"
            )
    held: dict[str, Tensor] = {}
    for name, value in fields.items():
        if not isinstance(value, Tensor) or value.ndim != 2:
            raise ValueError(
                f"{name} must be a tensor [n, t], got "
                f"{list(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
            )
        held[name] = value.detach().to("cpu", copy=True)  # whoever trains may write into it
    source = held["input_ids"]
    inputs = attended(held.get("attention_mask", torch.ones_like(source)))
    targets = attended(held["labels"] != IGNORED) if encoder_decoder else inputs
    for name, value in held.items():
        if not (encoder_decoder and name == "labels") and value.shape != source.shape:
            raise ValueError(
                f"{name} {list(value.shape)} must match input_ids {list(source.shape)}"
            )
    return [
        {
            name: value[index, targets[index] if name == "labels" else inputs[index]]
            for name, value in held.items()
        }
        for index in range(len(source))
    ]


def attended(mask: Tensor) -> list[slice]:
    """Of each row of a mask `[n, t]`, from the first position that counts to the last."""
    return [_span(row) for row in (mask != 0).tolist()]


def pad_rows(
    rows: Sequence[Row], pad_token_id: int, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Put rows together, right-padded: labels with -100, masks with 0, inputs with the pad token.

    Each field gets the width of its own longest row.
    """
    if not rows:
        raise ValueError("there is nothing to pad: pass at least one row")
    fillers = {"input_ids": pad_token_id, "labels": IGNORED}
    return {
        name: torch.nn.utils.rnn.pad_sequence(
            [row[name] for row in rows], batch_first=True, padding_value=fillers.get(name, 0)
        ).to(device)
        for name in rows[0]
    }


def pad_prompts(
    prompts: Sequence[Sequence[int] | Tensor],
    pad_token_id: int,
    device: torch.device | str = "cpu",
    *,
    left: bool = False,
) -> dict[str, Tensor]:
    """Put token ids `[t]` together, with the mask of those that are no padding.

    Padded on the right, or on the `left`: a decoder that writes goes on from the last column.
    """
    ids = [torch.as_tensor(prompt, dtype=torch.int64) for prompt in prompts]
    if left:
        ids = [each.flip(0) for each in ids]
    rows = [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in ids]
    padded = pad_rows(rows, pad_token_id, device)
    return {name: values.flip(1) for name, values in padded.items()} if left else padded


def row_length(row: Row) -> int:
    """Tokens of the longest field."""
    return max(len(values) for values in row.values())


def check_length(length: int, longest: int | None) -> None:
    """An example the model can read whole."""
    if longest is not None and length > longest:
        raise ValueError(
            f"an example has {length} tokens but the model's limit is {longest} "
            "(max_position_embeddings): truncate the training set, or leave such examples out"
        )


def target_count(row: Row, *, encoder_decoder: bool = False) -> int:
    """How many tokens the model is asked to predict; the first of a decoder-only model is given."""
    labels = row["labels"] if encoder_decoder else row["labels"][1:]
    return int((labels != IGNORED).sum())


def class_numbers(rows: Sequence[Row], tasks: Sequence[int]) -> Tensor | None:
    """Class numbers int64 `[n]` of what the rows are to answer; None if that is free text.

    Rows of one task with the same target tokens have the same number. Where most of the rows have
    an answer that occurs only once, it is none that neighbours could share.
    """
    if rows and "labels" not in rows[0]:
        return None  # a pair of answers is no answer
    numbers: dict[tuple[int, ...], int] = {}
    found = []
    for row, task in zip(rows, tasks, strict=True):
        key = (task, *row["labels"][row["labels"] != IGNORED].tolist())
        found.append(numbers.setdefault(key, len(numbers)))
    once = sum(count == 1 for count in Counter(found).values())
    if len(found) >= _ENOUGH and 2 * once > len(found):
        return None
    return torch.tensor(found, dtype=torch.int64)


def _span(kept: list[bool]) -> slice:
    """From the first kept position to the last."""
    if True not in kept:
        return slice(0, 0)
    return slice(kept.index(True), len(kept) - kept[::-1].index(True))
