"""The benchmark of allocations compares equals, at sizes where all of them can take part."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sphere_replay
from benchmarks import before, harness, timing
from benchmarks.allocate import BENCHMARK, Plan, measure, ratios, workload
from benchmarks.conditions import busy_process
from benchmarks.harness import Cell, Target
from benchmarks.inputs import inputs
from benchmarks.naive import (
    Allocator,
    keops_weights,
    naive_weights,
    pot_weights,
    topk_weights,
)
from benchmarks.rendering import Progress
from sphere_replay import Allocation, Sphere, allocate
from sphere_replay.errors import UsageError


@pytest.fixture(autouse=True)
def gentle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the threads that the tests were given."""
    monkeypatch.setattr(timing, "available_threads", torch.get_num_threads)


needs_linux = pytest.mark.skipif(
    not (timing.PROCESS / "clear_refs").exists(), reason="only Linux tells a process its peak"
)


@pytest.mark.parametrize(("size", "dim"), [(2, 4), (20, 8), (101, 8), (300, 16), (400, 100)])
def test_naive_transcription_agrees_with_the_library(size: int, dim: int) -> None:
    increments, features = inputs(size, dim)
    expected = allocate(increments, features, Sphere.vision()).weights
    torch.testing.assert_close(naive_weights(increments, features), expected, rtol=1e-4, atol=0)


