"""Engines other than generate(), prompts other than text, embeddings other than the model's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.training import tokenizer
from integrations.trl.grpo import PROGRAMS, Witness, corrected, log_probabilities, problems, trainer
from language import tiny
from sphere_replay.integrations.trl import paper_settings

CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


class Engine:
    """Stands for vLLM, which needs a GPU: samples from another distribution, and says so."""

    def __init__(self) -> None:
        self.synced = 0
        self.asked: list[int] = []
        self._generator = torch.Generator().manual_seed(0)

    def sync_weights(self) -> None:
        self.synced += 1

    def generate(self, prompts: list[Any], num_generations: int, **rest: Any) -> tuple[Any, ...]:
        self.asked.append(len(prompts))
        lengths = torch.randint(1, 7, (len(prompts),), generator=self._generator).tolist()
        programs = [
            torch.randint(2, tiny.VOCABULARY, (n,), generator=self._generator).tolist()
            for n in lengths
        ]
        logs = [
            [[float(x)] for x in -3.5 - 2 * torch.rand(n, generator=self._generator)]
            for n in lengths
        ]
        return None, programs, logs, None


def test_an_engine_of_its_own_is_synced_once_and_corrected(tmp_path: Path) -> None:
    training, engine = trainer(tmp_path, max_steps=4), Engine()
    vars(training).update(use_vllm=True, vllm_generation=engine, _last_loaded_step=-1)
    witness = Witness(training)
    training.train()
    assert engine.synced == 4  # once an update: candidates are sampled by the same weights
    assert engine.asked == [8, 8, 2 * PROGRAMS, 8, 4 * PROGRAMS, 8, 5 * PROGRAMS]  # all at once
    model: Any = tiny.qwen2()
    truncated = 0
    for update, candidates in enumerate(witness.candidates):
        for group in candidates.own.values() if candidates is not None else ():
            model.load_state_dict(witness.weights[update])
            inputs = group.inputs
            for k in range(PROGRAMS):
                length = int(inputs["completion_mask"][k].sum())
                prompt = inputs["prompt_ids"][k][inputs["prompt_mask"][k].bool()]
                logs = log_probabilities(model, prompt, inputs["completion_ids"][k, :length])
                sampler = inputs["sampling_per_token_logps"][k, :length].tolist()
                wanted = [corrected(p, q) for p, q in zip(logs.tolist(), sampler, strict=True)]
                got = inputs["importance_sampling_ratio"][k, :length].tolist()
                assert got == pytest.approx(wanted, rel=1e-3)
                truncated += wanted.count(2.0)
    assert truncated > 5
    assert training.state.log_history[-2]["replay/draws"] == 3


def test_generate_gets_candidates_in_batches_of_the_streams_size(tmp_path: Path) -> None:
    sizes: list[int] = []

    def reward(completion_ids: Any, **columns: Any) -> list[float]:
        sizes.append(len(completion_ids))
        return [float(sum(ids) % 2) for ids in completion_ids]

    trainer(tmp_path, reward=reward).train()
    assert sizes == [8, 8, 8, 8, 8, 8, 8, 8, 8, 4]  # 0, 2, 4 and 5 candidates


def test_conversations_are_sampled_through_the_chat_template(tmp_path: Path) -> None:
    words = tokenizer()
    words.chat_template = CHAT
    spoken = problems().map(lambda row: {"messages": [{"role": "user", "content": row["prompt"]}]})
    dataset = spoken.remove_columns("prompt").rename_column("messages", "prompt")
    training = trainer(tmp_path, dataset=dataset, words=words)
    training.train()
    assert training.state.log_history[-2]["replay/draws"] == 3
    plain = trainer(tmp_path)
    plain.replay.begin()
    training.replay.embeddings = None
    training.model.load_state_dict(plain.model.state_dict())
    training.replay.begin()
    torch.testing.assert_close(training.replay.embeddings, plain.replay.embeddings)


def test_given_embeddings_are_centered_and_used(tmp_path: Path) -> None:
    raw = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)) + 3
    training = trainer(tmp_path, embeddings=raw, max_steps=3)
    training.train()
    unit = torch.nn.functional.normalize(raw, dim=1)
    centered = torch.nn.functional.normalize(unit - unit.mean(0), dim=1)
    torch.testing.assert_close(training.replay.embeddings, centered)
    assert training.state.log_history[2]["replay/mass"] > 0
    with pytest.raises(ValueError, match=r"one row for each of the 8 problems.* got \[7, 5\]"):
        trainer(tmp_path, embeddings=raw[:7])
    with pytest.raises(ValueError, match="embeddings must be finite"):
        trainer(tmp_path, embeddings=raw / 0)


def test_a_single_problem_can_be_replayed(tmp_path: Path) -> None:
    training = trainer(tmp_path, dataset=problems(1, passes=8), max_steps=3)
    training.train()
    log = training.state.log_history[2]
    assert log["replay/memory"] == 1
    assert log["replay/draws"] == (0 if log["replay/fallback"] else 3)


def test_the_papers_settings_fill_an_update() -> None:
    settings = paper_settings()
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] == 64
    assert settings["loss_type"] == "dr_grpo"
    assert settings["max_completion_length"] == 512
    assert settings["vllm_importance_sampling_clip_max"] == 2.0
    shared = paper_settings(per_device=16, processes=2)
    assert shared["gradient_accumulation_steps"] == 2
    with pytest.raises(ValueError, match="64 is a multiple of 24"):
        paper_settings(per_device=24)
