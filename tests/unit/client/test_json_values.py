"""Any Python value becomes JSON that the service takes; nothing fails, nothing runs for ever."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import itertools
import json
import pathlib
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chain.strict import parse
from app.client.json_values import (
    MAX_NODE_BYTES,
    STEPS,
    Limits,
    cut,
    escape,
    fitted,
    json_value,
    text,
    unescape,
)


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Place(msgspec.Struct):
    town: str
    street: str | msgspec.UnsetType = msgspec.UNSET


class Person(pydantic.BaseModel):
    name: str
    password: pydantic.SecretStr


@attrs.define
class Car:
    wheels: int


class Named(NamedTuple):
    p: int
    q: int


class Hostile:
    def __repr__(self) -> str:
        raise OSError("no")


class HostileMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise OSError

    def __iter__(self) -> Iterator[str]:
        yield "a"

    def __len__(self) -> int:
        raise OSError


class Endless(collections.abc.Sequence):  # type: ignore[type-arg]
    def __getitem__(self, index: Any) -> int:
        return 1

    def __len__(self) -> int:
        return 1


TIMED_OUT = "Command 'x' timed out after 1 seconds"
UUID = uuid.UUID("5a1c0000-0000-4000-8000-000000000001")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (True, True),
        (10**127, 10**127),
        (10**128, "1" + "0" * 128),
        (-(16**5000), "-0x1" + "0" * 5000),
        (decimal.Decimal("1.10"), "1.10"),
        (fractions.Fraction(1, 3), "1/3"),
        (dt.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02T03:04:05"),  # noqa: DTZ001  without a zone on purpose
        (dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "2024-01-02T00:00:00+00:00"),
        (dt.date(2024, 1, 2), "2024-01-02"),
        (dt.timedelta(seconds=1.5), "PT1.5S"),
        (UUID, str(UUID)),
        (pathlib.PurePosixPath("/a"), "/a"),
        (b"\x00\xff", {"base64": "AP8="}),
        (bytearray(b"a"), {"base64": "YQ=="}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset(), []),
        (collections.deque([1]), [1]),
        (range(3), [0, 1, 2]),
        ({"a": 1}.values(), [1]),
        ((1, (2,)), [1, [2]]),
        (Point(1, Point(2)), {"x": 1, "y": {"x": 2, "y": None}}),
        (Colour.RED, "red"),
        (Size.LARGE, 3),
        (Place("Ulm"), {"town": "Ulm"}),
        (Named(1, 2), {"p": 1, "q": 2}),
        (Car(4), {"wheels": 4}),
        (ValueError("bad"), {"type": "ValueError", "message": "bad"}),
        (uuid.SafeUUID, "uuid.SafeUUID"),
        (subprocess.TimeoutExpired("x", 1), {"type": "subprocess.TimeoutExpired", "message": TIMED_OUT}),
        (int, "int"),
        (json.loads, "json.loads"),
        ({1: "a", "1": "b", None: 3, (1, 2): 4}, {"1": "a", "1 (2)": "b", "null": 3, "[1,2]": 4}),
        ({"1": 1, 1: 2, "1 (2)": 3}, {"1": 1, "1 (2)": 2, "1 (2) (2)": 3}),
        (itertools.count(), "count(0)"),
        (Hostile(), "…[Hostile whose repr fails: OSError]"),
        (HostileMapping(), {"…": "…[some more not recorded: OSError]"}),
        ("a\0b\ud800c", "a␛0000b␛d800c"),
        ({"k\0": 1}, {"k␛0000": 1}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_become(value: object, expected: object) -> None:
    assert json_value(value) == expected
    assert type(json_value(value)) is type(expected)


def test_a_secret_of_a_model_stays_secret() -> None:
    found = json_value(Person(name="Ada", password=pydantic.SecretStr("hunter2")))
    assert isinstance(found, dict)
    assert found["name"] == "Ada"
    assert "hunter2" not in json.dumps(found)


def test_what_contains_itself_ends() -> None:
    items: list[object] = [1]
    items.append(items)
    members: dict[str, object] = {"items": items}
    members["again"] = [members]
    assert json_value(members) == {
        "items": [1, "…[list that contains itself]"],
        "again": ["…[dict that contains itself]"],
    }


def test_what_is_shared_is_no_cycle() -> None:
    shared = {"a": 1}
    assert json_value([shared, shared]) == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize("open_", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_c12_depth_is_bounded_far_below_the_services_limit(open_: Any) -> None:
    deep: object = None
    for _ in range(100_000):
        deep = open_(deep)
    found = msgspec.json.encode({"trace_tree": [{"inputs": json_value(deep)}]})
    parse(found)  # the service's own parser, with its limit
    assert "nested deeper than 100 levels" in found.decode()


def test_endless_and_exponential_values_are_cut() -> None:
    doubled: object = [1]
    for _ in range(60):
        doubled = [doubled, doubled]
    for value in (doubled, range(10**30), Endless(), {"a": Endless()}):
        parse(msgspec.json.encode(json_value(value)), max_values=200_000)
    found = json_value(list(range(60_000)))
    assert isinstance(found, list)
    assert found[-1] == f"…[{60_000 - len(found) + 1} more not recorded]"
    members = json_value({str(n): n for n in range(60_000)})
    assert isinstance(members, dict)
    assert members["…"] == f"…[{60_000 - len(members) + 1} more not recorded]"


def test_an_iterator_is_not_consumed() -> None:
    numbers = iter([1, 2])
    json_value({"numbers": numbers})
    assert list(numbers) == [1, 2]


def test_strings_over_the_services_limit_are_cut_and_say_how_long_they_were() -> None:
    for character in ("a", "é", "\0", "\ud800", "🙂"):
        found = json_value(character * 2_000_000)
        assert isinstance(found, str)
        assert found.endswith("…[cut: 2000000 characters in all]")
        assert len(found.encode()) <= Limits().string_bytes
        parse(msgspec.json.encode([found]))


def test_a_cut_leaves_no_half_escape() -> None:
    for most in range(40, 60):
        kept = text("\0" * 100, most).partition("…")[0]
        assert unescape(kept) == "\0" * (len(kept) // 5)


def test_bytes_over_the_limit_say_how_many_they_were() -> None:
    found = json_value(b"x" * 3_000_000)
    assert isinstance(found, dict)
    assert found["…"] == "…[cut: 3000000 bytes in all]"


@pytest.mark.parametrize(
    "inputs", ["\x01" * 10**6, ["🙂" * 10**5] * 50, [["x" * 300] * 100] * 500, {"\x01" * 900: 1}]
)
def test_a_node_always_fits_into_a_request(inputs: object) -> None:
    node = {name: json_value(inputs) for name in ("inputs", "outputs", "metadata")}
    assert len(fitted(node)) <= MAX_NODE_BYTES
    assert set(json.loads(fitted(node))) == set(node)


def test_the_last_step_always_fits() -> None:
    most = STEPS[-1]
    worst = {"inputs": json_value(["\x01" * 10**6] * 10**5), "outputs": json_value({"\x01" * 10**6: 1})}
    assert len(fitted(worst)) <= MAX_NODE_BYTES
    assert 6 * 3 * most.values * most.string_bytes < MAX_NODE_BYTES


@given(st.text(st.characters(codec=None) | st.sampled_from("\0\ud800\udfff␛0a")))
def test_escapes_give_the_text_back(value: str) -> None:
    escaped = escape(value)
    assert unescape(escaped) == value
    assert "\0" not in escaped
    escaped.encode()


@given(st.text(), st.integers(40, 200))
def test_cut_text_is_never_too_long(value: str, most: int) -> None:
    assert len(cut(value, most).encode()) <= most
    assert len(text(value, most).encode()) <= most


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)) | st.binary()
    | st.decimals() | st.datetimes() | st.timedeltas() | st.uuids() | st.builds(Hostile),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)) | st.integers(), inner)
    | st.tuples(inner) | st.builds(Point, st.just(1), inner),
)  # fmt: skip


@given(anything)
def test_c11_whatever_it_is_the_services_parser_takes_it(value: object) -> None:
    parse(msgspec.json.encode(json_value(value)))
