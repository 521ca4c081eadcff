"""Replay of preferences, through the DPO and the reward trainer of TRL."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset  # type: ignore[import-untyped]  # has no types
from transformers import Qwen2ForSequenceClassification
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from integrations.training import examples, same_weights, tokenizer, weights
from language import tiny
from sphere_replay.integrations.trl import PairReplayMixin, SphereDPOTrainer
from sphere_replay.randomness import generator_for, globally_seeded
from states import spelled


class SphereRewardTrainer(PairReplayMixin, RewardTrainer):
    """As the page says."""


def preferences(count: int = 32) -> Dataset:
    rows = examples(count)
    return Dataset.from_list(
        [
            {
                "prompt": row["prompt"],
                "chosen": row["completion"],
                "rejected": other["completion"] + " white",
            }
            for row, other in zip(rows, reversed(rows), strict=True)
        ]
    )


def model_for(base: Any) -> Any:
    model = tiny.qwen2()
    if not issubclass(base, RewardTrainer):
        return model
    classifier: Any = Qwen2ForSequenceClassification
    model.config.num_labels = 1
    with globally_seeded(generator_for(0, "head")):
        return classifier(model.config)


def trainer(base: Any, folder: Path, replay: Any = None, **options: Any) -> Any:
    kind = RewardConfig if issubclass(base, RewardTrainer) else DPOConfig
    common: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "max_steps": 5,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
        "dataloader_pin_memory": False,
    }
    given: dict[str, Any] = {} if replay is None else {"replay": replay}
    if kind is DPOConfig:
        given["ref_model"] = tiny.qwen2(seed=1)
    return base(
        model=model_for(base),
        args=kind(**(common | options)),
        train_dataset=preferences(),
        processing_class=tokenizer(),
        **given,
    )


REPLAY = {"capacity": 8, "pool": 6, "every": 2, "replay_batch": 2}
BOTH = pytest.mark.parametrize(
    ("base", "plain"), [(SphereDPOTrainer, DPOTrainer), (SphereRewardTrainer, RewardTrainer)]
)


@BOTH
def test_the_replayed_loss_is_the_trainers_own(base: Any, plain: Any, tmp_path: Path) -> None:
    training = trainer(base, tmp_path, REPLAY)
    training.train()
    session, logged = training.replay, training.state.log_history[-2]
    assert len(session.memory) == 8
    assert logged["replay/loss"] > 0
    assert logged["replay/ess"] <= 6
    rows = session.memory.rows(torch.arange(4))
    one_by_one = session.examples.batch(rows, torch.device("cpu"))
    with torch.no_grad():
        features, losses = session.examples.evaluate(training.model, one_by_one)
    assert features.shape == (4, 16)
    # TRL's mean over a batch is the mean of our losses.
    together = training.data_collator(
        [
            {
                "prompt_ids": [],
                "chosen_ids": row["chosen_input_ids"].tolist(),
                "rejected_ids": row["rejected_input_ids"].tolist(),
            }
            for row in rows
        ]
    )
    if "completion_mask" in together:
        masks = [row[f"{side}_completion_mask"] for side in ("chosen", "rejected") for row in rows]
        together["completion_mask"] = torch.nn.utils.rnn.pad_sequence(masks, batch_first=True)
    with torch.no_grad():
        mean = training.compute_loss(training.model, together)
    torch.testing.assert_close(losses.mean(), mean, rtol=1e-4, atol=1e-6)


@BOTH
def test_nothing_but_the_gradient_changes(base: Any, plain: Any, tmp_path: Path) -> None:
    silent = trainer(base, tmp_path, {**REPLAY, "strength": 0.0})
    ordinary = trainer(plain, tmp_path)
    silent.train()
    ordinary.train()
    assert same_weights(weights(silent), weights(ordinary))
    for one, other in zip(silent.state.log_history, ordinary.state.log_history, strict=True):
        own = {k: v for k, v in one.items() if "replay/" not in k and "time" not in k}
        same = {k: other[k] for k in own if "per_second" not in k}
        assert {k: own[k] for k in same} == same


def test_a_resumed_training_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    whole = trainer(SphereDPOTrainer, tmp_path / "a", REPLAY, **saving)
    whole.train()
    rest = trainer(SphereDPOTrainer, tmp_path / "b", REPLAY)
    rest.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert same_weights(weights(whole), weights(rest))
    assert spelled(whole.replay.state_dict()) == spelled(rest.replay.state_dict())


def test_what_has_no_tokens_is_refused(tmp_path: Path) -> None:
    training = trainer(SphereDPOTrainer, tmp_path, REPLAY, precompute_ref_log_probs=True)
    with pytest.raises(ValueError, match="leave precompute_ref_log_probs, margins and images out"):
        training.train()


def test_a_pair_is_no_label(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a pair of answers is no label: take select='sphere'"):
        trainer(SphereDPOTrainer, tmp_path, REPLAY | {"select": "sphere-calibrated"})
