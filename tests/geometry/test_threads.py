"""Work on tiles is the same on any number of threads, and leaves torch's own setting alone."""

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from sphere_replay import Sphere, allocate
from sphere_replay.allocation.diagnostics import estimation_bounds
from sphere_replay.geometry import build_geometry, neighbor_distance_scale
from sphere_replay.geometry.threads import in_order, undisturbed, usable
from sphere_replay.replay.landmarks import carry
from sphere_replay.scoring import Scores
from tensors import random

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def setting() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_from_threads_that_run_alone() -> None:
    torch.set_num_threads(3)

    def work(piece: int) -> tuple[int, int, bool]:
        return piece, torch.get_num_threads(), threading.current_thread() is threading.main_thread()

    expected = [(piece, 1, False) for piece in range(20)]
    assert list(in_order(work, range(20), CPU)) == expected
    assert torch.get_num_threads() == 3
    inherited: list[int] = []
    later = threading.Thread(target=lambda: inherited.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert inherited == [3]


def test_a_failure_reaches_the_caller() -> None:
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda piece: 1 / piece, [2, 1, 0, 1], CPU))
    assert list(in_order(abs, [-1, -2], CPU)) == [1, 2]


def test_whole_work_is_not_split_but_its_pieces_are_spread() -> None:
    torch.set_num_threads(3)

    def work() -> tuple[int, int, list[int], bool]:
        each = list(in_order(lambda _: torch.get_num_threads(), range(5), CPU))
        return torch.get_num_threads(), usable(), each, torch.is_grad_enabled()

    with torch.no_grad():
        assert undisturbed(work, 5000, CPU) == (1, 3, [1] * 5, False)
    assert undisturbed(work, 5000, CPU)[-1]
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 / 0, 5000, CPU)
    with torch.inference_mode():
        assert undisturbed(torch.is_inference_mode_enabled, 5000, CPU)
    assert torch.get_num_threads() == usable() == 3


def test_short_work_is_not_spread_at_all() -> None:
    torch.set_num_threads(3)

    def threads() -> set[str]:
        names = in_order(lambda _: threading.current_thread().name, range(20), CPU)
        return {threading.current_thread().name, *names}

    assert len(undisturbed(threads, 500, CPU)) == 1
    assert len(undisturbed(threads, 5000, CPU)) > 1
    assert usable() == 3


@pytest.mark.parametrize("others", [[], ["loader"]])
def test_products_of_long_features_are_shared_however_few_memories_there_are(
    others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(3)
    there = [threading.current_thread(), *(threading.Thread(name=name) for name in others)]
    monkeypatch.setattr(threading, "enumerate", lambda: there)

    def work() -> tuple[int, int, bool, bool]:
        here = threading.current_thread().name
        names = in_order(lambda _: threading.current_thread().name, range(20), CPU)
        again = undisturbed(torch.get_num_threads, 500, CPU)  # within, nothing is begun anew
        return torch.get_num_threads(), again, here in names, torch.is_inference_mode_enabled()

    for inference in (False, True):
        with torch.inference_mode(inference):
            alone, again, here, mode = undisturbed(work, 1000, CPU, dim=1024)
        assert (alone, again, here, mode) == (1, 1, False, inference)
        assert usable() == torch.get_num_threads() == 3
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 / 0, 1000, CPU, dim=1024)
    assert usable() == torch.get_num_threads() == 3


@pytest.mark.parametrize("others", [[], ["loader"]])
def test_short_work_stays_in_its_thread_unless_others_could_see_the_setting(
    others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(3)
    ours = threading.current_thread()
    there = [ours, *(threading.Thread(name=name) for name in [*others, "sphere-replay-tiles_0"])]
    monkeypatch.setattr(threading, "enumerate", lambda: there)

    def where() -> tuple[bool, int]:
        return threading.current_thread() is ours, torch.get_num_threads()

    assert undisturbed(where, 500, CPU) == (not others, 1)
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 / 0, 500, CPU)
    assert torch.get_num_threads() == usable() == 3


def test_shared_products_are_the_same_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    features, increments = random(300, 200), random(300, seed=1)
    torch.set_num_threads(3)
    alone = allocate(increments, features).weights
    monkeypatch.setattr("sphere_replay.geometry.threads._SHORT_PRODUCTS", 0)
    assert torch.equal(allocate(increments, features).weights, alone)


@pytest.mark.parametrize("name", ["vision", "calibrated", "instruct"])
def test_allocations_do_not_depend_on_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphere_replay.geometry.tiling.TILE", {"cpu": 64})
    monkeypatch.setattr("sphere_replay.geometry.threads.ALONE_UP_TO", 0)
    features, increments = random(300, 12), random(300, seed=1)
    labels = torch.arange(300) % 4

    def weights(threads: int) -> Tensor:
        torch.set_num_threads(threads)
        recipe: Sphere = getattr(Sphere, name)()
        return allocate(increments, features, recipe, labels=labels).weights

    alone = weights(1)
    assert torch.equal(weights(2), alone)
    assert torch.equal(weights(4), alone)
    with torch.inference_mode():
        assert torch.equal(weights(2), alone)


def test_callers_in_threads_of_their_own_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.tiling.TILE", {"cpu": 32})
    monkeypatch.setattr("sphere_replay.geometry.threads.ALONE_UP_TO", 0)
    torch.set_num_threads(2)
    problems = [(random(200, seed=seed), random(200, 8, seed=100 + seed)) for seed in range(6)]
    expected = [allocate(*problem).weights for problem in problems]
    with ThreadPoolExecutor(6) as callers:
        found = list(callers.map(lambda problem: allocate(*problem).weights, problems, timeout=60))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("threads", [1, 2])
def test_autocast_does_not_reach_an_allocation(threads: int) -> None:
    torch.set_num_threads(threads)
    features, increments, many = random(40, 6), random(40, seed=1), random(1100, 6)
    scored = Scores(increments, increments, features, landmarks=torch.arange(20))

    def found() -> list[Tensor]:
        allocation = allocate(increments, features)
        carried = carry(scored, features, Sphere.vision())
        bounds = estimation_bounds(build_geometry(many), 0.5, lipschitz=1.0, noise=1.0)
        scale = torch.tensor(neighbor_distance_scale(many))
        return [
            allocation.weights,
            allocation.effective_neighbors,
            carried.increments,
            bounds.mean_squared_error,
            scale,
        ]

    expected = found()
    with torch.autocast("cpu", torch.bfloat16):
        assert (features @ features.T).dtype == torch.bfloat16
        for one, other in zip(found(), expected, strict=True):
            assert torch.equal(one, other)


def _squares(answers: "multiprocessing.SimpleQueue[list[int]]") -> None:
    answers.put(list(in_order(lambda piece: piece**2, [1, 2, 3], CPU)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own() -> None:
    torch.set_num_threads(2)
    list(in_order(abs, [1, 2], CPU))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_squares, args=(answers,))
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 0
    assert answers.get() == [1, 4, 9]
