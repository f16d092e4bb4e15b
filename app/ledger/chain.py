"""One chain in memory: what was verified of it so far, and the lock that orders its writers.

A chain's memory holds aggregates and what waits for a decision; finished actions stay in the table. Chains
that were not used for long are forgotten and verified anew when asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import db.ledger
from app.chain.verify import Verifier
from app.errors import KeyMaterialError, NotFoundError, QuarantinedError, UnavailableError
from app.fold.fold import ChainId, Fold
from app.ledger.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.chain.keys import PublicKey
    from app.chain.record import Head
    from db.pool import Pool


__all__ = ["LOCK_SECS", "Chain", "ChainId", "Chains"]

LOCK_SECS = 5.0
"""How long a request waits for those before it on the same agent before the answer is 503."""


OnFault = Callable[[ChainId, str], None]
"""Hears of a chain that is quarantined, and why."""


class Chain(Fold):
    """A chain's verified state: the fold, which changes through ``quarantine`` and ``release``, too.

    ``opened`` is set by the act flow when the chain is read to its end and no termination is missing; before
    that nothing is decided on it. ``on_fault`` hears why the chain is quarantined, once each time that it is;
    ``queued`` are those who wait for ``lock``.
    """

    __slots__ = ("_fault", "lock", "on_fault", "opened", "pace", "queued")

    def __init__(self, chain_id: ChainId, on_fault: OnFault | None = None) -> None:
        super().__init__(chain_id)
        self.on_fault = on_fault
        self.lock = asyncio.Lock()
        self.queued = 0
        self.pace = Pace()
        self.opened = False
        self._fault: str | None = None

    def exclusively(self) -> _Exclusively:
        """The chain for the caller alone, in bounded time: ``async with chain.exclusively():``.

        Raises:
            UnavailableError: others before it wait for the database for too long.
        """
        return _Exclusively(self)

    @property
    def head(self) -> Head | None:
        """Position of the last verified record; None before the genesis record was read."""
        return self.state.head

    @property
    def key_in_force(self) -> PublicKey:
        """The key that signs the next record, as the chain's own records say.

        Raises:
            KeyMaterialError: nothing was read of the chain yet.
        """
        if self.key is None:
            raise KeyMaterialError("the chain was not read yet; no key is in force")
        return self.key

    @property
    def fault(self) -> str | None:
        """Why the chain is quarantined; None while it is active."""
        return self._fault

    def verifier(self, trusted: PublicKey | None = None) -> Verifier:
        """A verifier that goes on where this chain stands."""
        if self.head is None or self.key is None:
            return Verifier(trusted)
        return Verifier.resume(self.head, self.key)

    def quarantine(self, reason: str) -> QuarantinedError:
        """Marks the chain as not verifying; nothing is answered from it until ``release``."""
        before, self._fault = self._fault, reason
        if before is None and self.on_fault is not None:
            self.on_fault(self.id, reason)
        return QuarantinedError(reason)

    def release(self) -> None:
        """Forgets all that was read, so that the chain is verified from its genesis again."""
        self.forget()
        self._fault = None
        self.opened = False

    def require_sound(self) -> None:
        """Raises QuarantinedError when the chain is quarantined."""
        if self._fault is not None:
            raise QuarantinedError(self._fault)


class _Exclusively:
    """Holds a chain's lock. Most come when nobody else does, and need no timer."""

    __slots__ = ("_chain",)

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    async def __aenter__(self) -> None:
        chain = self._chain
        if chain.queued or chain.lock.locked():
            await self._in_turn()
        else:
            await chain.lock.acquire()
        chain.pace.come(time.monotonic())

    async def __aexit__(self, *_: object) -> None:
        self._chain.pace.leave(time.monotonic())
        self._chain.lock.release()

    async def _in_turn(self) -> None:
        self._chain.queued += 1
        try:
            async with asyncio.timeout(LOCK_SECS):
                await self._chain.lock.acquire()
        except TimeoutError:
            raise UnavailableError("other requests on this agent wait for the database; try again") from None
        finally:
            self._chain.queued -= 1


