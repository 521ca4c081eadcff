"""A frozen trunk: the upper blocks answer as the whole model did, and alone they train."""

from pathlib import Path

import pytest
import torch

from instruct.small import brief, corpus, llama, t5, train
from sphere_replay.errors import DataError
from sphere_replay.instruct.encoding import PromptEncoder
from sphere_replay.instruct.evaluation import measure_accuracy
from sphere_replay.instruct.job import InstructJob
from sphere_replay.instruct.stream import build_stream
from sphere_replay.instruct.trunk import cut_trunk
from sphere_replay.language import features_and_losses, pad_rows
from sphere_replay.language.models import BaseModel, trainable

TASK = corpus().tasks["topic"]
WHOLE = 1000


def encoder_of(base: BaseModel) -> PromptEncoder:
    return PromptEncoder(base.tokenizer, base.is_encoder_decoder, 64, answer_tokens=1)


def cut(base: BaseModel, window: int, home: Path | None = None) -> list[torch.Tensor]:
    prompts = encoder_of(base).prompts(TASK, [item.sentence for item in TASK.train[:8]])
    numbers = cut_trunk(
        base.model,
        [prompts[:5], prompts],
        blocks=1,
        window=window,
        tokens=200,
        home=home,
        weights="w",
    )
    return [numbers[tuple(prompt.tolist())] for prompt in prompts]


def losses(base: BaseModel, prompts: list[torch.Tensor]) -> torch.Tensor:
    pairs = zip(prompts, TASK.train, strict=False)
    rows = [encoder_of(base).row(prompt, item.label) for prompt, item in pairs]
    with torch.no_grad():
        return features_and_losses(base.model.eval(), pad_rows(rows, 0))[1]


def test_seen_whole_a_prompt_has_the_loss_it_has_in_the_whole_model() -> None:
    whole, upper = llama(), llama()
    prompts = encoder_of(whole).prompts(TASK, [item.sentence for item in TASK.train[:8]])
    torch.testing.assert_close(losses(upper, cut(upper, WHOLE)), losses(whole, prompts))


def test_a_window_shows_the_last_positions_and_states_are_read_from_the_disk(
    tmp_path: Path,
) -> None:
    first, second = llama(), llama()
    numbered = cut(first, 3, tmp_path)
    assert [len(numbers) for numbers in numbered] == [3] * 8
    assert torch.cat(numbered).tolist() == list(range(24))
    second.model.get_decoder().layers[0].forward = None  # nothing is read a second time
    cut(second, 3, tmp_path)
    torch.testing.assert_close(
        first.model.get_input_embeddings().weight, second.model.get_input_embeddings().weight
    )


def test_only_the_upper_blocks_train() -> None:
    base = llama()
    cut(base, 3)
    assert all(name.startswith("model.layers.0.") for name in trainable(base.model))
    assert len(base.model.model.layers) == 1


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be cut"):
        cut(t5(), 3)
    base = llama()
    with pytest.raises(DataError, match="2 blocks, so trained_blocks is 1 to 1, got 2"):
        cut_trunk(base.model, [], blocks=2, window=1, tokens=1, home=None, weights="w")


def test_the_likeliest_label_may_be_right_where_the_answer_is_not() -> None:
    base = llama()
    encoder = encoder_of(base)
    part = build_stream(corpus(), ["topic"], 0, cap=10, tests_per_task=20).tasks[0]
    prompts = encoder.prompts(part.task, [item.sentence for item in part.judged])
    measured = measure_accuracy(base.model, encoder, part, prompts, tokens=400)
    # Random weights hardly ever write a label, but one of four is always the likeliest.
    assert measured.likely is not None
    assert measured.exact <= measured.likely
    likely = [
        min((_loss(base, encoder, prompt, label), label) for label in part.task.labels)[1]
        for prompt in prompts
    ]
    right = sum(a == item.label for a, item in zip(likely, part.judged, strict=True))
    assert measured.likely == pytest.approx(right / 20)


def _loss(base: BaseModel, encoder: PromptEncoder, prompt: torch.Tensor, label: str) -> float:
    with torch.no_grad():
        batch = pad_rows([encoder.row(prompt, label)], 0)
        return float(features_and_losses(base.model.eval(), batch)[1])


def test_a_run_with_a_trunk_shows_texts_and_averages_its_tail() -> None:
    config = brief("sphere", rank=2, answer_tokens=1, trained_blocks=1, tail=1, cap=64)
    job = InstructJob(config, corpus(), llama())
    train(job)
    results = job.results()["accuracy"]
    assert len(results["tail"]) == len(results["likely_tail"]) == 1
    assert results["tail"][0] == pytest.approx(sum(results["values"][-1]) / 3)
    shown = job._shown(torch.arange(4))
    assert all("Answer:" in text for text in shown.texts or ())
