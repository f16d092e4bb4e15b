"""Token buckets and what is counted in them (case H12)."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import TooManyRequestsError, UnauthorizedError
from app.http.limits import BURST_SECS, Buckets, Limits
from app.principal import Principal, Role

SEC = 1_000_000_000
TENANT, OTHER = UUID(int=1), UUID(int=2)


def taken(buckets: Buckets[str], key: str, now: int, tries: int) -> int:
    return sum(buckets.take(key, now) for _ in range(tries))


@pytest.mark.parametrize("rate", [1, 3, 7, 1_000])
def test_a_burst_is_so_many_seconds_of_the_rate_and_no_more(rate: int) -> None:
    buckets: Buckets[str] = Buckets(rate)
    assert taken(buckets, "a", 5, BURST_SECS * rate + 10) in {BURST_SECS * rate, BURST_SECS * rate + 1}


def test_what_was_taken_comes_back_at_the_rate_and_not_beyond_the_burst() -> None:
    buckets: Buckets[str] = Buckets(2)
    assert taken(buckets, "a", 0, 99) == 10
    assert taken(buckets, "a", SEC, 99) == 2
    assert taken(buckets, "a", SEC + SEC // 2 - 1, 99) == 0
    assert taken(buckets, "a", SEC + SEC // 2, 99) == 1
    assert taken(buckets, "a", 1_000 * SEC, 99) == 10


def test_a_refusal_takes_nothing() -> None:
    buckets: Buckets[str] = Buckets(1)
    assert taken(buckets, "a", 0, 1_000_000) == BURST_SECS
    assert taken(buckets, "a", SEC, 99) == 1


def test_nobody_takes_from_another() -> None:
    buckets: Buckets[str] = Buckets(1)
    assert taken(buckets, "a", 0, 99) == taken(buckets, "b", 0, 99) == BURST_SECS


def test_h12_a_flood_of_peers_takes_no_more_memory_than_the_bound() -> None:
    buckets: Buckets[str] = Buckets(1, capacity=100)
    for number in range(10_000):
        assert buckets.take(str(number), 0)
    assert len(buckets) == 100


def test_h12_who_goes_on_is_not_forgotten_for_those_who_come_once() -> None:
    buckets: Buckets[str] = Buckets(1, capacity=100)
    assert taken(buckets, "busy", 0, 99) == BURST_SECS
    for number in range(1_000):
        buckets.take(str(number), 0)
        assert not buckets.take("busy", 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20), st.lists(st.integers(0, 2 * SEC), max_size=200))
def test_in_no_span_of_time_is_more_taken_than_burst_and_rate_allow(rate: int, pauses: list[int]) -> None:
    buckets: Buckets[str] = Buckets(rate)
    now, times = 0, []
    for pause in pauses:
        now += pause // 20
        if buckets.take("a", now):
            times.append(now)
    for first in range(len(times)):
        for last in range(first, len(times)):
            span = (times[last] - times[first]) / SEC
            assert last - first + 1 <= rate * (BURST_SECS + span) + 1.001


def principal(name: str, tenant: UUID = TENANT, key_id: str | None = None) -> Principal:
    return Principal(tenant_id=tenant, role=Role.WRITER, name=name, key_id=key_id)


def test_h12_each_key_of_each_tenant_has_a_limit_of_its_own() -> None:
    limits = Limits(rate_per_key=1, failures_per_peer=0)
    callers = [
        principal("a", key_id="0" * 16),
        principal("a", key_id="1" * 16),
        principal("a", OTHER, "0" * 16),
        Principal(tenant_id=TENANT, role=Role.AGENT, name="a", agent_id="a"),
        Principal(tenant_id=OTHER, role=Role.AGENT, name="a", agent_id="a"),
    ]
    for caller in callers:
        for _ in range(BURST_SECS):
            assert limits.admit(caller) is caller
    for caller in callers:
        with pytest.raises(TooManyRequestsError, match="TRAILS_RATE_PER_KEY"):
            limits.admit(caller)


def test_limits_that_are_off_count_nothing() -> None:
    limits = Limits(rate_per_key=0, failures_per_peer=0)
    for _ in range(1_000):
        limits.admit(principal("a"))
        assert isinstance(limits.failure("192.0.2.1", UnauthorizedError()), UnauthorizedError)


def test_h12_a_site_that_goes_on_failing_is_told_so() -> None:
    limits = Limits(rate_per_key=0, failures_per_peer=1)
    told = [type(limits.failure("192.0.2.1", UnauthorizedError())) for _ in range(20)]
    assert told[:BURST_SECS] == [UnauthorizedError] * BURST_SECS
    assert told[-1] is TooManyRequestsError
    assert isinstance(limits.failure("192.0.2.2", UnauthorizedError()), UnauthorizedError)
