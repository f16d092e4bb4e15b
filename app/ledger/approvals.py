"""The approval queue: what waits for a person, of all agents of a tenant.

Where to look, an index says (``db.waiting``), as long as the queue and no longer; what waits there, the
chains say. A chain that this process knows up to its newest record is not read again, so that a look at the
queue costs two statements, however many agents there are and however old they are.
"""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

import db.ledger
import db.waiting
from app.chain.record import Head
from app.errors import BadRequestError, ConflictError, TrailsError
from app.guard.state import GuardState, Pending
from app.ledger.chain import ChainId
from app.ledger.fresh import Fresh
from app.ledger.read import GONE, pending_entry
from app.moment import from_microseconds, to_microseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from app.chain.strict import JsonObject
    from app.ledger.act import Actor
    from app.ledger.chain import Chain, Chains
    from app.ledger.clock import Clock
    from db.ledger import TrailRow
    from db.pool import Pool
    from db.waiting import WaitingRow

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
"""Actions in one page, unless told otherwise, and at most."""

PAGE_BYTES: Final = 8 * 1024 * 1024
"""Text of requests in one page: one more at most."""

AT_ONCE: Final = 8
"""Chains brought up to date at the same moment: as many as there are connections."""

MOST_COUNTED: Final = 1_000
"""Beyond this nobody cares how long the queue is."""

MARK_SECS: Final = 1.0
MARKS: Final = 10_000
"""How often one look is taken for all who watch a queue, and for how many tenants it is remembered."""

_PLACE: Final = re.compile(r"([0-9]{1,17}),([0-9a-f]{32}),([^\x00]{1,64})")
_BEGINNING: Final = (from_microseconds(0), UUID(int=0), "")


