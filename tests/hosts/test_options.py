"""Options of hosts: one typed value each, whatever the spelling it was given in."""

import json
from dataclasses import FrozenInstanceError, dataclass
from enum import StrEnum
from typing import Any

import pytest

from sphere_replay.hosts import HOSTS
from sphere_replay.hosts.abs import AsymmetricBalancedOptions
from sphere_replay.hosts.options import HostOptions, count, number, rule, share, switch


class Color(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, kw_only=True)
class Sample(HostOptions):
    weight: float = number(1.0)
    width: float = number(2.0, positive=True)
    part: float = share(0.5)
    some: float = share(0.5, positive=True)
    views: int = count(3, least=2)
    mirrored: bool = switch(False)
    color: Color = rule(Color.RED)  # noqa: RUF009  # declares a field


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"weight": 0}, 0.0),
        ({"width": 3}, 3.0),
        ({"part": 1}, 1.0),
        ({"views": 4.0}, 4),
        ({"mirrored": 1}, True),
        ({"mirrored": 0.0}, False),
        ({"mirrored": True}, True),
        ({"color": 1}, Color.GREEN),
        ({"color": 0.0}, Color.RED),
        ({"color": "green"}, Color.GREEN),
    ],
)
def test_json_is_read_as_typed_values(given: dict[str, Any], value: object) -> None:
    found = getattr(Sample.of(given), next(iter(given)))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wieght": 1}, r"unknown option 'wieght': did you mean weight"),
        ({"zzz": 1}, r"unknown option 'zzz': known: weight, width, part"),
        ({"weight": -0.5}, r"option weight takes a number that is not negative, got -0\.5"),
        ({"weight": True}, "option weight takes a number that is not negative, got True"),
        ({"weight": "much"}, "option weight takes a number that is not negative, got 'much'"),
        ({"weight": float("nan")}, "option weight takes a number that is not negative, got nan"),
        ({"weight": float("inf")}, "option weight takes a number that is not negative, got inf"),
        ({"weight": None}, "option weight takes a number that is not negative, got None"),
        ({"width": 0}, "option width takes a number above 0, got 0"),
        ({"part": 1.01}, r"option part takes a share from 0 to 1, got 1\.01"),
        ({"some": 0}, "option some takes a share above 0 and at most 1, got 0"),
        ({"views": 2.5}, r"option views takes a whole number of at least 2, got 2\.5"),
        ({"views": 1}, "option views takes a whole number of at least 2, got 1"),
        ({"mirrored": 2}, r"option mirrored takes true or false \(or 1 or 0\), got 2"),
        ({"mirrored": "yes"}, r"option mirrored takes true or false \(or 1 or 0\), got 'yes'"),
        ({"color": 2}, r"option color takes one of red, green \(or 0 to 1\), got 2"),
        ({"color": True}, r"option color takes one of red, green \(or 0 to 1\), got True"),
        ({"color": "blue"}, r"option color takes one of red, green \(or 0 to 1\), got 'blue'"),
        ({"color": ["red"]}, r"option color takes one of red, green"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sample.of(given)


def test_options_do_not_change_once_they_are_made() -> None:
    with pytest.raises(FrozenInstanceError):
        Sample().weight = 2.0  # type: ignore[misc]  # what the test is about


@pytest.mark.parametrize("name", HOSTS)
def test_every_host_reads_back_what_it_writes(name: str) -> None:
    kind = HOSTS[name].OPTIONS
    written = json.loads(json.dumps(kind().to_dict()))
    assert kind.of(written) == kind()
    assert {type(value) for value in kind().to_dict().values()} <= {bool, int, float, str}


def test_abs_has_the_options_of_er_ace_and_of_a_fit_with_bounds_of_its_own() -> None:
    names = set(AsymmetricBalancedOptions().to_dict())
    assert names > set(HOSTS["er-ace"].OPTIONS().to_dict()) | {"epochs", "high_lr", "clip"}
    assert AsymmetricBalancedOptions(epochs=0).epochs == 0
    assert AsymmetricBalancedOptions(joint_batch=True).joint_batch
