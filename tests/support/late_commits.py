"""Writers whose transactions stay open while others commit: what comes late must not be passed over."""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager, suppress
from uuid import UUID

import db.ledger
from app.chain.record import Head
from db.ledger import TrailRow
from db.pool import Connection, Pool, tenant_transaction
from tests.support.rows import Maker

MOST_OPEN = 6


class _Open:
    """A transaction with records that nobody else sees yet."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.before: Head | None = maker.head
        self.rows: list[TrailRow] = []
        self.context: AbstractAsyncContextManager[Connection] | None = None


class LateCommits:
    """Chains of one tenant, each written by one transaction at a time, in an order that chance decides."""

    def __init__(self, pool: Pool, tenant_id: UUID, chance: random.Random) -> None:
        self._pool = pool
        self._tenant_id = tenant_id
        self._chance = chance
        self._idle: list[Maker] = []
        self._open: list[_Open] = []
        self._chains = 0
        self.committed: list[tuple[UUID, int]] = []
        """Every record, in the order in which they were committed."""

        self.held_back = 0
        """Records that were committed after records that were written later."""

    async def step(self) -> None:
        """Begins a transaction, commits one or takes one back."""
        what = self._chance.random()
        if len(self._open) < MOST_OPEN and (what < 0.5 or not self._open):
            await self._begin()
        else:
            await self._end(self._chance.randrange(len(self._open)), commits=what < 0.9)

    async def end(self) -> None:
        """Commits what is open."""
        while self._open:
            await self._end(self._chance.randrange(len(self._open)), commits=True)

    async def _begin(self) -> None:
        is_new = not self._idle or self._chance.random() < 0.2
        if is_new:
            self._chains += 1
            maker = Maker(self._tenant_id, f"agent-{self._chains}")
        else:
            maker = self._idle.pop(self._chance.randrange(len(self._idle)))
        opened = _Open(maker)
        opened.rows = maker.rows(self._chance.randint(1, 4))
        opened.context = tenant_transaction(self._pool, self._tenant_id)
        connection = await opened.context.__aenter__()
        chains = [maker.chain] if opened.before is None else []
        await db.ledger.append(connection, opened.rows, chains=chains)
        self._open.append(opened)

    async def _end(self, number: int, *, commits: bool) -> None:
        opened = self._open.pop(number)
        assert opened.context is not None
        if commits:
            await opened.context.__aexit__(None, None, None)
            self.committed += [(row.log_uuid, row.seq) for row in opened.rows]
            self.held_back += number < len(self._open)
            self._idle.append(opened.maker)
            return
        with suppress(_TakenBackError):
            await opened.context.__aexit__(_TakenBackError, _TakenBackError(), None)
        opened.maker.head = opened.before
        if opened.before is not None:
            self._idle.append(opened.maker)


class _TakenBackError(Exception):
    """Rolls a transaction back."""
