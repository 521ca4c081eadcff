"""The JSON form of a vision configuration: all that results depend on, and it reads back."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from sphere_replay.errors import ConfigError
from sphere_replay.hosts import HOSTS
from sphere_replay.hosts.parts import parted_fit
from sphere_replay.replay import Economy
from sphere_replay.replay.settings import ECONOMICAL
from sphere_replay.runs.folder import identity
from sphere_replay.vision import models
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.presets import resolve


def form(config: VisionConfig) -> Any:
    return json.loads(json.dumps(config.to_dict()))


@pytest.mark.parametrize("host", HOSTS)
def test_every_option_and_every_setting_of_hardware_is_written(host: str) -> None:
    saved = form(resolve("digits", host))
    assert saved["options"] == HOSTS[host].OPTIONS().to_dict()
    assert (saved["device"], saved["autocast"], saved["channels_last"]) == ("cpu", False, False)
    assert VisionConfig.from_dict(saved) == resolve("digits", host)


def test_one_value_has_one_spelling() -> None:
    spellings = [{"mask_rule": 2}, {"mask_rule": 2.0}, {"mask_rule": "present_and_unseen"}]
    configs = [resolve("digits", "er-ace", options=options) for options in spellings]
    assert len({identity(config.to_dict()) for config in configs}) == 1
    assert configs[0].options["mask_rule"] == "present_and_unseen"
    by_number, by_name = ({"joint_batch": 1}, {"joint_batch": True})
    assert resolve("digits", options=by_number) == resolve("digits", options=by_name)


def test_forms_of_earlier_versions_are_read_with_the_defaults_of_this_one() -> None:
    config = resolve("cifar10-small", "puridiver", "sphere", channels_last=False)
    saved = form(config)
    for name in ("constants", "device", "autocast", "channels_last"):
        del saved[name]
    saved["options"] = {"epochs": 31.0, "fit_last_only": 1.0}
    assert VisionConfig.from_dict(saved) == config


def test_the_economical_schedule_is_part_of_an_identity_where_it_is_chosen() -> None:
    names = set(ECONOMICAL)
    published = resolve("digits", select="sphere", schedule="published")
    economical = resolve("digits", select="sphere", schedule="economical", landmarks=50)
    assert not names & set(form(published))
    assert identity(published.to_dict()) == identity(resolve("digits", select="sphere").to_dict())
    numbers = asdict(Economy(landmarks=50))
    assert {name: form(economical)[name] for name in names} == {"schedule": "economical"} | numbers
    assert VisionConfig.from_dict(form(economical)) == economical


def test_the_recipe_is_written_where_it_matters() -> None:
    recipe = form(resolve("digits", select="sphere-no-floor"))["constants"]["selection"]["recipe"]
    assert recipe["control"] == "no-floor"
    assert recipe["distance"] == {"kind": "SquaredEuclidean"}
    assert recipe["scales"] == {
        "kind": "NeighborScales",
        "k_s": 5,
        "k_t": 25,
        "t_frac": 0.5,
        "decay": 0.9,
        "quantile": 0.95,
    }
    assert form(resolve("digits"))["constants"]["selection"] == {"kind": "Uniform"}


def test_what_a_label_is_taken_for_is_written_where_labels_follow_it() -> None:
    asymmetric = resolve("digits", noise_kind="asymmetric")
    taken_for = form(asymmetric)["constants"]["lookalikes"]
    assert taken_for == {"7": 1, "2": 7, "5": 6, "6": 5, "3": 8}
    assert VisionConfig.from_dict(form(asymmetric)) == asymmetric
    assert "lookalikes" not in form(resolve("digits"))["constants"]


def test_forms_from_before_a_constant_was_written_are_still_read() -> None:
    config = resolve("digits")
    saved = form(config)
    assert saved["constants"].pop("evaluation") == {"tail": 10}
    assert VisionConfig.from_dict(saved) == config
    assert identity(saved) != identity(config.to_dict())


def test_another_constant_is_another_run_which_old_forms_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = resolve("digits", "puridiver")
    saved = form(config)
    monkeypatch.setattr(parted_fit, "LARGEST_PART", 8)
    assert identity(config.to_dict()) != identity(saved)
    monkeypatch.setitem(models.NETWORK, "hidden", 200)
    with pytest.raises(ConfigError, match="other constants of host, network than this version"):
        VisionConfig.from_dict(saved)


@pytest.mark.parametrize("name", ["constants", "code"])
def test_groups_that_are_none_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} of a saved configuration should be a group"):
        VisionConfig.from_dict(form(resolve("digits")) | {name: 2.5})


def test_options_must_come_by_name() -> None:
    with pytest.raises(ConfigError, match=r"options takes dict\[str, Any\], got 3"):
        resolve("digits", options=3)
    with pytest.raises(ConfigError, match=r"host er: unknown option 'strenght'.*strength"):
        resolve("digits", options={"strenght": 1})
