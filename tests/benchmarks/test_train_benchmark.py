"""The training benchmark compares like with like, divides time without loss, and says on what."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks import harness, timing, train
from benchmarks.bare import BareReplay
from benchmarks.digits import mnist_folder, random_images
from benchmarks.harness import Cell
from benchmarks.rendering import Progress
from benchmarks.steps import step_cells
from benchmarks.stopwatch import PARTS, DividedTurn, Stopwatch, divided
from benchmarks.timing import Timing, threads
from benchmarks.train import BENCHMARK, FULL_500, MLP_500, NARROW_500, RANDOM, Plan, Scored, measure
from sphere_replay.errors import DataError, UsageError
from sphere_replay.replay import Engine, SphereSelection
from sphere_replay.vision.datasets import ImageData
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve
from told import Told

SHORT = harness.Plan(least_rounds=2, least_seconds=0)
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
    monkeypatch.setattr(timing, "available_threads", lambda: 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


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
    draw, weigh = Engine.draw, SphereSelection.weigh
    plain, watched = job("sphere"), job("sphere")
    ticks = itertools.count()
    watch = Stopwatch(lambda: float(next(ticks)))
    with threads(1):
        for step in range(3):
            plain.advance(step)
        with divided(watch):
            for step in range(3):
                watched.advance(step)
    assert (Engine.draw, SphereSelection.weigh) == (draw, weigh)
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


def test_shares_of_a_turn_leave_out_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([(9.0, 9.0, 9.0, 9.0), (4.0, 1.0, 1.0, 2.0), (3.0, 0.0, 0.0, 1.0)])

    class Watch:
        def __init__(self, clock: object) -> None:
            self.seconds = dict(zip(PARTS, next(seconds), strict=True))

    monkeypatch.setattr("benchmarks.stopwatch.Stopwatch", Watch)
    monkeypatch.setattr("benchmarks.stopwatch.divided", lambda watch: threads(1))
    turns: list[None] = []
    turn = DividedTurn(lambda: turns.append(None))
    for _ in range(3):
        turn()
    assert len(turns) == 3
    assert turn.shares == dict(zip(PARTS, (0.625, 0.0625, 0.0625, 0.25), strict=True))


def test_parts_of_a_step_add_up_to_it() -> None:
    with threads(1):
        er, sphere, *parts = step_cells(SHORT, random_images(3000), capacity=64, steps=4)
    assert [part["figure"] for part in parts] == [f"its {part}" for part in PARTS]
    assert er["rounds"] == sphere["rounds"] == 2
    assert er["images_per_second"] == pytest.approx(64 / er["seconds"])
    assert sphere["ratio"] == pytest.approx(sphere["seconds"] / er["seconds"])
    for name in ("seconds", "ratio"):
        assert min(part[name] for part in parts) > 0
        assert sum(part[name] for part in parts) == pytest.approx(sphere[name])


SHARES = {"scoring": 0.5, "allocation": 0.125, "draw": 0.125, "rest": 0.25}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of half a second, one and four; nothing is run."""
    seconds = {"bare loop": 0.5, "ER": 1.0, "ER + SPHERE": 4.0}
    seconds |= {"rescoring": 2.0, "two forwards": 4.0, "allocation": 1.0}
    monkeypatch.setattr(harness.Plan, "race", lambda *_, **__: Timing(seconds, 9))
    monkeypatch.setattr(DividedTurn, "shares", SHARES)


@pytest.mark.usefixtures("made_up")
def test_cells_follow_from_the_times() -> None:
    er, sphere, *parts = measure(Plan(networks=(), images=3000), Progress())
    assert (er["figure"], er["against"], er["ratio"]) == ("ER", "bare loop", 2)
    assert er["images_per_second"] == 64
    assert (sphere["against"], sphere["ratio"], sphere["images_per_second"]) == ("ER", 4, 16)
    assert [part["ratio"] for part in parts] == [2, 0.5, 0.5, 1]
    assert [part["seconds"] for part in parts] == [2, 0.5, 0.5, 1]
    assert {part["part_of"] for part in parts} == {"ER + SPHERE"}


@pytest.mark.usefixtures("made_up")
def test_large_networks_have_the_threads_they_were_given() -> None:
    plan = Plan(networks=(Scored(4), Scored(4, 2)), threads=2, images=3000)
    cells = measure(plan, Progress())
    assert [cell.get("threads") for cell in cells] == [1, 1, *[None] * 4, 1, 1, 2, 2]


