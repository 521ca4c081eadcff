"""The benchmark of instruction tuning: its parts add up, and its baseline reads the same tokens."""

from pathlib import Path

import pytest
import torch

from benchmarks import harness
from benchmarks.harness import Report
from benchmarks.instruct import BENCHMARK, Bench, model_of
from benchmarks.rendering import Progress
from benchmarks.stopwatch import PARTS


@pytest.fixture(scope="module")
def report() -> Report:
    return harness.measure("instruct", BENCHMARK, BENCHMARK.quick, Progress(), quick=True)


def test_parts_of_an_update_add_up_to_it(report: Report) -> None:
    cells = {str(cell["figure"]): cell for cell in report.cells}
    parts = [cells[f"its {part}"]["ratio"] for part in PARTS]
    assert sum(parts) == pytest.approx(cells["an update, SPHERE"]["ratio"])


def test_targets_are_about_what_was_measured(report: Report) -> None:
    cells = {str(cell["figure"]): cell["ratio"] for cell in report.cells}
    scoring, padding = report.targets
    assert (scoring.measured, padding.measured) == (cells["scoring a pool"], cells["padding"])
    assert padding.met
    columns, rows = report.table
    assert columns == ("what", "ms", "against", "ratio")
    assert rows[-1] == ("padding", "", "all tokens", f"{cells['padding']:.3f}")
    assert report.setting == "Model: tiny; generated tasks, at most 64 tokens."


def test_two_forwards_read_what_scoring_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(BENCHMARK.quick, tmp_path)
    bench.updates()
    model = model_of(bench._sphere)
    calls: list[tuple[tuple[int, ...], bool]] = []

    def note(module: object, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        calls.append((tuple(kwargs["input_ids"].shape), torch.is_grad_enabled()))

    model.register_forward_pre_hook(note, with_kwargs=True)

    def once(contestants: dict[str, object], **settings: object) -> object:
        for call in contestants.values():
            assert callable(call)
            call()
        raise InterruptedError

    monkeypatch.setattr(harness, "interleave", once)
    with pytest.raises(InterruptedError):
        bench.scoring()
    scored, plain = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    assert sorted(scored) == sorted(plain)
    assert not any(grad for _, grad in calls)
