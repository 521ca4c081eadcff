"""Recorded rescorings: true to what the run did, and without any trace in it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sphere_replay.allocation import Sphere, allocate
from sphere_replay.allocation.backing import Votes
from sphere_replay.cli import main
from sphere_replay.geometry import build_geometry
from sphere_replay.replay import MirProportional, Weighting
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.launch import run_config, run_folder
from sphere_replay.runs.recording import (
    FOLDER,
    Shown,
    moments_of,
    nearest,
    projected,
    read_recording,
    what_was_seen,
)
from sphere_replay.scoring import Scores
from sphere_replay.vision.presets import resolve

SHORT = {"limit": 200}


def files(run: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run.path / FOLDER).iterdir())}


@pytest.mark.parametrize("select", ["sphere-calibrated", "sphere", "mir", "uniform"])
def test_a_recorded_run_is_the_same_run(tmp_path: Path, select: str) -> None:
    config = resolve("digits", "er-ace", select, seed=3, **SHORT)
    run_config(config, tmp_path / "plain")
    run_config(config, tmp_path / "recorded", record=4)
    plain = run_folder(config, tmp_path / "plain")
    recorded = run_folder(config, tmp_path / "recorded")
    assert plain.path.name == recorded.path.name
    for name in ("config.json", "results.json", "manifest.json"):
        assert (plain.path / name).read_bytes() == (recorded.path / name).read_bytes()
    assert not (plain.path / FOLDER).exists()
    moments = read_recording(recorded.path)
    assert len(moments) == 4
    steps = [head["step"] for head, _ in moments]
    assert steps == sorted(set(steps))
    for _, tree in moments:
        assert len(tree["keys"]) == len(tree["weights"]) == len(tree["images"])
        assert (tree["labels"] != tree["true"]).any()  # 40% are wrong
        if select == "uniform":
            assert tree["weights"].unique().numel() == 1


def test_a_resumed_run_has_the_same_recording(tmp_path: Path) -> None:
    config = resolve("digits", "er", "sphere", seed=1, **SHORT)
    run_config(config, tmp_path / "whole", record=3)

    def fail(done: int, total: int, words: str) -> None:
        if done == 12:
            raise KeyError("a power cut")

    with pytest.raises(KeyError):
        run_config(config, tmp_path / "torn", record=3, checkpoint_every=5, report=fail)
    run_config(config, tmp_path / "torn", record=3, checkpoint_every=5)
    whole, torn = (run_folder(config, tmp_path / name) for name in ("whole", "torn"))
    assert files(whole) == files(torn)


def memories(count: int = 40, seed: int = 0) -> tuple[Scores, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 7, generator=generator)
    increments = torch.randn(count, generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    return Scores(increments, increments.abs(), features, labels), labels


def shown(labels: Tensor) -> Shown:
    return Shown(list(range(len(labels))), labels, list("abcd"), labels=labels)


def test_neighbours_and_their_shares_are_the_largest_of_the_kernel() -> None:
    scores, _ = memories()
    assert scores.features is not None
    found, shares = nearest(build_geometry(scores.features, Sphere.vision().distance), 0.4)
    unit = torch.nn.functional.normalize(scores.features.double(), dim=1)
    kernel = torch.exp(-torch.cdist(unit, unit).square() / 0.4).fill_diagonal_(0)
    expected = (kernel / kernel.sum(1, keepdim=True)).topk(6, dim=1)
    assert torch.equal(found, expected.indices)
    torch.testing.assert_close(shares.double(), expected.values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("votes", Votes)
def test_numbers_are_those_of_the_allocation_and_votes_those_of_the_neighbours(
    votes: Votes,
) -> None:
    scores, labels = memories()
    labels[labels == 3] = 0  # a frequent label, to which plain votes go
    assert scores.features is not None
    recipe = Sphere.calibrated(votes=votes)
    allocation = allocate(scores.increments, scores.features, recipe, labels=labels)
    weighting = Weighting(allocation.probabilities, allocation=allocation, scores=scores)
    tree = what_was_seen(scores, weighting, Sphere.vision(), shown(labels))
    assert torch.equal(tree["consensus"], allocation.consensus)
    assert allocation.backing is not None
    torch.testing.assert_close(tree["backing"], allocation.backing)
    assert tree["agreement"] == allocation.agreement
    unit = torch.nn.functional.normalize(scores.features.double(), dim=1)
    kernel = torch.exp(-torch.cdist(unit, unit).square() / allocation.eps_s).fill_diagonal_(0)
    for memory in range(len(labels)):
        cast = torch.zeros(3, dtype=torch.float64)
        for other, label in enumerate(labels.tolist()):
            cast[label] += kernel[memory, other]
        if votes is Votes.BALANCED:
            others = labels[torch.arange(len(labels)) != memory]
            cast /= torch.tensor([int((others == label).sum()) for label in range(3)])
        given = dict(zip(tree["voted"][memory].tolist(), tree["votes"][memory], strict=True))
        for label in range(3):
            assert given[label] == pytest.approx(float(cast[label] / cast.sum()), rel=1e-3)
        own = given[int(labels[memory])] / max(given.values())
        assert float(tree["backing"][memory]) == pytest.approx(float(own), rel=1e-3)


def test_votes_for_a_memorys_own_label_are_always_kept() -> None:
    scores, _ = memories()
    labels = torch.arange(len(scores)) % 8
    tree = what_was_seen(scores, Weighting(scores.losses), Sphere.vision(), shown(labels))
    assert tree["voted"].shape == (len(labels), 4)
    assert (tree["voted"] == labels[:, None]).any(dim=1).all()
    best = tree["votes"][:, 0]
    own = (tree["votes"] * (tree["voted"] == labels[:, None])).sum(dim=1)
    torch.testing.assert_close(own / best, tree["backing"], rtol=1e-4, atol=1e-5)


def test_selections_that_ask_nobody_are_shown_what_neighbours_would_say() -> None:
    scores, labels = memories()
    assert scores.features is not None
    weighting = MirProportional().weigh(scores, None, torch.Generator())
    tree = what_was_seen(scores, replace(weighting, scores=scores), Sphere.vision(), shown(labels))
    expected = allocate(scores.increments, scores.features, Sphere.vision())
    assert torch.equal(tree["consensus"], expected.consensus)
    assert tree["agreement"] == 0


def test_the_map_has_the_two_largest_spreads() -> None:
    scores, _ = memories()
    assert scores.features is not None
    places = projected(scores.features)
    unit = torch.nn.functional.normalize(scores.features.double(), dim=1)
    spreads = torch.linalg.svdvals(unit - unit.mean(0))[:2]
    torch.testing.assert_close(places.double().norm(dim=0), spreads, rtol=1e-5, atol=1e-6)
    assert torch.equal(places, projected(scores.features.clone()))
    assert projected(torch.ones(3, 1)).shape == (3, 2)


def test_moments_are_spread_over_the_stream() -> None:
    assert moments_of(range(100), 4, every=4) == [23, 47, 71, 95]
    assert moments_of(range(20), 4, every=16) == [3, 7, 10, 14]  # a short stream
    assert moments_of(range(3), 8, every=4) == [1, 2]
    assert moments_of(range(1), 8, every=4) == []


def test_a_finished_run_is_not_recorded_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "digits", "--limit", "60", "--out", str(tmp_path)]
    assert main([*words, "--quiet"]) == 0
    capsys.readouterr()
    assert main([*words, "--record", "3"]) == 0
    assert "It is not recorded anew: give another --out" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--no-open"]) == 2
    assert "run them with --record" in capsys.readouterr().err
    assert main([*words, "--record", "-1"]) == 2


def test_a_sweep_records_its_runs(tmp_path: Path) -> None:
    words = ["sweep", "digits", "--seeds", "1", "--methods", "ER", "--columns", "40%"]
    where = ["--out", str(tmp_path), "--quiet", "--set", "limit=120"]
    assert main([*words, *where, "--record", "2"]) == 0
    [run] = [path.parent for path in tmp_path.glob("*/results.json")]
    assert len(read_recording(run)) == 2
    assert json.loads((run / "config.json").read_text())["limit"] == 120