def test_every_network_is_scored_and_allocated_and_the_table_shows_the_parts() -> None:
    progress = Told()
    report = harness.measure("train", BENCHMARK, TINY, progress)
    cells = [cell for cell in report.cells if "part_of" not in cell]
    assert [(cell["figure"], cell["setting"]) for cell in cells[2:]] == [
        ("rescoring", "MLP, m = 6"),
        ("allocation", "MLP, m = 6, d = 100"),
        ("rescoring", "ResNet-18, width 2, m = 6"),
        ("allocation", "ResNet-18, width 2, m = 6, d = 16"),
    ]
    assert {cell["rounds"] for cell in cells} == {2}
    assert [cell["threads"] for cell in cells] == [1] * 6
    assert progress.told[0] == (0, 3, "training steps")
    assert progress.told[-1] == (3, 3, "done")
    assert report.setting == f"Data of this run: {RANDOM}."
    assert [target.met is None for target in report.targets] == [False, True, True, True]
    columns, rows = report.table
    assert columns == ("what", "setting", "threads", "ms", "images/s", "against", "ratio")
    assert [row[0] for row in rows[:6]] == ["ER", "ER + SPHERE", *(f"its {p}" for p in PARTS)]
    assert [row[1:3] + row[4:6] for row in rows[2:6]] == [("", "", "", "ER")] * 4


def cell(figure: str, scored: Scored | None, ratio: float) -> Cell:
    setting = "a step" if scored is None else scored.setting
    setting += ", d = 160" if figure == "allocation" else ""
    return {"figure": figure, "setting": setting, "ratio": ratio}


def test_targets_take_the_worst_cell_of_the_promised_sizes() -> None:
    cells = [
        cell("ER", None, 1.1),
        cell("ER + SPHERE", None, 3.0),
        {"figure": "its rest", "ratio": 9.0},
        cell("rescoring", MLP_500, 1.2),
        cell("allocation", MLP_500, 0.9),
        cell("rescoring", NARROW_500, 0.6),
        cell("allocation", NARROW_500, 0.04),
        cell("rescoring", FULL_500, 0.65),
        cell("rescoring", Scored(64, 8), 0.9),
    ]
    runner, mlp, resnet, allocation = (target.judged(cells) for target in BENCHMARK.targets)
    assert (runner.measured, runner.met) == (1.1, True)
    assert (mlp.measured, mlp.met) == (1.2, False)
    assert (resnet.measured, resnet.met) == (0.65, True)
    assert (allocation.measured, allocation.met) == (0.04, True)


def test_full_plan_measures_what_is_promised_and_the_quick_one_is_a_part_of_it() -> None:
    assert {MLP_500, NARROW_500, FULL_500} <= set(Plan().networks)
    assert Plan().steps % resolve("mnist", "er", "sphere").every == 0
    assert Plan().steps * resolve("mnist").batch >= Plan().capacity
    assert [target.judged([]).met for target in BENCHMARK.targets] == [None] * 4
    assert BENCHMARK.quick.images < Plan().images


def test_random_images_have_the_shape_of_mnist_and_all_its_classes() -> None:
    data = random_images(500)
    assert data.train_images.shape == (500, 1, 28, 28)
    assert data.train_images.dtype == torch.uint8
    assert set(data.train_labels.tolist()) == set(data.test_labels.tolist()) == set(range(10))
    assert torch.equal(data.train_images, random_images(500).train_images)


def with_mnist(folder: Path, content: str = "") -> Path:
    (folder / "mnist").mkdir(parents=True)
    for split in ("train", "test"):
        (folder / "mnist" / f"{split}.parquet").write_text(content)
    return folder


def test_data_come_from_the_option_then_the_environment_then_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, found = with_mnist(tmp_path / "given"), with_mnist(tmp_path / "set")
    assert mnist_folder(None) is None
    monkeypatch.setenv("SPHERE_DATA", str(tmp_path))
    assert mnist_folder(None) is None
    monkeypatch.setenv("SPHERE_DATA", str(found))
    assert mnist_folder(None) == found
    assert mnist_folder(given) == given


def test_folder_without_mnist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no mnist/train\.parquet in it"):
        mnist_folder(tmp_path)


def test_damaged_file_is_answered_in_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        measure(Plan(data=with_mnist(tmp_path, "nonsense")), Progress())


@pytest.mark.usefixtures("made_up")
def test_stored_images_are_used_and_the_report_does_not_tell_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, Path]] = []

    def load(name: str, folder: Path) -> ImageData:
        opened.append((name, folder))
        return random_images(3000)

    monkeypatch.setattr(train, "load_images", load)
    plan = Plan(data=with_mnist(tmp_path / "images"), networks=())
    report = harness.measure("train", BENCHMARK, plan, Progress())
    assert opened == [("mnist", tmp_path / "images")]
    assert report.command == ("python", "-m", "benchmarks", "train", "--data", "images")
    assert report.setting == "Data of this run: MNIST."
