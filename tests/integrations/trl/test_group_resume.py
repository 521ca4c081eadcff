"""A GRPO training that was cut short ends as if it had not been, to the last bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.training import history, same_weights, weights
from integrations.trl.grpo import problems, trainer
from language import tiny
from states import spelled

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
REPLAY: dict[str, Any] = {"capacity": 6, "pool": 4}


def same_states(one: Any, other: Any) -> bool:
    return spelled(one.state_dict()) == spelled(other.state_dict())


@pytest.mark.parametrize("adapter", [False, True])
def test_a_resumed_training_equals_the_uninterrupted_one(adapter: bool, tmp_path: Path) -> None:
    def build(folder: str) -> Any:
        model: Any = tiny.qwen2(dropout=0.1)
        if adapter:
            model = tiny.with_lora(model)
        return trainer(tmp_path / folder, replay=REPLAY, model=model, **SAVING)

    whole = build("a")
    whole.train()
    # A copy elsewhere, as after a move to another machine.
    saved = shutil.copytree(tmp_path / "a" / "checkpoint-3", tmp_path / "b" / "kept")
    rest = build("c")
    rest.train(resume_from_checkpoint=str(saved))
    assert same_weights(weights(whole), weights(rest))
    assert same_states(whole.replay, rest.replay)
    for one, other in zip(history(whole)[:-1], history(rest)[:-1], strict=True):
        replayed = {name: one[name] for name in one if name.startswith("replay/") or name == "step"}
        assert replayed.items() <= other.items()
    assert {"replay.json", "replay.safetensors"} <= {path.name for path in saved.iterdir()}


def test_the_last_checkpoint_of_the_output_folder_will_do(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "a", replay=REPLAY, **SAVING)
    whole.train()
    shutil.copytree(tmp_path / "a" / "checkpoint-3", tmp_path / "b" / "checkpoint-3")
    rest = trainer(tmp_path / "b", replay=REPLAY, **SAVING)
    rest.train(resume_from_checkpoint=True)
    assert same_weights(weights(whole), weights(rest))
    assert same_states(whole.replay, rest.replay)


def test_states_go_from_hand_to_hand(tmp_path: Path) -> None:
    one = trainer(tmp_path, replay=REPLAY, max_steps=3, logging_steps=100)
    one.train()
    state = one.replay.state_dict()
    other = trainer(tmp_path, replay=REPLAY, model=tiny.qwen2(seed=1))
    other.replay.load_state_dict(state)
    assert same_states(one.replay, other.replay)
    other.replay.begin()  # embeddings stay those of the first start
    assert torch.equal(one.replay.embeddings, other.replay.embeddings)
    assert one.replay.weigher.selection == other.replay.weigher.selection
    assert other.replay.metrics() == one.replay.metrics()
    # Copies: training on does not reach into a state that was taken.
    held = state["memory"]["held"].clone()
    other.replay.memory.offer(range(8))
    assert torch.equal(state["memory"]["held"], held)


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    trainer(tmp_path, save_strategy="steps", save_steps=2, max_steps=2).train()
    folder = tmp_path / "checkpoint-2"

    def resume(dataset: Any = None, **replay: Any) -> None:
        again = trainer(tmp_path / "again", replay=replay, dataset=dataset)
        again.train(resume_from_checkpoint=str(folder))

    with pytest.raises(ValueError, match=r"alpha: saved 0.5, now 0.25"):
        resume(alpha=0.25)
    renamed = problems().map(lambda row: {"id": "new-" + row["id"]})
    with pytest.raises(ValueError, match="belongs to another training set"):
        resume(renamed)
    (folder / "replay.json").unlink()
    with pytest.raises(ValueError, match="holds no replay state"):
        resume()
