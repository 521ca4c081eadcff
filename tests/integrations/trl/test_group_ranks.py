"""GRPO with replay on two processes: the same bits on both, and the gradient one would have."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from integrations.pairs import check_equal, check_logs_agree, launch, part
from integrations.trl.grpo import surrogate
from language import tiny


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = Path(__file__).with_name("ranks.py")
    return launch(script, tmp_path_factory.mktemp("ranks"), "train")


@pytest.mark.parametrize("name", ["whole", "rest"])
def test_the_ranks_are_bit_identical(results: Path, name: str) -> None:
    first, second = part(results, f"{name}-0"), part(results, f"{name}-1")
    check_equal(first, second)
    check_logs_agree(first, second)


def test_a_resumed_pair_equals_the_uninterrupted_one(results: Path) -> None:
    check_equal(part(results, "whole-0"), part(results, "rest-0"))


def test_gradients_are_those_of_all_groups_together(results: Path) -> None:
    model: Any = tiny.qwen2()
    replaying = set()
    for update in range(6):
        ranks = [load_file(results / f"whole-{rank}" / f"{update}.safetensors") for rank in (0, 1)]
        model.load_state_dict(under(ranks[0], "weights."))
        parts, counts = [], 0
        for rank, tensors in enumerate(ranks):
            for micro in (0, 1):  # two micro-batches on two processes
                parts.append(surrogate(model, under(tensors, f"stream.{micro}.")) / 4)
            for place in range(5):
                group = under(tensors, f"replay.{place}.")
                if group:
                    count = int(group.pop("count"))
                    parts.append(surrogate(model, group) * count / 3)
                    counts += count
                    replaying.add(rank)
        assert counts in (0, 3)
        model.zero_grad()
        torch.autograd.backward(torch.stack(parts).sum())
        for name, parameter in model.named_parameters():
            for tensors in ranks:
                seen = tensors[f"gradient.{name}"]
                torch.testing.assert_close(seen, parameter.grad, rtol=1e-3, atol=1e-6)
    assert replaying == {0, 1}
