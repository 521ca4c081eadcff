"""The training benchmark compares like with like, divides time without loss, and says on what."""

import argparse
import copy
import itertools
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks import __main__ as bench
from benchmarks import digits, train
from benchmarks.bare import BareReplay
from benchmarks.digits import random_images, stored_mnist
from benchmarks.steps import StepTimes, time_steps
from benchmarks.stopwatch import PARTS, Stopwatch, divided, threads
from benchmarks.train import (
    FULL_500,
    MLP_500,
    NARROW_500,
    QUICK,
    Cell,
    Plan,
    Scored,
    measure_cells,
    targets,
)
from sphere_replay.errors import UsageError
from sphere_replay.replay import Replay, SphereSelection
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve

TINY = Plan(
    images=3000,
    capacity=64,
    steps=4,
    networks=(Scored(6), Scored(6, 2)),
    least_rounds=2,
    least_seconds=0,
)


@pytest.fixture(autouse=True)
def gentle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No data of the person who runs the tests, and only the threads that were given."""
    monkeypatch.delenv("SPHERE_DATA", raising=False)
    monkeypatch.setattr(train, "all_threads", nullcontext)
    monkeypatch.setattr(train, "QUICK", TINY)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def silent(done: int, total: int, label: str) -> None:
    pass


def bare_loop() -> BareReplay:
    """A stream of 256 images, each of which shows its own position; a memory of 64."""
    images = torch.arange(256).to(torch.uint8)[:, None, None, None].repeat(1, 1, 28, 28)
    return BareReplay(images, torch.arange(256) % 10, capacity=64, replay_batch=64)


def test_bare_loop_fills_its_memory_in_stream_order_and_then_samples() -> None:
    bare = bare_loop()
    order = torch.split(torch.arange(256), 32)
    for indices in order[:2]:
        bare.step(indices)
    assert torch.equal(bare.memory_images, bare.images[:64])
    for indices in order[2:]:
        bare.step(indices)
    positions = bare.memory_images[:, 0, 0, 0].long()
    assert torch.equal(bare.memory_labels, bare.labels[positions])
    assert len(set(positions.tolist())) == 64
    assert int(positions.max()) >= 64
    assert bare.seen == 256


def test_bare_loop_follows_the_sum_of_both_losses() -> None:
    bare = bare_loop()
    bare.step(torch.arange(64))
    expected = copy.deepcopy(bare.network)
    now, then = torch.arange(64, 128), torch.arange(64)  # the whole memory is drawn
    losses = [
        cross_entropy(expected(bare.images[part].float() / 255), bare.labels[part])
        for part in (now, then)
    ]
    gradients = torch.autograd.grad(losses, list(expected.parameters()))
    bare.step(now)
    for before, gradient, after in zip(
        expected.parameters(), gradients, bare.network.parameters(), strict=True
    ):
        torch.testing.assert_close(after, before - 0.1 * gradient)


def test_inner_parts_stop_the_clock_of_the_outer_ones() -> None:
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    watch = Stopwatch(lambda: next(times))
    # From 0 to 15, from 1 to 10, and from 3 to 6.
    with watch.part("rest"), watch.part("draw"), watch.part("scoring"):
        pass
    assert watch.seconds == {"rest": 6.0, "draw": 6.0, "scoring": 3.0, "allocation": 0.0}
    assert sum(watch.seconds.values()) == 15.0


def test_a_part_that_fails_is_closed() -> None:
    now = itertools.count()
    watch = Stopwatch(lambda: float(next(now)))
    with watch.part("rest"), pytest.raises(KeyError), watch.part("draw"):
        raise KeyError
    assert watch.seconds["draw"] == 1.0
    assert watch.seconds["rest"] == 2.0


def job(select: str) -> VisionJob:
    config = resolve("mnist", "er", select, capacity=64, evaluate_every=None)
    return VisionJob(config, random_images(3000))


def test_division_charges_every_part_and_changes_nothing() -> None:
    draw, weigh = Replay.draw, SphereSelection.weigh
    plain, watched = job("sphere"), job("sphere")
    ticks = itertools.count()
    watch = Stopwatch(lambda: float(next(ticks)))
    with threads(1):
        for step in range(3):
            plain.advance(step)
        with divided(watch):
            for step in range(3):
                watched.advance(step)
    assert (Replay.draw, SphereSelection.weigh) == (draw, weigh)
    assert plain.results()["costs"] == watched.results()["costs"]
    for name, values in plain.state_dict()["host"]["network"].items():
        assert torch.equal(values, watched.state_dict()["host"]["network"][name])
    assert all(watch.seconds[part] > 0 for part in PARTS)
    # The clock advances by one at each look: all looks but the first are someone's.
    assert sum(watch.seconds.values()) == next(ticks) - 1


def test_uniform_replay_neither_scores_nor_allocates() -> None:
    runner = job("uniform")
    ticks = itertools.count()
    watch = Stopwatch(lambda: float(next(ticks)))
    with threads(1), divided(watch):
        for step in range(3):
            runner.advance(step)
    assert watch.seconds["scoring"] == watch.seconds["allocation"] == 0
    assert watch.seconds["draw"] == 2


def test_shares_of_a_step_add_up() -> None:
    with threads(1):
        times = time_steps(
            random_images(3000), capacity=64, steps=4, least_rounds=2, least_seconds=0
        )
    assert set(times.seconds) == {"bare", "er", "sphere"}
    assert (times.batch, times.rounds) == (64, 2)
    assert set(times.shares) == set(PARTS)
    assert min(times.shares.values()) > 0
    assert sum(times.shares.values()) == pytest.approx(1)


def made_up(*_data: object, **_settings: object) -> StepTimes:
    shares = {"scoring": 0.5, "allocation": 0.125, "draw": 0.125, "rest": 0.25}
    return StepTimes({"bare": 0.5, "er": 1.0, "sphere": 4.0}, shares, batch=64, rounds=9)


def test_cells_follow_from_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "time_steps", made_up)
    er, sphere = measure_cells(Plan(networks=()), random_images(20), silent)
    assert (er.figure, er.against, er.ratio, er.images_per_second) == ("ER", "bare loop", 2, 64)
    assert er.parts == {}
    assert (sphere.against, sphere.ratio, sphere.images_per_second) == ("ER", 4, 16)
    assert sphere.parts == {"scoring": 2, "allocation": 0.5, "draw": 0.5, "rest": 1}
    assert sum(sphere.parts.values()) == sphere.ratio


def test_every_network_is_scored_and_allocated() -> None:
    labels: list[tuple[int, int, str]] = []
    cells = measure_cells(TINY, random_images(3000), lambda *told: labels.append(told))
    assert [(cell.figure, cell.setting) for cell in cells[2:]] == [
        ("rescoring", "MLP, m = 6"),
        ("allocation", "MLP, m = 6, d = 100"),
        ("rescoring", "ResNet-18, width 2, m = 6"),
        ("allocation", "ResNet-18, width 2, m = 6, d = 16"),
    ]
    assert {cell.rounds for cell in cells} == {2}
    assert [cell.threads for cell in cells[:4]] == [1] * 4
    assert labels[0] == (0, 3, "training steps")
    assert labels[-1] == (3, 3, "done")


def test_large_networks_have_the_threads_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "time_steps", made_up)
    plan = replace(TINY, networks=(Scored(4), Scored(4, 2)), threads=2, least_rounds=1)
    cells = measure_cells(plan, random_images(20), silent)
    assert [cell.threads for cell in cells] == [1] * 4 + [2] * 2


def cell(figure: str, scored: Scored | None, ratio: float) -> Cell:
    setting = "a step" if scored is None else f"{scored.name}, m = {scored.memories}"
    setting += ", d = 160" if figure == "allocation" else ""
    return Cell(figure, "", setting, 1, 3, 1.0, ratio)


def test_targets_take_the_worst_cell_of_the_promised_sizes() -> None:
    runner, mlp, resnet, allocation = targets(
        [
            cell("ER", None, 1.1),
            cell("ER + SPHERE", None, 3.0),
            cell("rescoring", MLP_500, 1.2),
            cell("allocation", MLP_500, 0.9),
            cell("rescoring", NARROW_500, 0.6),
            cell("allocation", NARROW_500, 0.04),
            cell("rescoring", FULL_500, 0.65),
            cell("rescoring", Scored(64, 8), 0.9),
        ]
    )
    assert (runner.measured, runner.met) == (1.1, True)
    assert (mlp.measured, mlp.met) == (1.2, False)
    assert (resnet.measured, resnet.met) == (0.65, True)
    assert (allocation.measured, allocation.met) == (0.04, True)


def test_full_plan_measures_what_is_promised_and_the_quick_one_is_a_part_of_it() -> None:
    assert {MLP_500, NARROW_500, FULL_500} <= set(Plan().networks)
    assert Plan().steps % resolve("mnist", "er", "sphere").every == 0
    assert Plan().steps * resolve("mnist").batch >= Plan().capacity
    assert [target.met for target in targets([])] == [None] * 4
    assert QUICK.images < Plan().images


def test_random_images_have_the_shape_of_mnist_and_all_its_classes() -> None:
    data = random_images(500)
    assert data.train_images.shape == (500, 1, 28, 28)
    assert data.train_images.dtype == torch.uint8
    assert set(data.train_labels.tolist()) == set(data.test_labels.tolist()) == set(range(10))
    assert torch.equal(data.train_images, random_images(500).train_images)


def test_data_come_from_the_option_then_the_environment_then_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, Path]] = []
    monkeypatch.setattr(digits, "load_images", lambda *names: opened.append(names))
    for name in ("given", "set"):
        (tmp_path / name / "mnist").mkdir(parents=True)
        (tmp_path / name / "mnist" / "train.parquet").touch()
    assert stored_mnist(None) is None
    monkeypatch.setenv("SPHERE_DATA", str(tmp_path))
    assert stored_mnist(None) is None
    assert opened == []
    monkeypatch.setenv("SPHERE_DATA", str(tmp_path / "set"))
    stored_mnist(None)
    stored_mnist(tmp_path / "given")
    assert opened == [("mnist", tmp_path / "set"), ("mnist", tmp_path / "given")]


def test_folder_without_mnist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no mnist/train\.parquet in it"):
        stored_mnist(tmp_path)


def test_damaged_file_is_answered_in_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "mnist").mkdir()
    for split in ("train", "test"):
        (tmp_path / "mnist" / f"{split}.parquet").write_text("nonsense")
    with pytest.raises(UsageError, match="not a readable Parquet file"):
        stored_mnist(tmp_path)


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(["train", *argv]))


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--quick", "--json", "--threads", "1") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == ["sphere", "bench", "train", "--quick", "--threads", "1"]
    assert report["machine"]["data"] == "random images and labels of MNIST's shape"
    er, sphere, *others = report["cells"]
    assert len(others) == 4
    assert er["images_per_second"] == pytest.approx(64 / er["seconds"])
    assert sphere["ratio"] == pytest.approx(sphere["seconds"] / er["seconds"])
    assert sum(sphere["parts"].values()) == pytest.approx(sphere["ratio"])
    assert [target["met"] is None for target in report["targets"]] == [False, True, True, True]


def test_page_shows_the_parts_and_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--quick", "--markdown", str(tmp_path / "page.md")) == 0
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# Training\n")
    assert "Data of this run: random images and labels of MNIST's shape." in page
    assert str(tmp_path) not in page
    for part in PARTS:
        assert f"| its {part} |" in page
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert sum(line.startswith("| rescoring |") for line in lines) == 2
    assert "times a bare loop for a step of ER: at most 1.1" in capsys.readouterr().out


def test_command_of_the_page_does_not_tell_where_the_data_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "QUICK", replace(TINY, networks=()))
    monkeypatch.setattr(train, "stored_mnist", lambda folder: random_images(3000))
    arguments = argparse.Namespace(quick=True, data=tmp_path / "images", threads=None)
    report = train.measure(arguments, silent)
    assert report.command == ("sphere", "bench", "train", "--quick", "--data", "images")
    assert report.machine["data"] == "MNIST"
