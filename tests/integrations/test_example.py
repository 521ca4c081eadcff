"""The examples run as they stand, and show what they are there to show."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from accelerate.commands.config import (  # type: ignore[import-untyped]  # has no types
    load_config_from_file,
)

from integrations.training import examples, tokenizer
from language import tiny

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(monkeypatch: pytest.MonkeyPatch, name: str, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *options])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_four_ways_to_replay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "continual_sft.py", "--steps", "60", "--seeds", "1")
    lines = capsys.readouterr().out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("replay "))
    header, *rows = [line for line in lines[start:] if not line.startswith("{")][:5]
    assert header.split()[:3] == ["replay", "first", "second"]
    shares = {row.split()[0]: [int(cell.rstrip("%")) for cell in row.split()[1:3]] for row in rows}
    assert list(shares) == ["uniform", "none", "mir", "sphere"]
    assert all(second > 50 for _, second in shares.values())  # the last task was learnt
    for select in ("uniform", "mir", "sphere"):
        assert shares[select][0] > shares["none"][0] + 30


def test_the_sharded_example_on_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny.qwen2().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    rows = [{k: row[k] for k in ("prompt", "completion")} for row in examples(16)]
    for name, part in (("1-warm", rows[:8]), ("2-color", rows[8:])):
        for split in ("train", "test"):
            lines = "\n".join(json.dumps(row) for row in part)
            (tmp_path / f"{name}.{split}.jsonl").write_text(lines)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    options = {
        "model": tmp_path / "model",
        "tasks": tmp_path,
        "output_dir": tmp_path / "out",
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "rank": 2,
        "capacity": 8,
        "pool": 8,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }
    line = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    run(monkeypatch, "continual_sft_fsdp.py", *line)
    printed = capsys.readouterr().out
    assert "after 2-color" in printed
    assert "forgetting" in printed
    assert (tmp_path / "out" / "tasks.png").is_file()


def test_the_configuration_is_accelerates() -> None:
    config = load_config_from_file(str(EXAMPLES / "fsdp.yaml"))
    assert config.fsdp_config["fsdp_version"] == 2
    assert config.distributed_type == "FSDP"
