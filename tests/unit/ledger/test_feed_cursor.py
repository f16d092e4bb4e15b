"""Snapshots as PostgreSQL means them, and cursors that nobody else can make or read."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import BadRequestError
from app.ledger.feed.cursor import Anchor, Cursor, Cursors, Place, Position, Source
from app.ledger.feed.snapshot import Snapshot

TENANT, OTHER = UUID(int=1), UUID(int=2)
SOURCE = Source(7_714_037_023_280_628_504, 1, 16_385)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    xmin = draw(st.integers(3, 60))
    xmax = draw(st.integers(xmin, xmin + 12))
    running = draw(st.sets(st.integers(xmin, xmax - 1))) if xmax > xmin else set()
    return Snapshot(xmin, xmax, tuple(sorted(running)))


@given(snapshots())
def test_a_snapshot_is_read_and_written_as_postgresql_does(snapshot: Snapshot) -> None:
    assert Snapshot.parse(str(snapshot)) == snapshot


@given(snapshots(), snapshots())
def test_one_covers_another_when_it_shows_all_of_it(one: Snapshot, other: Snapshot) -> None:
    shows_all = all(one.shows(xid) for xid in range(3, 90) if other.shows(xid))
    if one.covers(other):
        assert shows_all
    if shows_all and one.xmin >= other.xmin and one.xmax >= other.xmax:
        assert one.covers(other)


@given(snapshots(), snapshots(), st.integers(0, 2**62), st.binary(min_size=16, max_size=16))
def test_a_cursor_is_opened_as_it_was_sealed(
    since: Snapshot, upto: Snapshot, seq: int, log_uuid: bytes
) -> None:
    cursors = Cursors(bytes(32))
    position = Position(since, None, upto, Place(log_uuid, seq))
    cursor = Cursor(SOURCE, position, Anchor(log_uuid, seq, b"12345678"))
    text = cursors.seal(TENANT, cursor)
    assert cursors.open(TENANT, text) == cursor
    assert cursors.seal(TENANT, cursor) == text
    with pytest.raises(BadRequestError):
        cursors.open(OTHER, text)
    with pytest.raises(BadRequestError):
        Cursors(bytes([1]) * 32).open(TENANT, text)


def test_nobody_reads_from_a_cursor_how_much_others_write() -> None:
    cursors = Cursors(bytes(32))
    one, two = (
        cursors.seal(TENANT, Cursor(SOURCE, Position(Snapshot(number, number)))) for number in (1_000, 1_001)
    )
    assert sum(a != b for a, b in zip(one, two, strict=True)) > len(one) / 2
