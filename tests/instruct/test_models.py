"""Models: adapters where the paper puts them, and a tiny one that is built once."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from instruct.small import SPEC, corpus, llama, save, t5, tokenizer
from sphere_replay.errors import DataError
from sphere_replay.instruct.encoding import PromptEncoder
from sphere_replay.instruct.evaluation import answers
from sphere_replay.instruct.models import load_base, lora_targets
from sphere_replay.instruct.tiny import (
    TinySpec,
    build_t5,
    cooccurrence_embeddings,
    corpus_texts,
    delete_tokens,
    denoise,
    tiny_folder,
)
from sphere_replay.language.models import BaseModel, trainable, with_adapters
from sphere_replay.randomness import generator_for
from sphere_replay.storage.trees import fingerprint


def adapted(base: BaseModel, rank: int, alpha: int, dropout: float, seed: int = 0) -> Any:
    source = generator_for(seed, "initialization")
    return with_adapters(
        base, source, rank=rank, alpha=alpha, dropout=dropout, targets=lora_targets
    )


def test_lora_of_a_t5_sits_on_queries_and_values_of_all_attentions(tmp_path: Path) -> None:
    """The path of t5-large, on the same architecture in a folder of its own."""
    base = load_base(str(save(t5(), tmp_path)), corpus(), tmp_path)
    assert lora_targets(base.model) == ["q", "v"]
    model = adapted(base, 8, 32, 0.1)
    names = trainable(model)
    owners = {name.split(".lora_")[0].partition("base_model.model.")[2] for name in names}
    assert owners == {
        f"{stack}.block.0.layer.{layer}.{attention}.{projection}"
        for stack, layer, attention in (
            ("encoder", 0, "SelfAttention"),
            ("decoder", 0, "SelfAttention"),
            ("decoder", 1, "EncDecAttention"),
        )
        for projection in ("q", "v")
    }
    assert {tuple(value.shape) for value in names.values()} == {(8, 16), (16, 8)}
    adapter = model.peft_config["default"]
    assert (adapter.r, adapter.lora_alpha, adapter.lora_dropout) == (8, 32, 0.1)


def test_lora_of_a_llama_sits_on_its_projections() -> None:
    base = llama()
    assert lora_targets(base.model) == ["q_proj", "v_proj"]
    model = adapted(base, 4, 8, 0.0)
    assert {name.split(".")[-4] for name in trainable(model)} == {"q_proj", "v_proj"}


def test_adapters_depend_on_the_seed_alone() -> None:
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        first, again, other = (
            fingerprint(adapted(t5(), 2, 4, 0.0, seed).state_dict()) for seed in (0, 0, 1)
        )
        assert torch.equal(torch.get_rng_state(), state)
    assert first == again != other


def test_rank_zero_trains_everything() -> None:
    model = adapted(t5(), 0, 32, 0.1)
    assert trainable(model).keys() == dict(model.named_parameters()).keys()


def test_a_model_without_known_projections_is_refused() -> None:
    with pytest.raises(DataError, match=r"Linear has no query and value.*q_proj/v_proj.*rank 0"):
        lora_targets(torch.nn.Linear(2, 2))


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"(?s)could not load the model .*nowhere.*Name tiny, smoll"
    ):
        load_base(str(tmp_path / "nowhere"), corpus(), tmp_path)


def test_a_tiny_model_is_built_once_and_read_back(tmp_path: Path) -> None:
    first = load_base("tiny", corpus(), tmp_path, tiny=SPEC)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    written = (folder / "model.safetensors").stat().st_mtime_ns
    again = load_base("tiny", corpus(), tmp_path, tiny=SPEC)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert fingerprint(first.model.state_dict()) == fingerprint(again.model.state_dict())
    assert first.tokenizer("the otter")["input_ids"] == again.tokenizer("the otter")["input_ids"]
    other = tiny_folder(corpus(), tmp_path, TinySpec(width=32, feed_forward=32, steps=1, batch=2))
    assert other != folder


def test_base_weights_neither_read_nor_move_the_global_generator(tmp_path: Path) -> None:
    prints = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            state = torch.get_rng_state()
            base = load_base("tiny", corpus(), tmp_path / str(seed), tiny=SPEC)
            prints.append(fingerprint(base.model.state_dict()))
            assert torch.equal(torch.get_rng_state(), state)
    assert prints[0] == prints[1]


def test_denoising_teaches_something() -> None:
    spec = TinySpec(width=32, feed_forward=64, heads=2, steps=60, batch=8, lr=1e-2)
    texts = corpus_texts(corpus(), tokenizer(), 64)
    losses = denoise(build_t5(tokenizer(), spec), tokenizer(), texts, spec)
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_deleted_tokens_are_the_target_and_the_rest_the_input() -> None:
    generator, weights = generator_for(0, "test"), torch.tensor([0.0, 0.0, 1.0, 9.0, 1.0, 0.0])
    text = torch.tensor([5, 2, 3, 4, 1])
    gone = []
    for _ in range(200):
        row = delete_tokens(text, weights, 1, 1, generator)
        target, end = row["labels"].tolist()
        assert end == 1
        assert row["input_ids"].tolist() == [token for token in text.tolist() if token != target]
        gone.append(target)
    row = delete_tokens(text, weights, 9, 1, generator)  # no more than there are to delete
    assert row["input_ids"].tolist() == [5, 1]
    assert sorted(row["labels"].tolist()) == [1, 2, 3, 4]
    assert set(gone) == {2, 3, 4}
    assert gone.count(3) > 120


def test_tokens_that_share_texts_have_near_embeddings() -> None:
    texts = [torch.tensor(ids) for ids in ([0, 1, 2], [0, 1], [1, 2, 0], [3, 4], [4, 3, 5])] * 3
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    found = cooccurrence_embeddings(texts, weights, 3, generator_for(0, "test"))
    unit = found / math.sqrt(3)
    assert unit[0] @ unit[1] > 0.5 > abs(float(unit[0] @ unit[3]))
    assert unit[3] @ unit[4] > 0.5
    assert found[6].abs().max() == 0  # a token without weight has no neighbours
    assert found[:6].pow(2).mean(1).tolist() == pytest.approx([1.0] * 6, rel=1e-3)


def test_headings_are_single_tokens() -> None:
    task = corpus().tasks["topic"]
    encoder = PromptEncoder(tokenizer(), True, 64)
    (ids,) = encoder.prompts(task, ["otter"])
    assert tokenizer().convert_ids_to_tokens(int(ids[0])) == task.head
    assert len(ids) <= 5


@pytest.mark.parametrize("build", [t5, llama])
def test_answers_do_not_depend_on_what_shares_a_batch(build: Callable[[], BaseModel]) -> None:
    base = build()
    encoder = PromptEncoder(base.tokenizer, base.is_encoder_decoder, 64)
    task = corpus().tasks["topic"]
    prompts = encoder.prompts(task, ["the otter", "the otter, the lynx and the heron again", "x"])
    base.model.train()
    together = answers(base.model, encoder, prompts, 4, tokens=4096)
    alone = [answers(base.model, encoder, [prompt], 4, tokens=1)[0] for prompt in prompts]
    assert together == alone
    assert base.model.training
    assert all(together)
