"""The examples run as they stand, and show what they are there to show."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config import (  # type: ignore[import-untyped]  # has no types
    load_config_from_file,
)

from integrations.pairs import environment
from integrations.training import examples, tokenizer
from language import tiny

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARDED = Path(__file__).with_name("fsdp_example.py")


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


@pytest.fixture
def sharded_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A model, two tasks, and the options of the sharded example."""
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
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "capacity": 8,
        "pool": 8,
        "report_to": "none",
        "use_cpu": True,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def test_the_sharded_example_on_one_process(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sharded_line: list[str],
    tmp_path: Path,
) -> None:
    run(monkeypatch, "continual_sft_fsdp.py", *sharded_line, "--rank", "2", "--bf16", "False")
    printed = capsys.readouterr().out
    assert "after 2-color" in printed
    assert "forgetting" in printed
    assert (tmp_path / "out" / "tasks.png").is_file()


def test_the_sharded_example_as_accelerate_launches_it(
    sharded_line: list[str], tmp_path: Path
) -> None:
    """Two processes, bfloat16 and activation checkpointing, as its configuration says."""
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(EXAMPLES / "fsdp.yaml")]
    script = [str(SHARDED), str(EXAMPLES / "continual_sft_fsdp.py")]
    command = [sys.executable, *launch, *script, *sharded_line]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    table = [line.split() for line in done.stdout.splitlines() if line.startswith("after ")]
    assert [row[:2] for row in table] == [["after", "1-warm"], ["after", "2-color"]]
    assert float(table[1][3]) < float(table[0][3])  # the second task was learnt
    assert (tmp_path / "out" / "tasks.png").is_file()
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_the_configuration_is_accelerates() -> None:
    config = load_config_from_file(str(EXAMPLES / "fsdp.yaml"))
    assert config.fsdp_config["fsdp_version"] == 2
    assert config.distributed_type == "FSDP"
