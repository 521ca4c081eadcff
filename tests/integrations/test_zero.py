"""ZeRO-1 and 2 of DeepSpeed on two processes: what the plain trainers do, and the same on both.

Trainings need DeepSpeed: `make test-deepspeed`.
"""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.utils.deepspeed import (  # type: ignore[import-untyped]  # has no types
    HfDeepSpeedConfig,
)

from integrations.pairs import (
    check_close,
    check_death_is_noticed,
    check_equal,
    check_logs_agree,
    launch,
    part,
)
from sphere_replay.integrations.transformers import zero

SCRIPT = Path(__file__).with_name("zero_ranks.py")
KINDS = ("causal", "seq2seq", "sft", "grpo")
STAGES = (1, 2)
needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed: make test-deepspeed"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch(SCRIPT, tmp_path_factory.mktemp("zero"))


@needs_deepspeed
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_training_without_deepspeed(results: Path, kind: str, stage: int) -> None:
    check_close(part(results, f"{kind}-plain-0"), part(results, f"{kind}-{stage}-0"))


@needs_deepspeed
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", [*KINDS, "mixed", "low"])
def test_weights_memory_and_draws_agree_on_both(results: Path, kind: str, stage: int) -> None:
    first, second = part(results, f"{kind}-{stage}-0"), part(results, f"{kind}-{stage}-1")
    check_equal(first, second)
    check_logs_agree(first, second)


@needs_deepspeed
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("low", "kind"), [("mixed", "sft"), ("low", "causal")])
def test_low_precision_is_near(results: Path, low: str, kind: str, stage: int) -> None:
    plain, rounded = part(results, f"{kind}-plain-0"), part(results, f"{low}-{stage}-0")
    for one, other in zip(plain[2], rounded[2], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-2)
        if "replay/increment_p5" in one:
            low_end = one["replay/increment_p5"]
            assert low_end == pytest.approx(other["replay/increment_p5"], rel=0.1, abs=5e-3)


@needs_deepspeed
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_it_ends_with_the_same_bits(results: Path, kind: str, stage: int) -> None:
    check_equal(part(results, f"{kind}-{stage}-0"), part(results, f"{kind}-{stage}-rest-0"))


@needs_deepspeed
def test_a_process_that_dies_does_not_leave_the_other_waiting(tmp_path: Path) -> None:
    check_death_is_noticed(SCRIPT, tmp_path, "die")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimization": {"stage": 3}}, "not with stage 3: .* use FSDP2"),
        ({"zero_optimization": {"stage": 0}}, "not with stage 0"),
        ({"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}, "use bf16=True"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            "leave offload_optimizer out",
        ),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], message: str
) -> None:
    settings = HfDeepSpeedConfig(config)
    stage = config["zero_optimization"]["stage"]
    plugin = SimpleNamespace(zero_stage=stage, hf_ds_config=settings)
    monkeypatch.setattr(zero, "_plugin", lambda: plugin)
    with pytest.raises(ValueError, match=message):
        zero.check_zero()
    with pytest.raises(ValueError, match="SphereCallback does not work with DeepSpeed, because"):
        zero.refuse_zero("SphereCallback", "because")
