"""What hosts hand on of their training passes, and when they do not."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hosts.workbench import listening, parts, stream_batch
from sphere_replay.hosts import HOSTS, ExperienceReplay, Host
from sphere_replay.replay import Draw, Economy

ECONOMY = Economy(landmarks=4, shortest=1, longest=1, reuse=2)


def host(name: str, *, norm: bool = False, **settings: Any) -> Host:
    given = parts("sphere", economy=ECONOMY, **{"shaken": 0.0, **settings})
    if not norm:
        given.network.norm = nn.Identity()
    return HOSTS[name](given)


def overheard(learner: Host) -> list[tuple[Draw | Tensor, Tensor, Tensor]]:
    """What reaches the engine."""
    heard: list[tuple[Draw | Tensor, Tensor, Tensor]] = []
    engine = listening(learner)
    plain = engine.passed

    def passed(what: Draw | Tensor, features: Tensor, losses: Tensor) -> None:
        heard.append((what, features, losses))
        plain(what, features, losses)

    engine.passed = passed  # type: ignore[method-assign]  # it only listens
    return heard


@pytest.mark.parametrize("name", ["er", "er-ace", "der-pp"])
def test_what_is_handed_on_is_what_scoring_would_have_found(name: str) -> None:
    learner = host(name)
    learner.start_task()
    heard = overheard(learner)
    learner.observe(stream_batch(0))
    for seed in range(1, 6):
        before, batch = copy.deepcopy(learner.network).eval(), stream_batch(seed)
        held, labels = learner.memory["x"].clone(), learner.memory["y"].clone()
        heard.clear()
        draws = len(listening(learner).draws)
        learner.observe(batch)
        *replayed, streamed = heard
        given = [(streamed, batch.images, batch.labels)]
        for draw, told in zip(listening(learner).draws[draws:], replayed, strict=True):
            assert told[0] is draw  # which knows what its slots held
            given.append((told, held[draw.indices], labels[draw.indices]))
        for (_, features, losses), images, wanted in given:
            views = learner.parts.views.prepare(images)
            found, logits = before.forward_features(views)  # type: ignore[operator]  # our own
            torch.testing.assert_close(features, found)
            torch.testing.assert_close(losses, learner.scored_loss(logits, wanted))


@pytest.mark.parametrize("name", ["er", "er-ace", "der-pp"])
def test_it_saves_forwards_where_passes_are_alike_and_nowhere_else(name: str) -> None:
    def scored(**settings: Any) -> int:
        learner = host(name, **settings)
        learner.start_task()
        for seed in range(6):
            learner.observe(stream_batch(seed))
        return sum(draw.cost for draw in listening(learner).draws)

    everything = scored(shaken=0.3)
    assert scored() < everything
    assert scored(norm=True) == everything
    assert scored(norm=True, shaken=0.3) == everything


@pytest.mark.parametrize("what", ["autocast", "view"])
def test_passes_in_other_precision_or_of_other_views_are_not_alike(what: str) -> None:
    class Shaking(ExperienceReplay):
        def view(self, images: Tensor) -> Tensor:
            return super().view(images) + 0.1

    given = parts("sphere", economy=ECONOMY, shaken=0.0)
    given.network.norm = nn.Identity()
    given.network.autocast = what == "autocast"  # type: ignore[assignment]  # no parameter
    learner = (ExperienceReplay if what == "autocast" else Shaking)(given)
    learner.start_task()
    heard = overheard(learner)
    for seed in range(3):
        learner.observe(stream_batch(seed))
    assert heard == []


def test_a_fit_makes_another_network_of_it() -> None:
    learner = host("abs")
    learner.start_task()
    for seed in range(3):
        learner.observe(stream_batch(seed))
    assert learner.replay.state_dict()["passing"]["known"] is not None
    for step in range(learner.fit_steps(last=True)):
        learner.fit(step)
    learner.end_task(last=True)
    assert learner.replay.state_dict()["passing"]["known"] is None


def test_other_features_than_the_networks_are_none_that_training_computes() -> None:
    given = replace(
        parts("sphere", economy=ECONOMY, shaken=0.0), geometry=lambda x: x.float().flatten(1)
    )
    given.network.norm = nn.Identity()
    learner = HOSTS["er"](given)
    learner.start_task()
    heard = overheard(learner)
    for seed in range(3):
        learner.observe(stream_batch(seed))
    assert heard == []


def test_a_published_schedule_is_handed_nothing() -> None:
    given = parts("sphere", shaken=0.0)
    given.network.norm = nn.Identity()
    learner = HOSTS["er"](given)
    learner.start_task()
    heard = overheard(learner)
    for seed in range(3):
        learner.observe(stream_batch(seed))
    assert heard == []
