"""The benchmark of hosts: steps with a full memory, and passes counted by hand."""

import pytest

from benchmarks import harness
from benchmarks.hosts import BENCHMARK, WITH_SPHERE, Plan, Turn
from benchmarks.rendering import Progress
from benchmarks.timing import threads
from sphere_replay.hosts import HOSTS
from sphere_replay.vision.presets import resolve
from told import Told

TINY = Plan(width=8, capacity=16, batch=4, hosts=("er", "xder"), least_rounds=1)


@pytest.mark.parametrize(
    ("name", "forward", "backward", "scored"),
    [
        ("none", 1, 1, 0),
        ("er", 2, 2, 0),
        ("der-pp", 3, 3, 0),
        ("gdumb", 0, 0, 0),
        # 16 memories twice at every fourth step, for 4 stream images each.
        ("er + sphere", 2 + 2, 2, 2),
        # Beside both: the losses of the stream's and of the replayed batch on plain images.
        ("abs", 4, 2, 2),
    ],
)
def test_passes_of_a_step_by_hand(
    name: str, forward: float, backward: float, scored: float
) -> None:
    turn = Turn(TINY, name, Progress())
    if name != "none":
        assert len(turn.host.memory) == TINY.capacity
    with threads(1):
        turn()
    assert turn.passes == {"forward": forward, "backward": backward, "scored": scored}
    assert turn.work == forward + 2 * backward


def test_every_interval_fits_into_a_turn_and_every_host_is_measured() -> None:
    for host in WITH_SPHERE:
        assert Turn.STEPS % resolve("cifar10-small", host, "sphere").every == 0
    plan, small = BENCHMARK.plan, resolve("cifar10-small")
    assert plan.hosts == tuple(HOSTS) == BENCHMARK.quick.hosts
    assert (plan.width, plan.capacity) == (small.width, small.capacity)
    assert plan.batch == small.batch == small.replay_batch


def test_hosts_are_compared_with_er_and_sphere_with_its_host() -> None:
    progress = Told()
    report = harness.measure("hosts", BENCHMARK, TINY, progress, quick=True)
    cells = report.cells
    assert [(cell["figure"], cell["against"]) for cell in cells] == [
        ("er", "er"),
        ("xder", "er"),
        ("er + sphere", "er"),
        ("xder + sphere", "xder"),
    ]
    er, xder, er_sphere, _ = cells
    assert er["ratio"] == er["explained"] == er["unexplained"] == 1
    assert xder["ratio"] == pytest.approx(xder["seconds"] / er["seconds"])
    assert xder["explained"] == pytest.approx((xder["forward"] + 2 * xder["backward"]) / 6)
    assert xder["unexplained"] == pytest.approx(xder["ratio"] / xder["explained"])
    assert er_sphere["explained"] == pytest.approx((4 + 2 * 2) / 6)
    assert xder["forward"] > 10  # four strong views of twelve images for four of the stream
    assert progress.told[0] == (0, 8, "fill the memory, er")
    assert progress.told[-1] == (8, 8, "done")
    columns, rows = report.table
    assert columns[-3:] == ("against", "ratio", "explained")
    assert rows[1][-3:-1] == ("er", f"{xder['ratio']:.2f}")
    assert report.targets == ()  # a small network's steps are not mostly passes


def test_the_target_is_the_worst_time_beyond_passes_and_skips_hosts_without_any() -> None:
    (target,) = BENCHMARK.targets
    judged = target.judged([{"unexplained": 1.2}, {"unexplained": None}, {"unexplained": 0.5}])
    assert (judged.measured, judged.met) == (1.2, True)
    assert target.judged([{"unexplained": 1.3}]).met is False
    assert target.judged([]).met is None


def test_steps_without_passes_have_nothing_to_explain() -> None:
    plan = Plan(width=8, capacity=8, batch=4, hosts=("er", "gdumb"), least_rounds=1)
    report = harness.measure("hosts", BENCHMARK, plan, Progress())
    gdumb = report.cells[1]
    assert (gdumb["figure"], gdumb["explained"], gdumb["unexplained"]) == ("gdumb", 0, None)
