"""Plain data come back as they were, type and all; whatever else a program sends is refused."""

import datetime
import math
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sphere_replay.sandbox.inside.codec import UnplainError, WireError, decode, encode


def refuse(value: object) -> dict[str, Any]:
    raise UnplainError(type(value).__name__)


def unknown(tag: str, content: object) -> object:
    raise WireError(f"no tag {tag}")


def there_and_back(value: object) -> Any:
    return decode(encode(value, refuse), unknown)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.datetimes()
    | st.timedeltas()
)
keys = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner), max_leaves=4
)
values = st.recursive(
    keys | st.builds(bytearray, st.binary()),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.lists(inner).map(deque)
    ),
    max_leaves=20,
)


def types_of(value: Any) -> Any:
    """The types of a value and of all that it holds, in order."""
    if isinstance(value, dict):
        return type(value), [(types_of(k), types_of(v)) for k, v in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [types_of(part) for part in value]
    return type(value)


@given(values)
def test_plain_data_come_back_exactly(value: object) -> None:
    again = there_and_back(value)
    assert again == value
    assert types_of(again) == types_of(value)


@pytest.mark.parametrize(
    "value",
    [
        *(True, 1, 1.0, -0.0, math.inf, -math.inf, 10**4000, -(10**9000), [10**9000]),
        *("\ud800 {}", (), [()], {(1, 2): {3}}, range(3, 9, 2), slice(None, 3), ...),
        *(Counter("abca"), OrderedDict(b=1, a=2), deque([1], 3), defaultdict(list, {1: [2]})),
        *(Decimal("1.500"), Decimal("Infinity"), Fraction(1, 3)),
        *(datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC), datetime.time(1, 2, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_type_that_is_plain(value: object) -> None:
    again = there_and_back(value)
    assert (type(again), again) == (type(value), value)
    if isinstance(value, float):
        assert math.copysign(1, again) == math.copysign(1, value)


def test_not_a_number_stays_none() -> None:
    assert math.isnan(there_and_back(math.nan))


class Text(str):
    """Not plain: it may compare as it likes."""


@pytest.mark.parametrize("value", [Text("a"), [Text("a")], {Text("a"): 1}, object(), len, type])
def test_everything_else_is_somebody_elses(value: object) -> None:
    with pytest.raises(UnplainError):
        encode(value, refuse)
    assert encode([1, value][1:], lambda found: {"h": [1, 2]}).count('{"h":[1,2]}') == 1


def test_containers_without_end() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(UnplainError, match="without end"):
        encode(value, refuse)
    with pytest.raises(UnplainError, match="million digits"):
        encode(1 << (1 << 23), refuse)


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "1 2", "[1", "{}", '{"t":1}', '{"t":[1],"s":[1]}', '{"zz":1}'),
        *('{"d":[[1],[]]}', '{"d":[1]}', '{"s":[[1]]}', '{"d":[[[1]],[1]]}', '{"i":"x"}'),
        *('{"r":[1,2,0]}', '{"r":[1.5,2,1]}', '{"r":[true,2,1]}', '{"b":"?"}', '{"n":"x"}'),
        *('{"x":[1,0]}', '{"c":["1","2"]}', '{"q":[[1],"3"]}', '{"w":["date","yesterday"]}'),
        *('{"w":["eval","1"]}', '{"w":[]}', '{"n":1}', "9" * 5000, '{"i":"0x' + "f" * 2**21 + '"}'),
        *("[" * 100_000, '{"t":[' * 300 + "]}" * 300),
    ],
    ids=lambda text: text[:24],
)
def test_what_nobody_sends_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        decode(text, unknown)


@given(st.text(alphabet='[]{}",:0123456789.eE-tsfdOCDqbacrlenxwinull ', max_size=60))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    try:
        decode(text, unknown)
    except WireError:
        return
