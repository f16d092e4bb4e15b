"""Filing: what is only told in a tenant's administration chain, and the chains that begin by it.

No chain begins that the administration chain does not know: the record ``agents_created`` is appended by the
statement that begins them. The administration chain's own beginning is told by its genesis record, which
names its id and says that the chain covers agents, unless the tenant had some before. Callers that wait at
the same moment are written together: auditors who verify, agents that are created.

Locks: the administration chain comes last. Whoever writes to an agent's chain may look at the tenant's
standing meanwhile and so wait for the administration chain; whoever holds that one waits for no other, since
a chain that begins is known to nobody until it is written and needs no lock. In the database, too, all insert
their rows in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

import db.ledger
from app.chain.record import GENESIS, Draft
from app.chain.strict import JsonObject
from app.errors import AgentExistsError, QuarantinedError, StaleChainError, TenantQuarantinedError
from app.guard.kinds import ADMIN
from app.ledger.act import MAX_ATTEMPTS, outrun
from app.ledger.chain import Chain, ChainId
from app.ledger.idempotency import Stamp, stamped
from app.ledger.keys.sealing import sealed
from app.ledger.mirror import registry_row, row_of
from app.ledger.rebuild import catch_up
from app.ledger.turns import Turn, Turns

if TYPE_CHECKING:
    from collections import deque

    from app.chain.keys import SigningKey
    from app.chain.record import Head, VerifiedRecord
    from app.chain.strict import JsonValue
    from app.ledger.act import Actor
    from app.ledger.clock import Clock
    from app.ledger.keys.keystore import Keystore, TenantKeys
    from app.ledger.keys.signers import SourceSigner
    from db.ledger import ChainRow, TrailRow
    from db.pool import Pool

MAX_CREATED: Final = 1_000
"""Chains that one record tells of: about 150 kB. More that begin together are told by several records."""

MAX_TOGETHER: Final = 512
"""Records and chains of several callers that are written together, unless one caller alone has more."""

QUICK_CHAINS: Final = 16
"""Chains whose first records are sealed at once."""


class NewChain(msgspec.Struct, frozen=True):
    """A chain to begin: ``drafts`` follow its genesis record, which carries ``mark`` and ``members``."""

    id: ChainId
    drafts: tuple[Draft, ...] = ()
    mark: Stamp | None = None
    members: JsonObject = {}


class Begun(msgspec.Struct, frozen=True):
    """The chains that a caller began, and the agents that are not created since keys in use are called so."""

    chains: list[Chain]
    refused: list[str]


class _Filing(Turn):
    """One caller's wait for its records in the administration chain, and for the chains that begin by them.

    ``new`` are the chains that are still to be begun, ``begun`` those that this caller began, ``refused`` the
    agents whose ids are names of keys.
    """

    __slots__ = ("actor", "begun", "new", "payloads", "refused")

    def __init__(self, actor: str, payloads: Sequence[JsonObject] = (), new: Sequence[NewChain] = ()) -> None:
        super().__init__()
        self.actor = actor
        self.payloads = payloads
        self.new = new
        self.begun: list[Chain] = []
        self.refused: list[str] = []

    @property
    def size(self) -> int:
        return len(self.payloads) + len(self.new)

    @property
    def drafts(self) -> list[Draft]:
        return [Draft(ADMIN, payload, self.actor) for payload in (*self.payloads, *_created(self.new))]


class _Sealed(msgspec.Struct, frozen=True):
    """What is appended together: records of the administration chain, and the first ones of new chains."""

    records: tuple[VerifiedRecord, ...]
    begun: list[tuple[_Filing, ChainId, tuple[VerifiedRecord, ...]]]

    def rows(self, chain_id: ChainId, key: SigningKey | SourceSigner, keys: TenantKeys) -> list[TrailRow]:
        """The rows of the table, the administration chain's signed by ``key``."""
        new = keys.newest.public.key_id
        return [
            *(row_of(chain_id, record, key.public.key_id) for record in self.records),
            *(row_of(own, record, new) for _, own, firsts in self.begun for record in firsts),
        ]

    def chains(self, keys: TenantKeys) -> list[ChainRow]:
        """The rows of the registry, in the order in which everybody inserts them."""
        new = keys.newest.public.key_id
        rows = [registry_row(own, row_of(own, firsts[0], new)) for _, own, firsts in self.begun]
        return sorted(rows, key=lambda row: row.agent_id)