def coherent_risk(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Increments that follow the features, so that weights are far from uniform."""
    generator = torch.Generator().manual_seed(size)
    features = torch.randn(size, 3, generator=generator)
    side = torch.nn.functional.normalize(features, dim=1)[:, 0]
    return 3 * side + 0.1 * torch.randn(size, generator=generator), features


@pytest.mark.parametrize("transcription", [naive_weights, topk_weights])
@pytest.mark.parametrize("size", [20, 40, 301])
def test_transcriptions_agree_where_weights_are_far_from_uniform(
    size: int, transcription: Allocator
) -> None:
    increments, features = coherent_risk(size)
    expected = allocate(increments, features, Sphere.vision()).weights
    assert float(expected.max()) > 1.5 * float(expected.min())
    torch.testing.assert_close(transcription(increments, features), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("package", "peer"), [("ot", pot_weights), ("pykeops", keops_weights)])
def test_peers_agree_with_the_library(package: str, peer: Allocator) -> None:
    if package not in sys.modules:
        pytest.importorskip(package)
    increments, features = coherent_risk(200)
    expected = allocate(increments, features, Sphere.vision()).weights
    torch.testing.assert_close(peer(increments, features), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["dense", "tiled", "unkept"])
def test_every_geometry_solves_the_same_problem(name: str) -> None:
    increments, features = inputs(700, 16)
    expected = allocate(increments, features, Sphere.vision()).weights
    result = workload(name, 700, 16)()
    assert isinstance(result, Allocation)
    torch.testing.assert_close(result.weights, expected, rtol=1e-5, atol=0)


def test_inputs_are_repeatable_and_a_tenth_of_them_are_spikes() -> None:
    increments, features = inputs(500, 8)
    assert torch.equal(increments, inputs(500, 8)[0])
    assert torch.equal(features, inputs(500, 8)[1])
    assert int((increments > 0.7).sum()) == 50
    assert features.dtype == torch.float32


def test_default_plan_leaves_out_what_would_take_too_long() -> None:
    cells = list(Plan().cells())
    assert len(cells) == 6 * 3 + 1
    assert [dim for size, dim in cells if size == 32000] == [512]
    assert [dim for _, dim in Plan(sizes=(32000,), dims=(64, 100)).cells()] == [100]


def test_limits_decide_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PROCESS", Path("/nowhere"))
    plan = Plan(
        sizes=(20, 40, 60, 80),
        dims=(4,),
        naive_up_to=20,
        gemm_into_up_to=40,
        passes_up_to=20,
        tiled_from=40,
        dense_up_to=60,
        peers_up_to=0,
        least_seconds=0,
    )
    takers = [set(cell["seconds"]) for cell in measure(plan, Progress())]
    assert takers[0] == {"sphere", "gemm", "naive", "topk", "gemm_into", "passes"}
    assert takers[1] == {"sphere", "gemm", "gemm_into", "dense", "tiled", "unkept"}
    assert takers[2] == {"sphere", "gemm", "dense", "tiled", "unkept"}
    assert takers[3] == {"sphere", "gemm", "tiled"}


def test_an_earlier_tree_takes_part_in_a_process_of_its_own() -> None:
    tree = Path(sphere_replay.__file__).parent.parent
    plan = replace(BENCHMARK.quick, sizes=(20,), dims=(4,), before=tree, least_seconds=0)
    (found,) = measure(replace(plan, busy_at=(), trained_at=()), Progress())
    seconds = found["seconds"]
    assert found["ratios"]["before / sphere"] == seconds["before"] / seconds["sphere"]


def test_a_folder_without_an_earlier_tree_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="usually src"),
        before.allocations(tmp_path, size=20, dim=4),
    ):
        pass


def test_an_earlier_tree_is_called_by_its_commit_or_else_its_folder(tmp_path: Path) -> None:
    assert before.described(tmp_path) == tmp_path.name
    (tmp_path / "file").write_text("text")
    identity = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org")
    for words in (("init", "-q"), ("add", "file"), (*identity, "commit", "-q", "-m", "A file")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert re.fullmatch(r"commit [0-9a-f]+ of \d{4}-\d\d-\d\d", before.described(tmp_path))


def cell(size: int, dim: int, peak: float | None = None, **seconds: float) -> Cell:
    return {"m": size, "d": dim, "ratios": ratios(seconds), "peak_mib": {"sphere": peak}}


def judged(cells: list[Cell]) -> list[Target]:
    return [target.judged(cells) for target in BENCHMARK.targets]


def test_targets_take_the_worst_cell() -> None:
    naive, gemm, memory, tiled, *further = judged(
        [
            cell(1000, 512, sphere=1.0, naive=2.0),
            cell(2000, 512, sphere=1.0, naive=9.0),
            cell(4000, 512, sphere=1.0, naive=5.0, gemm=0.4),
            cell(16000, 100, sphere=3.0, tiled=3.0, dense=2.0),
            cell(16000, 512, sphere=3.0, tiled=3.0, dense=1.5),
            cell(32000, 512, peak=300.0, sphere=9.0),
        ]
    )
    assert (naive.measured, naive.met) == (5.0, True)
    assert (gemm.measured, gemm.met) == (2.5, False)
    assert (memory.measured, memory.met) == (300.0, False)
    assert (tiled.measured, tiled.met) == (2.0, True)
    assert [target.met for target in further] == [None] * 7


def test_further_cells_have_targets_of_their_own() -> None:
    *usual, naive, gemm, trained, small, wide, halved, _ = judged(
        [
            {**cell(4000, 512, sphere=1.0, naive=2.0, gemm=0.5), "case": "busy"},
            {**cell(4000, 512, sphere=1.4, normal=1.0, gemm=0.1), "case": "trained"},
            {**cell(500, 100, sphere=9.0, gemm=1.0), "case": "calibrated"},
            cell(500, 100, sphere=5.0, gemm=1.0, before=9.0),
        ]
    )
    assert (usual[0].measured, usual[1].measured) == (None, None)
    assert (naive.measured, naive.met) == (2.0, False)
    assert (gemm.measured, gemm.met) == (2.0, True)
    assert (trained.measured, trained.met) == (1.4, False)
    assert (small.measured, wide.measured) == (5.0, None)
    assert (halved.measured, halved.met) == (1.8, False)


def test_further_cells_are_among_the_sizes_that_are_measured() -> None:
    cells = set(Plan().further_cells())
    assert ("busy", 4000, 512) in cells
    assert ("busy", 4000, 100) not in cells
    assert {("calibrated", 500, 100), ("trained, calibrated", 4000, 512)} < cells
    assert list(Plan(sizes=(1000,)).further_cells()) == []


def test_further_cells_compare_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.conditions._EPOCHS", 1)
    monkeypatch.setattr("benchmarks.conditions._SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(timing, "PROCESS", Path("/nowhere"))
    at = (60,)
    plan = replace(BENCHMARK.quick, sizes=at, dims=(8,), least_seconds=0.0)
    plan = replace(plan, busy_at=at, trained_at=at, calibrated_at=at)
    _, *further = measure(plan, Progress())
    found = {cell["case"]: set(cell["ratios"]) for cell in further}
    assert found["busy"] == {"naive / sphere", "topk / sphere", "sphere / gemm"}
    assert found["trained"] == found["trained, calibrated"]
    assert found["trained"] == {"sphere / gemm", "trained / normal"}
    assert found["calibrated"] == {"sphere / gemm"}


def test_the_busy_process_has_a_session_of_its_own_and_ends() -> None:
    with busy_process() as pid:
        assert os.getsid(pid) == pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_targets_that_were_not_measured_are_neither_met_nor_missed() -> None:
    assert [target.met for target in judged([cell(500, 100, sphere=1.0)])] == [None] * 11


@needs_linux
def test_peaks_of_both_versions_are_part_of_a_cell() -> None:
    plan = replace(BENCHMARK.quick, sizes=(1500,), dims=(8,), dense_up_to=0, least_seconds=0.0)
    (found,) = measure(plan, Progress())
    ours, naive = found["peak_mib"]["sphere"], found["peak_mib"]["naive"]
    if ours is None or naive is None:
        pytest.skip("this system refuses to reset the high-water mark")
    matrix = 1500**2 * 4 / 2**20
    # Half of C and the search's panel here; C, its sorted copy and more there.
    assert ours < 3 * matrix
    assert naive > 4 * matrix


def test_cells_have_times_and_the_ratios_of_those_who_took_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "PROCESS", Path("/nowhere"))
    plan = replace(BENCHMARK.quick, sizes=[60, 20], dims=(8,), tiled_from=60, least_seconds=0.0)
    report = harness.measure("allocate", BENCHMARK, plan, Progress())
    small, large = report.cells
    assert (small["m"], small["d"], large["m"]) == (20, 8, 60)
    assert small["rounds"] >= 3
    assert small["ratios"]["naive / sphere"] == pytest.approx(
        small["seconds"]["naive"] / small["seconds"]["sphere"]
    )
    assert "tiled / dense" in large["ratios"]
    assert "tiled / dense" not in small["ratios"]
    assert small["peak_mib"] == {"sphere": None, "naive": None}
    columns, rows = report.table
    assert columns[:5] == ("m", "d", "sphere ms", "naive / sphere", "topk / sphere")
    assert "sphere MiB" not in columns
    assert [row[:2] for row in rows] == [("20", "8"), ("60", "8")]
    assert report.command[4:6] == ("--sizes", "60")


def test_quick_plan_exercises_tiles_and_the_naive_version() -> None:
    assert max(BENCHMARK.quick.sizes) >= BENCHMARK.quick.tiled_from
    assert max(BENCHMARK.quick.sizes) <= BENCHMARK.quick.naive_up_to
