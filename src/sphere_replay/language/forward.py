"""One forward of a language model: the loss of every example, and its representation.

Both are needed only where a target token is predicted. The states of those positions are picked at
the entrance of the output head, so that logits, the largest tensor by far, exist for them alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay.language.rows import IGNORED
from sphere_replay.scoring import resharded
from sphere_replay.scoring.restoring import modules_restored, random_state_restored


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether labels belong to a decoder of their own; otherwise they continue the input."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def features_and_losses(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Features `[n, d]` and losses `[n]` of a padded batch, differentiable, in float32 at least.

    The loss of an example is the mean cross entropy over its target tokens (label not -100). Its
    features are the states after the last decoder layer, averaged over the positions that predict
    those tokens.

    Args:
        model: A causal or sequence-to-sequence language model in the manner of transformers, bare
            or wrapped by PEFT. Call the model itself, not a part of it: autocast hangs on it.
        batch: input_ids and labels, and usually attention_mask, `[n, t]` each.
    """
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    targets = batch["labels"]
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = _decoder_inputs(model, targets)
    else:
        # The state at position t predicts token t + 1; nothing follows the last one.
        targets = functional.pad(targets[:, 1:], (0, 1), value=IGNORED)
    mask = targets != IGNORED
    counts = mask.sum(1)
    if not bool(counts.all()):
        empty = int((counts == 0).nonzero()[0])
        raise ValueError(
            f"example {empty} of the batch has no target token: all its labels are {IGNORED}; "
            "was its answer cut off, or tokenized to nothing?"
        )
    with states_picked(model, mask) as seen:
        output = model(**inputs, use_cache=False)
    logits: Tensor = output["logits"] if isinstance(output, Mapping) else output.logits
    if len(seen) != 1 or logits.shape[:-1] != (int(counts.sum()),):
        raise ValueError(_no_states(model, f"it ran its output head {len(seen)} times"))
    losses = functional.cross_entropy(_precise(logits), targets[mask], reduction="none")
    share = mask.to(losses.dtype) / counts[:, None]
    spread = torch.zeros_like(share).masked_scatter(mask, losses)
    # Not a matrix product, which an autocast around us would do in half precision.
    pooled = (_precise(seen[0]) * share[..., None]).sum(1)
    return pooled, (spread * share).sum(1)


def check_model(model: nn.Module) -> None:
    """Ask the model for the loss of a two-token example: what is missing shows before training."""
    head = getattr(model, "get_output_embeddings", None)
    if not callable(head):
        raise ValueError(_no_states(model, "it has no get_output_embeddings()"))
    if head() is None:
        raise ValueError(_no_states(model, "its get_output_embeddings() is None"))
    device = next(model.parameters()).device
    tokens = torch.ones(1, 2, dtype=torch.int64, device=device)
    batch = {"input_ids": tokens, "attention_mask": tokens, "labels": tokens}
    with (
        resharded(model),
        modules_restored(model),
        random_state_restored(device),
        torch.no_grad(),
    ):
        model.eval()
        features_and_losses(model, batch)


def longest_input(model: nn.Module) -> int | None:
    """Tokens the model's position embeddings reach; None if it has no such limit."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


@contextmanager
def states_picked(model: nn.Module, mask: Tensor) -> Iterator[list[Tensor]]:
    """Inside, the output head sees only the states `[k, d]` under the mask `[n, t]`.

    The list that is yielded receives the states it would have seen, `[n, t, d]`.
    """
    seen: list[Tensor] = []

    def pick(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        states = arguments[0]
        if states.shape[:-1] != mask.shape:
            raise ValueError(
                _no_states(
                    model, f"states {list(states.shape)} for labels {list(mask.shape)} reach it"
                )
            )
        seen.append(states)
        return (states[mask], *arguments[1:])

    head = model.get_output_embeddings()  # type: ignore[operator]  # nn.Module does not declare it
    handle = head.register_forward_pre_hook(pick)
    try:
        yield seen
    finally:
        handle.remove()


def _decoder_inputs(model: nn.Module, labels: Tensor) -> Tensor:
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if not callable(shift):
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder without "
            "prepare_decoder_input_ids_from_labels(): replay cannot make its decoder inputs"
        )
    shifted: Tensor = shift(labels=labels)
    return shifted


def _precise(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _no_states(model: nn.Module, reason: str) -> str:
    return (
        f"{type(model).__name__} does not give the states of its last decoder layer, which replay "
        f"reads at the entrance of the output head: {reason}. Use a causal or sequence-to-sequence "
        "language model with its language-modeling head"
    )