class Filer:
    """Appends to administration chains what changes no table of ours but the registry of chains."""

    def __init__(self, pool: Pool, keystore: Keystore, *, actor: Actor, clock: Clock) -> None:
        self._pool = pool
        self._keystore = keystore
        self._actor = actor
        self._clock = clock
        self._turns: Turns[_Filing] = Turns(_take, self._file)

    async def record(self, chain: Chain, actor: str, payload: JsonObject) -> None:
        """Records one act in an administration chain; see ``Administration.record``."""
        await self._turns.wait(chain, _Filing(actor, [payload]))

    async def begin(self, chain: Chain, actor: str, new: Sequence[NewChain]) -> Begun:
        """Begins chains and tells of them in an administration chain; see ``Administration.begin_chains``."""
        filing = _Filing(actor, new=new)
        await self._turns.wait(chain, filing)
        return Begun(filing.begun, filing.refused)

    async def close(self) -> None:
        """Waits until all that was accepted is settled."""
        await self._turns.close()

    async def _file(self, chain: Chain, filings: Sequence[_Filing]) -> None:
        """Writes all of these filings or none, whatever other writers do meanwhile."""
        keys = await self._keystore.of(chain.id.tenant_id)
        await ready(self._actor, chain, keys)
        for attempt in range(MAX_ATTEMPTS):
            try:
                await self._append(chain, keys, filings)
            except AgentExistsError:
                await self._leave_out_known(keys.tenant_id, filings)
            except StaleChainError:
                await self._actor.read_on(chain, keys, attempt)
            else:
                return
        raise outrun()

    async def _append(self, chain: Chain, keys: TenantKeys, filings: Sequence[_Filing]) -> None:
        now_us = self._clock()
        begins = any(filing.new for filing in filings)
        if begins and _named(filings, chain.standing.names_in_use(now_us)):
            await catch_up(self._pool, chain, keys)  # the key may be revoked since
            _leave_out_named(filings, chain.standing.names_in_use(now_us))
        if not any(filing.size for filing in filings):
            return
        key = await self._actor.signing_key(chain, keys)
        made = await _sealed(filings, chain.head, now_us, key, keys)
        rows, registry = made.rows(chain.id, key, keys), made.chains(keys)
        await db.ledger.append(self._pool, rows, chains=registry)
        for record in made.records:
            chain.advance(record, key.public)
        for filing, chain_id, firsts in made.begun:
            filing.begun.append(_opened(chain_id, firsts, keys))

    async def _leave_out_known(self, tenant_id: UUID, filings: Sequence[_Filing]) -> None:
        """Another process was faster with some of the agents: the others begin without them."""
        wanted = [new.id.agent_id for filing in filings for new in filing.new]
        known = {row.agent_id for row in await db.ledger.chains_among(self._pool, tenant_id, wanted)}
        for filing in filings:
            filing.new = [new for new in filing.new if new.id.agent_id not in known]


def _named(filings: Sequence[_Filing], names: frozenset[str]) -> frozenset[str]:
    """Those of the agents that are called as a key in use, in whatever case."""
    agents = (new.id.agent_id for filing in filings for new in filing.new)
    return frozenset(agent_id for agent_id in agents if agent_id.casefold() in names)


def _leave_out_named(filings: Sequence[_Filing], names: frozenset[str]) -> None:
    """Agents that are called as a key in use do not begin; the append fails if a key came meanwhile."""
    named = _named(filings, names)
    for filing in filings:
        filing.refused += [new.id.agent_id for new in filing.new if new.id.agent_id in named]
        filing.new = [new for new in filing.new if new.id.agent_id not in named]


async def ready(actor: Actor, chain: Chain, keys: TenantKeys) -> None:
    """``Actor.ready`` for an administration chain, whose refusal says which chain it speaks of.

    Raises:
        TenantQuarantinedError: the chain does not verify.
    """
    try:
        await actor.ready(chain, keys)
    except QuarantinedError as error:
        raise TenantQuarantinedError(error.reason) from error


def _take(queue: deque[_Filing]) -> list[_Filing]:
    """The filings that are written next: at least one that is still waited for, if there is one.

    No two of them begin a chain of the same agent: the later one's turn comes when that is on record.
    """
    filings: list[_Filing] = []
    agents: set[str] = set()
    size = 0
    while queue:
        filing = queue[0]
        own = {new.id.agent_id for new in filing.new}
        if filings and (size + filing.size > MAX_TOGETHER or not agents.isdisjoint(own)):
            break
        queue.popleft()
        if filing.begin():
            filings.append(filing)
            agents |= own
            size += filing.size
    return filings


def _created(new: Sequence[NewChain]) -> Iterator[JsonObject]:
    """The payloads of the records that tell of new chains."""
    for first in range(0, len(new), MAX_CREATED):
        agents: list[JsonValue] = [
            {"agent_id": one.id.agent_id, "log_uuid": str(one.id.log_uuid), "guarded": one.id.guarded}
            for one in new[first : first + MAX_CREATED]
        ]
        yield {"act": "agents_created", "agents": agents}


async def _sealed(
    filings: Sequence[_Filing],
    head: Head | None,
    now_us: int,
    key: SigningKey | SourceSigner,
    keys: TenantKeys,
) -> _Sealed:
    records = await sealed([draft for filing in filings for draft in filing.drafts], head, now_us, key)
    begun = []
    for filing in filings:
        for number, new in enumerate(filing.new, 1):
            begun.append((filing, new.id, await first_records(new, filing.actor, keys, now_us)))
            if number % QUICK_CHAINS == 0:
                await asyncio.sleep(0)  # the other requests of this process go on meanwhile
    return _Sealed(records, begun)


async def first_records(
    new: NewChain, actor: str, keys: TenantKeys, now_us: int
) -> tuple[VerifiedRecord, ...]:
    """The records that a chain begins with, sealed by the tenant's newest key.

    Raises:
        UnavailableError: there is no signature, and so no record.
    """
    genesis = Draft(GENESIS, {**genesis_payload(new.id, keys), **new.members}, actor)
    return await sealed(stamped([genesis, *new.drafts], new.mark), None, now_us, keys.newest)


def _opened(chain_id: ChainId, records: Sequence[VerifiedRecord], keys: TenantKeys) -> Chain:
    """A chain in memory that was begun here with all its records."""
    chain = Chain(chain_id)
    for record in records:
        chain.advance(record, keys.newest.public)
    chain.opened = True
    return chain


def genesis_payload(chain_id: ChainId, keys: TenantKeys) -> JsonObject:
    """What the first record of a chain says."""
    return {
        "log_id": chain_id.agent_id,
        "public_key": keys.newest.public.hex,
        "tenant": str(chain_id.tenant_id),
        "log_uuid": str(chain_id.log_uuid),
    }
