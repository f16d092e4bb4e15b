"""Patrol: while the service runs, each of its processes verifies all chains of all tenants, round by round.

Chains are verified as ``GET …/verify`` does it, in small slices with a wait behind each, so that it takes a
set share of one core and no request feels it. Between slices nothing is held: no transaction, no lock. A
chain that does not verify is quarantined in this process and told once; ``GET …/verify`` alone releases it
again, since a fault that came and went is for a person to look at.

Memory is bounded: one page of the registry and one slice of a chain at a time. What is compared with what
this process knew of before are the chains in its memory; heads that are kept in a file are compared by who
keeps it (``app.ledger.watch.heads``). The comparison of tables with the records of administration, and rows
of tenants that are in no table, are left to ``trails verify``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

import db.access
import db.ledger
from app.errors import TrailsError, UnavailableError
from app.ledger.chain import ChainId
from app.ledger.watch.inspect import NOT_REGISTERED, Inspection, first_failure, verdict_of

if TYPE_CHECKING:
    from app.chain.record import Head
    from app.ledger.chain import Chains
    from app.ledger.keys.keystore import Keystore
    from app.ledger.meter import Meter
    from app.ledger.tenancy.origins import Origins
    from app.ledger.watch.inspect import Slice
    from db.ledger import ChainRow, TenantRow
    from db.pool import Pool

T = TypeVar("T")

SLICE_ROWS: Final = 32
SLICE_BYTES: Final = 256 * 1024
"""What is verified at once: some milliseconds of work, unless one record alone is larger."""

RECORD_CHARS: Final = 8 * 1024
"""A record counts once, and once more for each so many characters of its text."""

STATEMENT: Final = 7
"""What asking the database costs, in records."""

PAGE: Final = 500
"""Tenants, and chains of the registry, that are read at a time."""

LEAST_ROUND_SECS: Final = 2.0
"""A round of few records does not begin at once again: an idle service stays idle."""

AWAY_SECS: Final = 1.0
TRIES: Final = 30
"""How long it waits when the database is away before it asks again, and how often before it goes on with
the next chain: what hinders one alone must not keep it from the others."""

MOST_TOLD: Final = 10_000
"""Findings that are remembered, so that each is told once."""

_log: Final = logging.getLogger("trails.patrol")


class Patrol:
    """Goes round all chains; ``records_per_sec`` is the pace, above 0."""

    def __init__(
        self,
        pool: Pool,
        chains: Chains,
        keystore: Keystore,
        origins: Origins,
        *,
        meter: Meter,
        records_per_sec: float,
    ) -> None:
        self._pool = pool
        self._chains = chains
        self._keystore = keystore
        self._origins = origins
        self._meter = meter
        self._records_per_sec = records_per_sec
        self._told: set[tuple[str, ...]] = set()
        self._is_away = False
        self._is_complete = True

    async def run(self) -> None:
        """Makes rounds until it is cancelled; nothing else ends it."""
        self._meter.covered_since = time.monotonic()
        while True:
            began = time.monotonic()
            await self.round()
            await asyncio.sleep(max(began + LEAST_ROUND_SECS - time.monotonic(), 0))

    async def round(self) -> None:
        """Verifies every chain once. It counts as a round only if all of them could be looked at."""
        began, self._is_complete = time.monotonic(), True
        with self._going_on():
            await self._find_vanished()
        with self._going_on():
            async for tenant in self._tenants():
                with self._going_on(tenant.slug):
                    await self._look_at_tenant(tenant)
        if self._is_complete:
            self._meter.rounds += 1
            self._meter.round_secs = time.monotonic() - began
            self._meter.covered_since = began

    async def _look_at_tenant(self, tenant: TenantRow) -> None:
        await self._patiently(partial(self._keystore.of, tenant.tenant_id))
        async for row in self._registered(tenant.tenant_id):
            with self._going_on(tenant.slug, row.agent_id):
                await self._look_at_chain(row)
        await self._find_strays(tenant)

    async def _look_at_chain(self, row: ChainRow) -> None:
        chain_id = ChainId(row.tenant_id, row.agent_id, row.log_uuid, row.guarded)
        known = partial(self._head, chain_id)
        inspection = Inspection(self._pool, chain_id, self._keystore, self._origins, known)
        while not inspection.over and not self._is_quarantined(chain_id):
            done = await self._patiently(partial(inspection.advance, SLICE_ROWS, SLICE_BYTES))
            self._meter.verified += done.records
            report = inspection.report
            if (
                report.fault_count
            ):  # at once: what is read now may be mended before the chain's end is reached
                self._quarantine(chain_id, first_failure(verdict_of(report)))
            await self._wait(STATEMENT + _records(done))

    async def _find_vanished(self) -> None:
        """Chains in memory that the registry holds no longer, or says something else of."""
        for tenant_id, known in self._chains.by_tenant().items():
            for first in range(0, len(known), PAGE):
                part = known[first : first + PAGE]
                ask = partial(db.ledger.chains_among, self._pool, tenant_id, [one.agent_id for one in part])
                rows = {row.agent_id: (row.log_uuid, row.guarded) for row in await self._patiently(ask)}
                for one in part:
                    if rows.get(one.agent_id) != (one.log_uuid, one.guarded):
                        self._quarantine(one, NOT_REGISTERED)
                await self._wait(STATEMENT)

    async def _find_strays(self, tenant: TenantRow) -> None:
        """Rows that belong to no chain of the registry: nobody reads them, so there is nothing to refuse."""
        since = UUID(int=0)
        while True:
            ask = partial(db.ledger.logs, self._pool, tenant.tenant_id, since=since, limit=PAGE)
            found = await self._patiently(ask)
            for log_uuid, is_registered in found:
                if not is_registered:
                    fields = {"tenant": tenant.slug, "log_uuid": str(log_uuid)}
                    self._tell("rows belong to no chain of the registry", fields)
            await self._wait(STATEMENT)
            if len(found) < PAGE:
                return
            since = found[-1][0]

    # --- what there is ------------------------------------------------------------------------------

    async def _tenants(self) -> AsyncIterator[TenantRow]:
        after = ""
        ask = partial(db.access.tenants, self._pool, limit=PAGE)
        while page := await self._patiently(partial(ask, after=after)):
            await self._wait(STATEMENT)
            for tenant in page:
                yield tenant
            after = page[-1].slug

    async def _registered(self, tenant_id: UUID) -> AsyncIterator[ChainRow]:
        after = ""
        ask = partial(db.ledger.chains_after, self._pool, tenant_id, limit=PAGE)
        while page := await self._patiently(partial(ask, after)):
            await self._wait(STATEMENT)
            for row in page:
                yield row
            after = page[-1].agent_id

    def _head(self, chain_id: ChainId) -> Head | None:
        chain = self._chains.at_hand(chain_id.tenant_id, chain_id.agent_id)
        return None if chain is None or chain.id != chain_id else chain.head

    def _is_quarantined(self, chain_id: ChainId) -> bool:
        chain = self._chains.at_hand(chain_id.tenant_id, chain_id.agent_id)
        return chain is not None and chain.fault is not None

    def _quarantine(self, chain_id: ChainId, reason: str) -> None:
        """From now on the chain answers nothing here. Its lock is not asked for: no act loses anything."""
        chain = self._chains.remember(chain_id)
        if chain.fault is None:
            chain.quarantine(reason)

    # --- how it goes on -----------------------------------------------------------------------------

    async def _wait(self, records: float) -> None:
        """The pause behind what cost as much as so many records. What was not used is not saved up."""
        await asyncio.sleep(records / self._records_per_sec)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of the database, which may be away for a while.

        Raises:
            UnavailableError: it was for long.
        """
        for _ in range(TRIES):
            try:
                answer = await ask()
            except UnavailableError:
                if not self._is_away:
                    _log.warning("the database is not available: verification in the background waits")
                self._is_away = True
                await asyncio.sleep(AWAY_SECS)
            else:
                self._is_away = False
                return answer
        return await ask()

    @contextmanager
    def _going_on(self, tenant: str = "", agent_id: str = "") -> Iterator[None]:
        """Whatever ends the block early is told and ends nothing else; the round is none then."""
        fields = {"tenant": tenant, "agent": agent_id}
        try:
            yield
        except TrailsError as error:
            self._is_complete = False
            self._tell("this could not be verified", {**fields, "reason": error.message})
        except Exception as error:  # noqa: BLE001  a defect must not leave all other chains unverified
            self._is_complete = False
            self._tell(
                "this could not be verified, by a defect", {**fields, "reason": type(error).__name__}, error
            )

    def _tell(self, message: str, fields: dict[str, str], error: BaseException | None = None) -> None:
        """Logs what was found, once."""
        told = (message, *fields.values())
        if told in self._told:
            return
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told.add(told)
        _log.error(message, extra={"fields": fields}, exc_info=error)


@asynccontextmanager
async def on_patrol(patrol: Patrol) -> AsyncIterator[None]:
    """The patrol makes its rounds while the block runs."""
    task = asyncio.create_task(patrol.run(), name="patrol")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def _records(done: Slice) -> float:
    """What a slice costs, in records."""
    return done.records + done.chars / RECORD_CHARS
