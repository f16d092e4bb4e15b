"""Instants: the accepted forms, what is refused, one spelling of each (cases C13, C14)."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chain.record import format_timestamp
from app.trace.instant import (
    MAX_AHEAD_US,
    MAX_BEHIND_US,
    canonical_instant,
    is_skewed,
    parse_day_or_instant,
    parse_instant,
)

ZONES = st.timedeltas(dt.timedelta(hours=-23, minutes=-59), dt.timedelta(hours=23, minutes=59)).map(
    lambda delta: dt.timezone(dt.timedelta(minutes=delta // dt.timedelta(minutes=1)))
)
MOMENTS = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31), timezones=ZONES)  # noqa: DTZ001  zones are drawn


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00.000000Z"),
        ("2024-01-01T00:00:00.123456789Z", "2024-01-01T00:00:00.123456Z"),
        ("2023-12-31T23:59:59.9999996Z", "2023-12-31T23:59:59.999999Z"),
        ("2024-01-01T00:00:00.5Z", "2024-01-01T00:00:00.500000Z"),
        (f"2024-01-01T00:00:00.{'9' * 5_000}Z", "2024-01-01T00:00:00.999999Z"),
        ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        ("9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_c13_what_is_finer_than_a_microsecond_is_cut(sent: str, kept: str) -> None:
    assert canonical_instant(sent) == kept


@pytest.mark.parametrize(
    "sent",
    [
        "2024-01-01T00:00:00Z",
        "2024-01-01T05:30:00+05:30",
        "2023-12-31T23:00:00-01:00",
        "2024-01-01T00:00:00-00:00",
        "2024-01-01T00:00:00.000+00:00",
        "2024-01-01T23:59:00+23:59",
    ],
)
def test_c14_one_instant_has_one_spelling(sent: str) -> None:
    assert canonical_instant(sent) == "2024-01-01T00:00:00.000000Z"


REFUSED = [
    "2016-12-31T23:59:60Z",
    "2024-01-01T24:00:00Z",
    "2024-03-31T02:30:00",
    "2024-03-31T02:30:00.5",
    "20240101T000000Z",
    "2024-W01-1",
    "2024-W01-1T00:00:00Z",
    "2024-001T00:00:00Z",
    "2024-01-01",
    "2024-01-01T00:00Z",
    "2024-01-01t00:00:00Z",
    "2024-01-01T00:00:00z",
    "2024-01-01 00:00:00Z",
    "2024-01-01T00:00:00,5Z",
    "2024-01-01T00:00:00.Z",
    "2024-01-01T00:00:00+0530",
    "2024-01-01T00:00:00+05",
    "2024-01-01T00:00:00+24:00",
    "2024-01-01T00:00:00+05:60",
    "2024-01-01T00:00:00\u221205:30",
    "2024-01-01T00:00:00+05:30:15",
    "2024-01-01T00:60:00Z",
    "2024-02-30T00:00:00Z",
    "2023-02-29T00:00:00Z",
    "2024-13-01T00:00:00Z",
    "2024-00-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "10000-01-01T00:00:00Z",
    "+2024-01-01T00:00:00Z",
    "0001-01-01T00:00:00+00:01",
    "9999-12-31T23:59:59-00:01",
    " 2024-01-01T00:00:00Z",
    "2024-01-01T00:00:00Z\n",
    "\uff12\uff10\uff12\uff14-01-01T00:00:00Z",
    "2024-01-01T00:00:00.\u0663Z",
    "1704067200",
    "now",
    "",
]


@pytest.mark.parametrize("sent", REFUSED)
def test_c14_every_other_form_is_refused(sent: str) -> None:
    with pytest.raises(ValueError, match=r"must be a time|no time that exists|not within"):
        parse_instant(sent)


@pytest.mark.parametrize("day", ["2026-11-30", "2024-02-29", "0001-01-01", "9999-12-31"])
def test_a_day_is_its_start_in_utc_where_one_may_be_meant(day: str) -> None:
    assert parse_day_or_instant(day) == parse_instant(f"{day}T00:00:00Z")
    assert parse_day_or_instant(f"{day}T12:00:00+01:00") == parse_instant(f"{day}T11:00:00Z")


@pytest.mark.parametrize(
    "sent", [*REFUSED, "2023-02-29", "0000-01-01", "2024-1-1", "2024-01-01Z", " 2024-01-01"]
)
def test_c14_every_other_form_of_a_day_or_an_instant_is_refused(sent: str) -> None:
    if sent != "2024-01-01":
        with pytest.raises(ValueError, match=r"must be a time|no time that exists|not within"):
            parse_day_or_instant(sent)


@given(MOMENTS)
def test_an_instant_is_what_its_written_form_means(moment: dt.datetime) -> None:
    # Python's own arithmetic of zones is the oracle.
    exact = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    assert parse_instant(moment.isoformat()) == exact
    assert parse_instant(format_timestamp(exact)) == exact


@given(MOMENTS, st.from_regex(r"[0-9]{1,12}", fullmatch=True))
def test_c13_no_fraction_moves_an_instant_into_another_second(moment: dt.datetime, digits: str) -> None:
    whole = moment.replace(microsecond=0).isoformat()
    written = f"{whole[:19]}.{digits}{whole[19:]}"
    assert 0 <= parse_instant(written) - parse_instant(whole) < 1_000_000
    assert canonical_instant(written)[:19] == canonical_instant(whole)[:19]


def test_t13_a_time_is_skewed_beyond_its_bounds_only() -> None:
    assert not is_skewed(MAX_AHEAD_US, 0)
    assert is_skewed(MAX_AHEAD_US + 1, 0)
    assert not is_skewed(0, MAX_BEHIND_US)
    assert is_skewed(0, MAX_BEHIND_US + 1)
