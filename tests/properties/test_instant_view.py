"""``trails.instant_v1`` and ``app.trace.instant`` read a text as the same instant (cases C13, C14)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from app.trace.instant import parse_instant
from tests.support.postgres import Database

MICROSECONDS = "SELECT round(extract(epoch FROM trails.instant_v1($1)) * 1000000)::bigint"

digits = st.text("0123456789", min_size=1, max_size=12)
numbers = st.integers(0, 99).map("{:02}".format)
years = st.integers(0, 9999).map("{:04}".format) | st.sampled_from(
    ["0000", "0001", "1900", "2000", "2024", "9999"]
)
months = st.integers(1, 12).map("{:02}".format) | st.sampled_from(["00", "02", "13"])
days = st.integers(1, 31).map("{:02}".format) | st.sampled_from(["00", "29", "30", "31", "32"])
hours = st.integers(0, 23).map("{:02}".format) | st.just("24")
sixties = st.integers(0, 59).map("{:02}".format) | st.just("60")
zones = st.sampled_from(
    ["Z", "z", "", "+00:00", "-00:00", "+0530", "+05", " Z", "Z\n", "+23:59", "-23:59", "+24:00"]
) | st.builds("{}{}:{}".format, st.sampled_from("+-"), numbers, numbers)
likely = st.builds(
    "{}-{}-{}{}{}:{}:{}{}{}".format,
    *(years, months, days, st.sampled_from(["T", "T", "T", "t", " "]), hours, sixties, sixties),
    st.just("") | digits.map(".{}".format) | st.sampled_from([".", ",5", ".9999996", ".000000999"]),
    zones,
)
good = st.datetimes().map(lambda moment: moment.isoformat() + "Z")
# The database takes no U+0000 and no surrogate; such a text cannot stand in a document either.
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
other_digits = st.just("2024-01-01T00:00:0\u0661Z") | st.just("\uff1224-01-01T00:00:00Z")


@pytest.fixture
def asked(database: Database) -> Iterator[Any]:
    """What the database reads in a text: microseconds since 1970, or None."""
    with asyncio.Runner() as runner:
        connection = runner.run(
            asyncpg.connect(database.admin_url, server_settings={"timezone": "Asia/Tokyo"})
        )
        yield lambda text: runner.run(_asked(connection, text))
        runner.run(connection.close())


async def _asked(connection: asyncpg.Connection[Any], text: str) -> int | None:
    value: int | None = await connection.fetchval(MICROSECONDS, text)
    return value


def expected(text: str) -> int | None:
    try:
        return parse_instant(text)
    except ValueError:
        return None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(likely | good | any_text | other_digits, min_size=10, max_size=10))
@example(texts=["2016-12-31T23:59:60Z", "2024-01-01T24:00:00Z", "2024-03-31T02:30:00", "20240101T000000Z"])
@example(texts=["2024-W01-1", "2024-001T00:00:00Z", "2024-01-01T00:00:00+05:30", "2024-01-01T00:00:00-00:00"])
@example(texts=["2024-01-01T00:00:00.123456789Z", "2024-12-31T23:59:59.9999996Z", "2024-01-01T00:00:00Z"])
@example(
    texts=["2023-02-29T00:00:00Z", "2024-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2000-02-29T00:00:00Z"]
)
@example(texts=["9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-00:01", "0001-01-01T00:00:00+00:01"])
@example(texts=["0001-01-01T00:00:00Z", "0001-01-01T00:00:59.9999999Z", "0001-12-31T23:59:59.000001-00:00"])
def test_c13_c14_the_database_and_the_service_read_the_same_instants(asked: Any, texts: list[str]) -> None:
    for text in texts:
        assert asked(text) == expected(text), text


def test_some_of_it_is_an_instant_at_all() -> None:
    assert expected("2024-01-01T00:00:00+05:30") == 1_704_047_400_000_000
    assert expected("2024-12-31T23:59:59.9999996Z") == 1_735_689_599_999_999
    assert expected("2024-03-31T02:30:00") is None
