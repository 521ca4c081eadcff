"""Losses and features of one forward, against what the models themselves say."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen2Model

from language import tiny
from sphere_replay.language import (
    check_model,
    features_and_losses,
    is_encoder_decoder,
    longest_input,
    pad_rows,
)

MODELS: dict[str, Callable[[], Any]] = {
    "t5": tiny.t5,
    "qwen2": tiny.qwen2,
    "llama": tiny.llama,
    "t5 with LoRA": lambda: tiny.with_lora(tiny.t5()),
    "qwen2 with LoRA": lambda: tiny.with_lora(tiny.qwen2()),
}
every_model = pytest.mark.parametrize("name", MODELS)


def setting(name: str, count: int = 5) -> tuple[Any, dict[str, Tensor], list[dict[str, Tensor]]]:
    model = MODELS[name]().eval()
    rows = tiny.rows(count, encoder_decoder=is_encoder_decoder(model))
    return model, pad_rows(rows, tiny.PAD), [pad_rows([row], tiny.PAD) for row in rows]


@every_model
def test_losses_are_those_of_the_model_one_by_one(name: str) -> None:
    model, batch, alone = setting(name)
    _, losses = features_and_losses(model, batch)
    expected = torch.stack([model(**row).loss for row in alone])
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)


@every_model
def test_features_are_the_last_layer_over_the_target_positions(name: str) -> None:
    model, batch, alone = setting(name)
    features, _ = features_and_losses(model, batch)
    for row, feature in zip(alone, features, strict=True):
        output = model(**row, output_hidden_states=True)
        if is_encoder_decoder(model):
            # The head of this T5 sees the last state after dropout and a constant factor.
            states = output.decoder_hidden_states[-1][0]
            positions = row["labels"][0] != -100
            factor = model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0
        else:
            states, factor = output.hidden_states[-1][0][:-1], 1.0
            positions = row["labels"][0, 1:] != -100
        torch.testing.assert_close(
            feature, states[positions].mean(0) * factor, rtol=1e-4, atol=1e-5
        )


@every_model
def test_gradients_are_those_of_the_mean_loss(name: str) -> None:
    model, batch, alone = setting(name)
    model.double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    got = torch.autograd.grad(features_and_losses(model, batch)[1].mean(), parameters)
    mean = torch.stack([model(**row).loss for row in alone]).mean()
    for one, other in zip(got, torch.autograd.grad(mean, parameters), strict=True):
        torch.testing.assert_close(one, other)


def test_logits_exist_for_target_positions_only() -> None:
    model, batch, _ = setting("qwen2")
    shapes: list[torch.Size] = []
    model.lm_head.register_forward_hook(lambda module, inputs, out: shapes.append(out.shape))
    features_and_losses(model, batch)
    targets = int((batch["labels"][:, 1:] != -100).sum())
    assert shapes == [(targets, tiny.VOCABULARY)]
    assert targets < batch["labels"].numel() / 3
    assert model(**batch).logits.shape[:2] == batch["labels"].shape  # the hook is gone


def test_half_precision_gives_single_precision_losses() -> None:
    model, batch, _ = setting("qwen2")
    exact = features_and_losses(model, batch)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features, losses = features_and_losses(model, batch)
    assert losses.dtype == features.dtype == torch.float32
    assert not torch.equal(losses, exact)
    torch.testing.assert_close(losses, exact, rtol=0.02, atol=0.02)
    halved = features_and_losses(model.to(torch.bfloat16), batch)
    assert [part.dtype for part in halved] == [torch.float32] * 2


def test_an_example_without_targets_is_named() -> None:
    model, batch, _ = setting("qwen2")
    batch["labels"][3] = -100
    with pytest.raises(ValueError, match="example 3 of the batch has no target token"):
        features_and_losses(model, batch)


@every_model
def test_a_fitting_model_passes_and_is_left_as_it_was(name: str) -> None:
    model, _, _ = setting(name)
    model.train()
    state = torch.get_rng_state()
    check_model(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_models_without_the_states_are_refused() -> None:
    bare = Qwen2Model(tiny.qwen2().config)
    with pytest.raises(ValueError, match="Qwen2Model does not give the states"):
        check_model(bare)
    with pytest.raises(ValueError, match=r"Linear .* has no get_output_embeddings"):
        check_model(nn.Linear(2, 2))


def test_a_head_that_is_not_used_is_noticed() -> None:
    model = tiny.qwen2()
    used = model.lm_head

    def elsewhere(**inputs: Any) -> Any:
        logits = nn.functional.linear(model.model(inputs["input_ids"])[0], used.weight)
        return {"logits": logits}

    model.forward = elsewhere
    with pytest.raises(ValueError, match="ran its output head 0 times"):
        check_model(model)


def test_the_limit_is_that_of_the_position_embeddings() -> None:
    assert longest_input(tiny.qwen2(positions=48)) == 48
    assert longest_input(tiny.t5()) is None
    assert longest_input(nn.Linear(1, 1)) is None
