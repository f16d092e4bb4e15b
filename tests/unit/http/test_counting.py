"""Counting: bounds belong to what is below them, and nothing that is sent makes a series of its own."""

from __future__ import annotations

from app.guard.answers import Act, Allowed, Denied
from app.http.traffic import Traffic
from app.ledger.meter import MAX_TENANTS, OTHERS, Distribution, Meter

ALLOWED = Act((), Allowed("act-1", 1, 2))


def test_a_bound_is_part_of_what_is_below_it() -> None:
    spread = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        spread.add(value)
    assert (spread.counts, spread.total) == ([2, 2, 1], 7.5)


def test_decisions_are_counted_by_tenant_verdict_and_code() -> None:
    meter = Meter()
    meter.decided("acme", ALLOWED)
    meter.decided("acme", Act((), Denied("act-2", {"code": "tool_not_allowed", "tool": "rm"})))
    meter.decided("acme", Act(()))
    assert meter.decisions == {("acme", "allowed", ""): 1, ("acme", "denied", "tool_not_allowed"): 1}


def test_tenants_beyond_the_limit_are_counted_together() -> None:
    meter = Meter()
    for number in range(MAX_TENANTS + 5):
        meter.decided(f"tenant-{number}", ALLOWED)
    meter.decided("tenant-0", ALLOWED)
    assert len(meter.decisions) == MAX_TENANTS + 1
    assert meter.decisions[OTHERS, "allowed", ""] == 5
    assert meter.decisions["tenant-0", "allowed", ""] == 2


def test_a_method_that_a_route_does_not_have_is_no_series_of_its_own() -> None:
    traffic = Traffic()
    for method in ("PUT", "PROPFIND", "MKCOL"):
        traffic.count(method, "/v1/agents", 405, 0.001)
    traffic.count("GET", "/v1/agents", 200, 0.001)
    traffic.count("GET", "/v1/agents", 0, 0.001)
    assert {place: one.by_class for place, one in traffic.answered.items()} == {
        ("other", "/v1/agents"): [0, 0, 0, 0, 3, 0],
        ("GET", "/v1/agents"): [1, 0, 1, 0, 0, 0],
    }
