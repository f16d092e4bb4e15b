"""Surveys that are kept: within their bytes and their time, each its tenant's alone."""

from __future__ import annotations

from uuid import UUID

import msgspec

from app.ledger.surveys import Survey, Surveys
from app.trace.tree import Sending, Source, assemble

TENANT, OTHER = UUID(int=1), UUID(int=2)


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def survey(nodes: int, name: str = "n") -> Survey[str]:
    """A session of so many nodes."""
    source = Source(UUID(int=9), "scout", 1, "0" * 64, 1, guarded=False)
    sendings = [
        Sending(source, place, str(UUID(int=place)), None, "TOOL_CALL", name, None, None, b"")
        for place in range(nodes)
    ]
    return Survey(
        tree=assemble(sendings),
        seen=["what was seen"],
        sendings=sendings,
        agents=["scout"],
        kinds={"trace": 1},
        records=1,
        first_us=1,
        last_us=1,
        unverified=[],
        unverified_records=0,
    )


def test_what_was_seen_is_not_kept() -> None:
    surveys, one = Surveys(), survey(2)
    surveys.keep(TENANT, UUID(int=5), one)
    assert surveys.get(TENANT, UUID(int=5)) == msgspec.structs.replace(one, seen=[])
    assert surveys.get(OTHER, UUID(int=5)) is None
    surveys.drop(TENANT, UUID(int=5))
    assert surveys.get(TENANT, UUID(int=5)) is None


def test_those_looked_at_longest_ago_make_room() -> None:
    one = survey(10)
    surveys = Surveys(most_bytes=3 * one.size)
    for number in range(3):
        surveys.keep(TENANT, UUID(int=number), one)
    assert surveys.get(TENANT, UUID(int=0)) is not None
    surveys.keep(TENANT, UUID(int=3), one)
    kept = [number for number in range(4) if surveys.get(TENANT, UUID(int=number)) is not None]
    assert kept == [0, 2, 3]
    assert surveys.size == 3 * one.size


def test_one_that_is_too_large_is_not_kept_and_makes_no_room() -> None:
    one, large = survey(10), survey(10, "x" * 10_000)
    surveys = Surveys(most_bytes=2 * one.size)
    surveys.keep(TENANT, UUID(int=1), one)
    surveys.keep(TENANT, UUID(int=2), large)
    assert surveys.get(TENANT, UUID(int=2)) is None
    assert surveys.get(TENANT, UUID(int=1)) is not None
    surveys.keep(TENANT, UUID(int=1), large)
    assert surveys.get(TENANT, UUID(int=1)) is None, "the one before is another session by now"


def test_one_that_nobody_looks_at_is_forgotten() -> None:
    clock = Clock()
    surveys = Surveys(secs=10, clock=clock)
    surveys.keep(TENANT, UUID(int=1), survey(1))
    surveys.keep(TENANT, UUID(int=2), survey(1))
    clock.now = 9
    assert surveys.get(TENANT, UUID(int=1)) is not None
    clock.now = 11
    assert surveys.get(TENANT, UUID(int=2)) is None
    assert surveys.get(TENANT, UUID(int=1)) is not None
    clock.now = 21
    surveys.keep(TENANT, UUID(int=3), survey(1))
    assert surveys.size == survey(1).size