class Place(msgspec.Struct, frozen=True):
    """A place in the queue: the action there."""

    held_at: datetime
    log_uuid: UUID
    action_id: str

    def __str__(self) -> str:
        return f"{to_microseconds(self.held_at)},{self.log_uuid.hex},{self.action_id}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """The place that ``str`` wrote.

        Raises:
            BadRequestError: it wrote no such thing.
        """
        match = _PLACE.fullmatch(text)
        if match is None:
            raise BadRequestError("after: must be the next of an earlier answer")
        return cls(from_microseconds(int(match[1])), UUID(match[2]), match[3])


class Waiting(msgspec.Struct, frozen=True):
    """One action that waits, and what its agent's chain says beside it.

    Attributes:
        agent_id: whose.
        action_id: which.
        entry: as the agent's own list of what is pending tells it.
        pending: what the fold knows of it.
        state: the agent's standing.
    """

    agent_id: str
    action_id: str
    entry: JsonObject
    pending: Pending
    state: GuardState

    def to_json(self) -> JsonObject:
        """The entry of the queue."""
        return {"agent_id": self.agent_id, **self.entry, "requested_by": [*self.pending.names]}


class Broken(msgspec.Struct, frozen=True):
    """A chain that does not verify, so that nobody can say what waits in it; ``actions`` the index names."""

    agent_id: str
    error: str
    actions: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """The entry of the queue."""
        return {"agent_id": self.agent_id, "error": self.error, "action_ids": [*self.actions]}


class Queue(msgspec.Struct, frozen=True):
    """A page of the queue, oldest first; ``next`` is where it goes on, None at its end."""

    waiting: tuple[Waiting, ...]
    broken: tuple[Broken, ...]
    next: Place | None

    def to_json(self) -> JsonObject:
        """As the API tells it."""
        return {
            "approvals": [each.to_json() for each in self.waiting],
            "quarantined": [each.to_json() for each in self.broken],
            "next": None if self.next is None else str(self.next),
        }


def require_seen(state: GuardState, action_id: str, seen: str | None) -> None:
    """Refuses a decision on something else than what was shown: ``seen`` is the hash of the request's record.

    Raises:
        ConflictError: another request waits under this id. None waits: that is for the decision to say.
    """
    pending = state.pending.get(action_id)
    if seen is not None and pending is not None and pending.hash != seen:
        raise ConflictError(f"what was shown as {action_id} is not what waits under this id; look again")


class Approvals:
    """Reads the queues of tenants."""

    def __init__(self, pool: Pool, chains: Chains, actor: Actor, clock: Clock) -> None:
        self._pool = pool
        self._chains = chains
        self._actor = actor
        self._clock = clock
        self._marks: Fresh[UUID, int] = Fresh(MARK_SECS, capacity=MARKS)

    async def length(self, tenant_id: UUID) -> int:
        """How many wait as the index says, up to ``MOST_COUNTED``: for a hint, and proven by nothing."""
        return await db.waiting.length(self._pool, tenant_id, most=MOST_COUNTED)

    async def mark(self, tenant_id: UUID) -> int:
        """A number that is another one when the first page of the queue may look otherwise.

        It is a second old at most; whoever watches the queue reads it when the number changes.
        """
        return await self._marks.get(tenant_id, lambda _: self._mark(tenant_id))

    async def _mark(self, tenant_id: UUID) -> int:
        return hash(tuple(await db.waiting.queue(self._pool, tenant_id, _BEGINNING, limit=DEFAULT_LIMIT)))

    async def one(self, chain: Chain, action_id: str) -> Waiting | None:
        """One action as it waits now; None when it does not.

        Raises:
            QuarantinedError: the chain does not verify.
            UnavailableError: the database is away.
        """
        state = await self._actor.refresh(chain)
        pending = state.pending.get(action_id)
        if pending is None:
            return None
        row = await db.ledger.row_at(self._pool, chain.id.tenant_id, chain.id.log_uuid, pending.seq)
        if row is None or row.hash != pending.hash:
            raise chain.quarantine(GONE.format(seq=pending.seq))
        entry = pending_entry(chain, state, pending, row, self._clock())
        return Waiting(chain.id.agent_id, action_id, entry, pending, state)

    async def page(
        self, tenant_id: UUID, after: Place | None, limit: int, log_uuid: UUID | None = None
    ) -> Queue:
        """The actions that wait behind ``after``, of one chain or of all, oldest first.

        Nothing of it is older than this call.

        Raises:
            UnavailableError: the database is away.
        """
        begin = _BEGINNING if after is None else msgspec.structs.astuple(after)
        rows = await db.waiting.queue(self._pool, tenant_id, begin, limit=limit + 1, log_uuid=log_uuid)
        found = await self._states(tenant_id, rows[:limit])
        held = [_Held(row, *found[row.log_uuid]) for row in rows[:limit]]
        shown, cut = await self._shown(tenant_id, [each for each in held if each.pending is not None])
        if cut is not None:  # by size
            held = held[: held.index(cut)]
        more = cut is not None or len(rows) > limit
        return Queue(shown, _broken(held), _place(held[-1].row) if more and held else None)

    async def _states(
        self, tenant_id: UUID, rows: Iterable[WaitingRow]
    ) -> dict[UUID, tuple[Chain, GuardState | None]]:
        """Each chain with its state; None: it does not verify."""
        newest = {row.log_uuid: row for row in rows}
        chains = {
            log_uuid: self._chains.remember(ChainId(tenant_id, row.agent_id, log_uuid, row.guarded))
            for log_uuid, row in newest.items()
        }
        todo = list(newest.values())
        states: list[GuardState | None] = []
        for first in range(0, len(todo), AT_ONCE):
            part = todo[first : first + AT_ONCE]
            states += await asyncio.gather(*(self._state(chains[row.log_uuid], row) for row in part))
        return {row.log_uuid: (chains[row.log_uuid], state) for row, state in zip(todo, states, strict=True)}

    async def _state(self, chain: Chain, row: WaitingRow) -> GuardState | None:
        if chain.opened and chain.fault is None and _is_at(chain.head, row):
            return chain.state
        try:
            return await self._actor.refresh(chain)
        except TrailsError:
            if chain.fault is None:
                raise
            return None

    async def _shown(
        self, tenant_id: UUID, held: Sequence[_Held]
    ) -> tuple[tuple[Waiting, ...], _Held | None]:
        """The requests as they stand in the table, and the first one for which there was no room."""
        places = [(each.row.log_uuid, each.pending.seq) for each in held if each.pending is not None]
        rows = await db.ledger.rows_of(self._pool, tenant_id, places, most_bytes=PAGE_BYTES)
        by_place = {(row.log_uuid, row.seq): row for row in rows}
        last = (rows[-1].log_uuid, rows[-1].seq) if rows else None
        is_cut = last is not None and last != places[-1] and _size(rows) >= PAGE_BYTES
        now_us = self._clock()
        shown: list[Waiting] = []
        for number, each in enumerate(held):
            if each.pending is None or each.state is None:
                continue
            row = by_place.get(places[number])
            if row is None and is_cut and number > places.index(last or places[0]):
                return tuple(shown), each
            if row is None or row.hash != each.pending.hash:
                each.chain.quarantine(GONE.format(seq=each.pending.seq))
                continue
            entry = pending_entry(each.chain, each.state, each.pending, row, now_us)
            shown.append(Waiting(each.row.agent_id, each.row.action_id, entry, each.pending, each.state))
        return tuple(shown), None


class _Held(msgspec.Struct, frozen=True, eq=False):
    """What the index names, with its chain as it was verified."""

    row: WaitingRow
    chain: Chain
    state: GuardState | None

    @property
    def pending(self) -> Pending | None:
        """The action, if it waits; it does not when it was decided since, or somebody else wrote the row."""
        return None if self.state is None else self.state.pending.get(self.row.action_id)


def _is_at(head: Head | None, row: WaitingRow) -> bool:
    return head is not None and (head.seq, head.hash) == (row.seq, row.hash)


def _size(rows: Iterable[TrailRow]) -> int:
    return sum(len(row.signed_text.encode()) for row in rows)


def _place(row: WaitingRow) -> Place:
    return Place(row.held_at, row.log_uuid, row.action_id)


def _broken(held: Iterable[_Held]) -> tuple[Broken, ...]:
    """The chains among these that do not verify, also those of which that was found just now."""
    actions: dict[str, list[str]] = {}
    errors: dict[str, str] = {}
    for each in held:
        if each.chain.fault is not None:
            errors[each.row.agent_id] = each.chain.fault
            actions.setdefault(each.row.agent_id, []).append(each.row.action_id)
    return tuple(Broken(agent, errors[agent], tuple(actions[agent])) for agent in errors)
