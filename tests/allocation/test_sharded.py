"""Memories on several ranks: the weights of one process, the same bits everywhere, no hang."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from allocation.sharded_ranks import CASES, DRAWS, RANKS, shards
from sphere_replay import allocate
from sphere_replay.allocation.sharded import allocate_sharded
from sphere_replay.storage.saved import load_tree
from states import spelled
from tensors import seeded

SCRIPT = Path(__file__).with_name("sharded_ranks.py")
TESTS = SCRIPT.parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks have written to."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=650,
    )
    codes = json.loads((folder / "codes.json").read_text())
    assert codes["work"] == [0] * RANKS, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return [load_tree(folder, f"rank-{rank}")[1] for rank in range(RANKS)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_ranks_have_the_weights_of_one_process(
    results: list[dict[str, Any]], name: str, ranks: int
) -> None:
    recipe, (features, increments, labels) = CASES[name]
    one = allocate(
        increments,
        features,
        recipe,
        labels=labels if recipe.agreement else None,
        generator=seeded(8),
    )
    parts = (
        [part[name] for part in results] if ranks == 4 else [r["pair"][name] for r in results[2:]]
    )
    tolerance = 1e-5 if features.dtype == torch.float32 else 1e-9
    for own, part in zip(shards(len(increments), ranks), parts, strict=True):
        torch.testing.assert_close(
            part["weights"], one.weights[own], rtol=tolerance, atol=tolerance / len(increments)
        )
        torch.testing.assert_close(
            part["neighbors"], one.effective_neighbors, rtol=tolerance, atol=tolerance
        )
        assert part["scalars"] == pytest.approx(
            [one.eps_s, one.eps_t, one.temperature, one.mass], rel=tolerance
        )


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_have_the_same_bits_and_the_same_draw(
    results: list[dict[str, Any]], name: str
) -> None:
    for group in ([part[name] for part in results], [part["pair"][name] for part in results[2:]]):
        for part in group[1:]:
            assert torch.equal(part["whole"], group[0]["whole"])
            assert torch.equal(part["drawn"], group[0]["drawn"])
        owned = shards(len(group[0]["whole"]), len(group))
        held = [part["held"] + own.start for part, own in zip(group, owned, strict=True)]
        assert torch.equal(torch.cat(held).sort().values, group[0]["drawn"].sort().values)
        assert len(group[0]["drawn"]) == DRAWS


def test_a_second_time_and_with_more_threads_they_are_the_same_bits(
    results: list[dict[str, Any]],
) -> None:
    for part in results:
        assert spelled(part["again"]) == spelled(part["clusters"])


def test_what_is_wrong_on_one_rank_is_said_on_all(results: list[dict[str, Any]]) -> None:
    told = [part["complaint"] for part in results]
    assert told[2].startswith("rank 2: features")
    assert told[0] == told[1] == told[3]
    assert "rank 2 cannot go on" in told[0]


def test_ranks_that_disagree_are_shown_to_all(results: list[dict[str, Any]]) -> None:
    for part in results:
        precision, increments, labels, recipes, scales, states, lists = part["disagreement"]
        assert "features differ between ranks" in precision
        assert "torch.bfloat16" in precision
        assert "torch.float64 and no labels" in increments
        assert "torch.float32 and labels" in labels
        assert "recipes differ between ranks" in recipes
        assert "alpha=0.2" in recipes
        assert "running scales differ between ranks: 1.0, None, 1.0, 1.0" in scales
        assert "states of generators differ" in states
        assert "rank 1" in lists


def test_a_rank_that_dies_ends_all_with_a_message(folder: Path) -> None:
    assert json.loads((folder / "codes.json").read_text())["die"] == [1, 3, 1, 1]
    for rank in (0, 2, 3):
        assert "waited in vain for another one" in (folder / f"said-{rank}").read_text()


def test_without_a_process_group_it_says_so() -> None:
    with pytest.raises(ValueError, match="no process group"):
        allocate_sharded(torch.ones(3), torch.eye(3))
