"""Snapshots compared with the records before them, by one reader, and by several that see a piece each."""

from __future__ import annotations

import pickle

import pytest

from app.chain.record import Draft, VerifiedRecord
from app.errors import ChainError, FoldError, UnknownKindError
from app.fold.compare import Gathered, Gathering, SnapshotCheck
from tests.support.guard_chain import AGENT, KEY
from tests.support.snapshots import CHAIN_ID, SnapshotChain, refunded


def chain_with(*, false: int | None = None) -> list[VerifiedRecord]:
    """Four snapshots with work between them; the one of number ``false`` is not what the records come to."""
    chain = SnapshotChain()
    for number in range(4):
        chain.work(2)
        chain.snapshot(refunded if number == false else lambda payload: payload)
    chain.work(1)
    return chain.records


def read(records: list[VerifiedRecord], check: SnapshotCheck | None = None) -> SnapshotCheck:
    check = check or SnapshotCheck(CHAIN_ID)
    for record in records:
        check.push(record, KEY.public)
    return check


def gathered(records: list[VerifiedRecord]) -> Gathered:
    """What another process hands over of a piece."""
    gathering = Gathering(CHAIN_ID)
    for record in records:
        gathering.push(record, KEY.public)
    found: Gathered = pickle.loads(pickle.dumps(gathering.done()))  # noqa: S301  our own, as between processes
    return found


def said(check: SnapshotCheck) -> object:
    try:
        return check.said()
    except ValueError:
        return "in the middle of an act"


def test_every_snapshot_is_compared() -> None:
    read(chain_with())
    for number in range(4):
        with pytest.raises(FoldError, match="not the fold of the records before it"):
            read(chain_with(false=number))


def test_pieces_of_any_length_come_to_the_same_as_the_whole() -> None:
    records = chain_with()
    for at in range(1, len(records)):
        front, back = records[:at], records[at:]
        moved = read(front).after(gathered(back), back[-1].head)
        assert said(moved) == said(read(records))
        assert said(moved) is not None
        begun = read(front).gathered()
        assert begun is not None
        read(back, SnapshotCheck(CHAIN_ID).after(begun, front[-1].head))


def test_a_false_one_is_found_wherever_pieces_begin() -> None:
    """The first of a piece by whoever knows what stands before it, the others by whoever reads the piece."""
    for number in range(4):
        records = chain_with(false=number)
        [false, *_] = [r.seq for r in records if r.kind == "snapshot"][number:]
        for at in range(1, false + 1):
            front, back = records[:at], records[at : false + 1]
            with pytest.raises(FoldError):
                read(front).after(gathered(back), back[-1].head)


def test_what_was_gathered_behind_a_snapshot_is_short() -> None:
    chain = SnapshotChain()
    chain.snapshot()
    chain.work(20)
    assert [record.kind for record, _ in gathered(chain.records[1:]).records] == ["policy", "snapshot"]


def test_one_that_begins_in_the_middle_is_no_fault() -> None:
    """What stands before it is not known, so nothing can be said of its snapshots, true or false."""
    records = chain_with(false=2)
    check = read(records[5:])
    assert check.said() is None
    assert check.gathered() is None


def test_behind_a_kind_that_is_not_known_nothing_vouches_for_one() -> None:
    chain = SnapshotChain()
    chain.work(1)
    true = chain.snapshot()
    unheard_of = Draft("unheard-of", {}, AGENT)
    records = list(chain.records)
    from app.chain.link import seal_all

    later = seal_all([unheard_of, Draft(true.kind, true.payload, true.actor)], true.head, chain.now_us, KEY)
    with pytest.raises(UnknownKindError):
        read([*records, *later])
    with pytest.raises(ChainError):
        gathered([*records, *later])


def test_where_it_stands_is_said_and_gone_on_from() -> None:
    from app.chain.audit import ChainAudit

    records = chain_with(false=3)
    for at in range(2, len(records) - 8):
        audit, check = ChainAudit(KEY.public), SnapshotCheck(CHAIN_ID)
        for record in records[:at]:
            audit.add(record)  # type: ignore[arg-type]
            check.push(record, KEY.public)
        if said(check) == "in the middle of an act":
            continue
        position = audit.position()
        assert position is not None
        with pytest.raises(FoldError):
            read(records[at:], SnapshotCheck.resume(CHAIN_ID, check.said(), position))
