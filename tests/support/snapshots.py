"""A guarded agent's chain with snapshots, true ones and false ones, and no table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from app.chain.record import SNAPSHOT, Draft, VerifiedRecord, export_line
from app.fold.fold import GUARD, ChainId, Fold
from app.guard.words import OutcomeStatus
from tests.support.guard_chain import AGENT, KEY, LOG, GuardChain, policy_document

CHAIN_ID = ChainId(UUID(int=0), AGENT, LOG, guarded=True)

Payload = dict[str, Any]


class SnapshotChain(GuardChain):
    """A guarded chain whose snapshots are taken, and forged, when the test says so."""

    def __init__(self) -> None:
        super().__init__(policy_document(budget=100_000, scar_limit=10_000))

    def snapshot(self, change: Callable[[Payload], Payload] = lambda payload: payload) -> VerifiedRecord:
        """Appends the snapshot that stands here, or what ``change`` makes of it, under the right key."""
        fold = Fold(CHAIN_ID)
        fold.state, fold.key, fold.genesis_key = self.state, KEY.public, KEY.public
        payload = msgspec.json.decode(msgspec.json.encode(fold.snapshot().payload))
        [record] = self.append(Draft(SNAPSHOT, change(payload), GUARD))
        return record

    def work(self, rounds: int) -> None:
        """Asks of all sorts, and an event now and then: allowed, held, denied, failed."""
        for number in range(rounds):
            self.ask("search", number)
            status = OutcomeStatus.SUCCESS if number % 3 else OutcomeStatus.FAILURE
            self.report(f"act-{self.state.action_count}", status)
            self.append(Draft("event", {"type": "seen", "data": number}, AGENT))
            if number % 2:
                self.ask("email", {"to": number})

    def export(self, first: int = 0) -> bytes:
        """The export lines from ``first`` on."""
        return exported(self.records[first:])


def exported(records: list[VerifiedRecord]) -> bytes:
    """Export lines of these records."""
    return b"".join(export_line(record).encode() + b"\n" for record in records)


def refunded(payload: Payload) -> Payload:
    """A snapshot's payload that forgets what was spent."""
    return {**payload, "state": {**payload["state"], "spent": 0}}
