"""Two processes end with the same bits, and with what one process would have got."""

from pathlib import Path

import pytest
import torch

from integrations import two_ranks
from integrations.pairs import check_equal, check_logs_agree, launch, part
from integrations.training import trainer, weights
from sphere_replay.storage.trees import flatten


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = Path(two_ranks.__file__)
    return launch(script, tmp_path_factory.mktemp("ranks"), "train")


@pytest.mark.parametrize("name", ["whole", "rest"])
def test_the_ranks_are_bit_identical(results: Path, name: str) -> None:
    first, second = part(results, f"{name}-0"), part(results, f"{name}-1")
    check_equal(first, second)
    check_logs_agree(first, second)


def test_a_resumed_pair_equals_the_uninterrupted_one(results: Path) -> None:
    check_equal(part(results, "whole-0"), part(results, "rest-0"))


def test_two_processes_do_what_one_does(results: Path, tmp_path: Path) -> None:
    options = two_ranks.OPTIONS | {"per_device_train_batch_size": 4, "save_strategy": "no"}
    del options["ddp_backend"]
    single = trainer("causal", tmp_path, replay=two_ranks.REPLAY, **options)
    single.train()
    both, replay, log = part(results, "whole-0")
    mine = single.replay.state_dict()
    # Bit for bit: what is remembered, who was a candidate, and where the random streams stand.
    rounded = {"engine/weigher/weights"}
    (one, _), (two, _) = flatten(mine), flatten(replay)
    assert one.keys() == two.keys() > rounded
    for name in two.keys() - rounded:
        assert torch.equal(one[name], two[name]), name
    # Up to rounding: sums over two processes are sums in another order.
    for name, value in weights(single).items():
        torch.testing.assert_close(both[name], value, rtol=1e-3, atol=1e-5)
    assert replay["engine"]["weigher"]["mass"] == pytest.approx(
        mine["engine"]["weigher"]["mass"], abs=0.01
    )
    logged = [entry for entry in single.state.log_history if "replay/loss" in entry]
    for entry, other in zip(logged, log[1:], strict=True):
        assert entry["replay/loss"] == pytest.approx(other["replay/loss"], rel=1e-3)
