"""The agents of a tenant as a person looks at them: page by page, each with its standing at that moment.

Ids come from the registry, standings from verified records. A page that searches for a state looks at a
bounded number of agents and says where it stopped.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final

import msgspec

import db.browse
from app.errors import QuarantinedError
from app.ledger.chain import ChainId
from app.ledger.read import status_of
from db.browse import AgentsWanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.chain.strict import JsonObject
    from app.guard.policy import Policy
    from app.guard.state import GuardState
    from app.ledger.act import Actor
    from app.ledger.chain import Chain, Chains
    from app.principal import Grant
    from db.ledger import ChainRow
    from db.pool import Pool

PAGE_AGENTS: Final = 100
"""Agents in one page."""

MOST_LOOKED_AT: Final = 1_000
"""Agents that one page brings up to date when it searches for a state."""

_AT_ONCE: Final = 8
"""Chains brought up to date at the same moment, as for a list of agents."""


class Standing(enum.StrEnum):
    """How an agent stands."""

    ALIVE = "alive"
    WAITING = "waiting"
    """Alive, and something of it waits for a person."""
    TERMINATED = "terminated"
    QUARANTINED = "quarantined"
    OBSERVED = "observed"
    """Without a guard: it is on record, and nothing is decided."""


def standing_of(state: GuardState | None, *, guarded: bool) -> Standing:
    """The word for an agent in this state; None of a quarantined one, whose state nobody knows."""
    if state is None:
        return Standing.QUARANTINED
    if state.terminated is not None:
        return Standing.TERMINATED
    if not guarded:
        return Standing.OBSERVED
    return Standing.WAITING if state.pending else Standing.ALIVE


class FleetQuery(msgspec.Struct, frozen=True):
    """Which agents, in which order, beyond which id (None: from the first one).

    ``backwards`` is for the page before ``beyond``, in the order all the same.
    """

    text: str = ""
    standing: Standing | None = None
    beyond: str | None = None
    backwards: bool = False
    descending: bool = False
    limit: int = PAGE_AGENTS


class FleetEntry(msgspec.Struct, frozen=True):
    """One agent of a list: ``state`` and the time of its last record (µs), or why it is quarantined."""

    agent_id: str
    guarded: bool
    state: GuardState | None
    fault: str | None

    @property
    def standing(self) -> Standing:
        """How it stands, in one word."""
        return standing_of(self.state, guarded=self.guarded)

    @property
    def last_us(self) -> int | None:
        """The time of its last record."""
        head = None if self.state is None else self.state.head
        return None if head is None else head.timestamp_us


class FleetPage(msgspec.Struct, frozen=True):
    """A page of agents: how many ids match at all, how many were looked at, where to go on (None: end)."""

    entries: tuple[FleetEntry, ...]
    total: int
    looked_at: int
    following: str | None
    preceding: str | None


class AgentView(msgspec.Struct, frozen=True):
    """One agent: how it stands, status as the API tells it, policy, last record's time (µs); or its fault."""

    standing: Standing
    status: JsonObject | None
    policy: Policy | None
    last_us: int | None
    fault: str | None
    log_uuid: str
    guarded: bool


class Fleet:
    """Looks at many agents; behind ``Ledger``."""

    def __init__(self, pool: Pool, chains: Chains, actor: Actor, *, most: int = MOST_LOOKED_AT) -> None:
        self._pool = pool
        self._chains = chains
        self._actor = actor
        self._most = most

    async def page(self, grant: Grant, query: FleetQuery) -> FleetPage:
        """One page of the tenant's agents.

        Raises:
            UnavailableError: the database is away.
        """
        wanted = AgentsWanted(query.text, _guarded(query.standing))
        total = await db.browse.agents_count(self._pool, grant.tenant_id, wanted)
        found: list[FleetEntry] = []
        looked, beyond, is_over = 0, query.beyond, False
        while not is_over and len(found) < query.limit and looked < self._most:
            rows = await db.browse.agents(
                self._pool,
                grant.tenant_id,
                wanted,
                beyond=beyond,
                limit=query.limit + 1,
                descending=query.descending is not query.backwards,
            )
            is_over, rows = len(rows) <= query.limit, rows[: query.limit]
            entries = await self._entries(rows)
            found += [entry for entry in entries if _fits(entry, query.standing)]
            looked += len(rows)
            beyond = rows[-1].agent_id if rows else beyond
        if len(found) > query.limit:
            found, is_over = found[: query.limit], False
            beyond = found[-1].agent_id
        return _paged(found, query, total, looked, None if is_over else beyond)

    async def agent(self, grant: Grant) -> AgentView:
        """One agent, no older than this call; of one that is quarantined, why.

        Raises:
            NotFoundError: the tenant has no such agent.
            UnavailableError: the database is away.
        """
        chain = await self._chains.get(grant.tenant_id, grant.agent_id or "")
        log_uuid, guarded = str(chain.id.log_uuid), chain.id.guarded
        try:
            state = await self._actor.refresh(chain)
            status = await status_of(self._pool, chain, state)
        except QuarantinedError as error:
            if chain.fault is None:
                raise
            return AgentView(Standing.QUARANTINED, None, None, None, error.reason, log_uuid, guarded)
        last = None if state.head is None else state.head.timestamp_us
        standing = standing_of(state, guarded=guarded)
        return AgentView(standing, status, state.policy, last, None, log_uuid, guarded)

    async def _entries(self, rows: Sequence[ChainRow]) -> list[FleetEntry]:
        ids = [ChainId(row.tenant_id, row.agent_id, row.log_uuid, row.guarded) for row in rows]
        chains = self._chains.remember_all(ids)
        entries: list[FleetEntry] = []
        for first in range(0, len(chains), _AT_ONCE):
            entries += await asyncio.gather(*map(self._entry, chains[first : first + _AT_ONCE]))
        return entries

    async def _entry(self, chain: Chain) -> FleetEntry:
        agent_id, guarded = chain.id.agent_id, chain.id.guarded
        try:
            return FleetEntry(agent_id, guarded, await self._actor.refresh(chain), None)
        except QuarantinedError as error:
            if chain.fault is None:
                raise
            return FleetEntry(agent_id, guarded, None, error.reason)


def _guarded(standing: Standing | None) -> bool | None:
    """What the registry can be asked of a standing."""
    if standing is Standing.OBSERVED:
        return False
    return True if standing in {Standing.ALIVE, Standing.WAITING} else None


def _fits(entry: FleetEntry, standing: Standing | None) -> bool:
    if standing is Standing.ALIVE:
        return entry.standing in {Standing.ALIVE, Standing.WAITING}
    return standing is None or entry.standing is standing


def _paged(
    found: list[FleetEntry], query: FleetQuery, total: int, looked: int, beyond: str | None
) -> FleetPage:
    if not query.backwards:
        preceding = None if query.beyond is None else (found[0].agent_id if found else query.beyond)
        return FleetPage(tuple(found), total, looked, beyond, preceding)
    following = found[0].agent_id if found else query.beyond
    return FleetPage(tuple(reversed(found)), total, looked, following, beyond)
