"""The benchmark of hosts: steps with a full memory, and passes counted by hand."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import hosts
from benchmarks.hosts import (
    QUICK,
    WITH_SPHERE,
    Announcer,
    Cell,
    Contestant,
    Plan,
    Turn,
    measure_cells,
    targets,
)
from benchmarks.stopwatch import threads
from sphere_replay.hosts import HOSTS
from sphere_replay.vision.presets import resolve

TINY = Plan(width=1, capacity=16, batch=4, hosts=("er", "xder"), rounds=1)


@pytest.mark.parametrize(
    ("contestant", "forward", "backward", "scored"),
    [
        (Contestant("none"), 1, 1, 0),
        (Contestant("er"), 2, 2, 0),
        (Contestant("der-pp"), 3, 3, 0),
        (Contestant("gdumb"), 0, 0, 0),
        # 16 memories twice at every fourth step, for 4 stream images each.
        (Contestant("er", "sphere"), 2 + 2, 2, 2),
        # Beside both: the losses of the stream's and of the replayed batch on plain images.
        (Contestant("abs"), 4, 2, 2),
    ],
)
def test_passes_of_a_step_by_hand(
    contestant: Contestant, forward: float, backward: float, scored: float
) -> None:
    turn = Turn(TINY, contestant, Announcer(lambda *_: None, total=2))
    if contestant.host != "none":
        assert len(turn.host.memory) == TINY.capacity
    with threads(1):
        turn()
    assert turn.passes == {"forward": forward, "backward": backward, "scored": scored}


def test_every_interval_fits_into_a_turn_and_every_host_is_measured() -> None:
    for host in WITH_SPHERE:
        assert Turn.STEPS % resolve("cifar10-small", host, "sphere").every == 0
    assert Plan().hosts == tuple(HOSTS) == QUICK.hosts
    small = resolve("cifar10-small")
    assert (Plan().width, Plan().capacity) == (small.width, small.capacity)
    assert Plan().batch == small.batch == small.replay_batch


def test_hosts_are_compared_with_er_and_sphere_with_its_host() -> None:
    told: list[tuple[int, int, str]] = []
    with threads(1):
        cells = measure_cells(TINY, lambda *words: told.append(words))
    assert [(cell.figure, cell.against) for cell in cells] == [
        ("er", "er"),
        ("xder", "er"),
        ("er + sphere", "er"),
        ("xder + sphere", "xder"),
    ]
    er, xder, er_sphere, _ = cells
    assert er.ratio == er.explained == 1
    assert xder.ratio == pytest.approx(xder.seconds / er.seconds)
    assert xder.explained == pytest.approx((xder.forward + 2 * xder.backward) / 6)
    assert er_sphere.explained == pytest.approx((4 + 2 * 2) / 6)
    assert xder.forward > 10  # four strong views of twelve images for four of the stream
    assert told[0] == (0, 8, "fill the memory, er")
    assert told[-1] == (8, 8, "done")


def cell(figure: str, ratio: float, explained: float) -> Cell:
    return Cell(figure, "er", 3, 1.0, ratio, 1.0, 1.0, 0.0, explained)


def test_the_target_is_the_worst_time_beyond_passes_and_skips_hosts_without_any() -> None:
    cells = [cell("er", 1, 1), cell("gdumb", 0.01, 0), cell("xder", 6, 5), cell("abs", 1, 2)]
    (target,) = targets(cells)
    assert target.measured == pytest.approx(1.2)
    assert target.met is True
    assert targets([])[0].met is None


def run(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(hosts, "QUICK", TINY)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(["hosts", "--quick", *argv]))


def test_page_and_json_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--json", "--markdown", str(tmp_path / "page.md")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == ["sphere", "bench", "hosts", "--quick"]
    assert [each["figure"] for each in report["cells"]] == [
        *("er", "xder"),
        *("er + sphere", "xder + sphere"),
    ]
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# Hosts\n")
    ratio = report["cells"][1]["ratio"]
    (line,) = [line for line in page.splitlines() if line.startswith("| xder |")]
    assert f"| er | {ratio:.2f} |" in line