class Chains:
    """The chains in memory, at most ``capacity`` of them, the least recently used forgotten first."""

    def __init__(self, pool: Pool, *, capacity: int, on_fault: OnFault | None = None) -> None:
        self._pool = pool
        self._on_fault = on_fault
        self._capacity = capacity
        self._chains: OrderedDict[tuple[UUID, str], Chain] = OrderedDict()

    async def get(self, tenant_id: UUID, agent_id: str) -> Chain:
        """The chain of one agent, looked up in the registry when it is not in memory.

        Raises:
            NotFoundError: the tenant has no such agent.
        """
        place = tenant_id, agent_id
        chain = self._chains.get(place)
        if chain is not None:
            self._chains.move_to_end(place)
            return chain
        row = await db.ledger.chain(self._pool, tenant_id, agent_id)
        if row is None:
            raise NotFoundError("agent not found")
        return self.remember(ChainId(tenant_id, agent_id, row.log_uuid, row.guarded))

    def __len__(self) -> int:
        """Chains in memory."""
        return len(self._chains)

    @property
    def quarantined(self) -> int:
        """Those of them that are quarantined."""
        return sum(chain.fault is not None for chain in self._chains.values())

    def __contains__(self, place: tuple[UUID, str]) -> bool:
        """Whether the chain of this tenant's agent is in memory."""
        return place in self._chains

    def at_hand(self, tenant_id: UUID, agent_id: str) -> Chain | None:
        """The chain, if it is in memory. To look at it is no use of it."""
        return self._chains.get((tenant_id, agent_id))

    def by_tenant(self) -> dict[UUID, list[ChainId]]:
        """The chains in memory that are not quarantined."""
        found: dict[UUID, list[ChainId]] = {}
        for chain in self._chains.values():
            if chain.fault is None:
                found.setdefault(chain.id.tenant_id, []).append(chain.id)
        return found

    async def missing(self, tenant_id: UUID, agent_ids: Iterable[str]) -> list[str]:
        """Those of the agents that the tenant does not have; asks for those alone that are not in memory."""
        unknown = [agent_id for agent_id in agent_ids if (tenant_id, agent_id) not in self._chains]
        if not unknown:
            return []
        rows = await db.ledger.chains_among(self._pool, tenant_id, unknown)
        for row in rows:
            self.remember(ChainId(tenant_id, row.agent_id, row.log_uuid, row.guarded))
        known = {row.agent_id for row in rows}
        return [agent_id for agent_id in unknown if agent_id not in known]

    def remember(self, chain_id: ChainId) -> Chain:
        """Keeps a chain in memory; one that is there already stays the same object."""
        new = Chain(chain_id, self._on_fault)
        chain = self._chains.setdefault((chain_id.tenant_id, chain_id.agent_id), new)
        self._forget_oldest()
        return chain

    def adopt(self, chain: Chain) -> None:
        """Keeps a chain that was begun here; one that another caller looked up meanwhile wins."""
        chain.on_fault = self._on_fault
        self._chains.setdefault((chain.id.tenant_id, chain.id.agent_id), chain)
        self._forget_oldest()

    def remember_all(self, ids: Iterable[ChainId]) -> list[Chain]:
        """Keeps several chains, in the order given."""
        return [self.remember(chain_id) for chain_id in ids]

    def _forget_oldest(self) -> None:
        """Forgets chains that nobody works on; a locked one holds decisions that are under way.

        A quarantined one is kept: some faults, such as a table set back, are known to this memory alone.
        """
        surplus = len(self._chains) - self._capacity
        for key in list(self._chains)[: max(surplus, 0)]:
            chain = self._chains[key]
            if chain.fault is None and not chain.lock.locked():
                del self._chains[key]
