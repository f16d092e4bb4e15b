"""Who holds an API key: looked up, believed for half a second, refused once it is revoked or expired.

Its row says what the key is, under a seal. That it is one still, the tenant's verified records say
(``Standings``): issued and not revoked, whatever the tables say.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

import db.access
from app.errors import EndedKeyError, TrailsError, UnauthorizedError
from app.ledger.fresh import Fresh
from app.ledger.tenancy.administration import key_of_row, written
from app.moment import from_microseconds
from app.principal import Principal, Role

if TYPE_CHECKING:
    from app.api_key import ApiKey, Mint
    from app.ledger.clock import Clock
    from app.ledger.tenancy.standings import Standings
    from db.pool import Pool

FRESH_SECS: Final = 0.5
"""A key that was revoked is none after this time, on every server process."""

USE_SECS: Final = 300
"""How often a use of a key is noted."""

CAPACITY: Final = 20_000
"""Keys that are remembered."""


class _Held(msgspec.Struct, frozen=True):
    """A genuine key, and when it was revoked; ``key`` None when there is no such key."""

    key: ApiKey | None
    revoked_at: datetime | None = None


class KeyRing:
    """Proves API keys."""

    def __init__(
        self,
        pool: Pool,
        mint: Mint,
        clock: Clock,
        standings: Standings,
        *,
        fresh_secs: float = FRESH_SECS,
    ) -> None:
        self._pool = pool
        self._standings = standings
        self._mint = mint
        self._clock = clock
        self._known: Fresh[tuple[UUID, str], _Held] = Fresh(fresh_secs, capacity=CAPACITY)
        self._noted: dict[tuple[UUID, str], datetime] = {}
        self._notes: set[asyncio.Task[None]] = set()

    async def caller(self, token: bytes) -> Principal:
        """Who presents this bearer token, which has the form of a key.

        Raises:
            EndedKeyError: it was a key, and is none any more.
            UnauthorizedError: it is no key, or not yet known here. Never says which.
            TenantQuarantinedError: the tenant's administration chain does not verify.
            UnavailableError: the database is away.
        """
        principal = await self.holder(token)
        key_id = principal.key_id or ""
        if key_id not in (await self._standings.of(principal.tenant_id)).keys:
            raise UnauthorizedError
        self._note((principal.tenant_id, key_id), from_microseconds(self._clock()))
        return principal

    async def holder(self, token: bytes) -> Principal:
        """Who the row of this key says it is: good for having its tenant's records verified, and no more.

        Raises:
            EndedKeyError: it was a key, and is none any more by its row.
            UnauthorizedError: as for ``caller``, but for what the records say.
            UnavailableError: the database is away.
        """
        presented = self._mint.presented(token)
        if presented is None:
            raise UnauthorizedError
        place = presented.tenant_id, presented.key_id
        held = await self._known.get(place, lambda _: self._load(*place))
        now = from_microseconds(self._clock())
        key = held.key
        if key is None or not hmac.compare_digest(key.secret_hash, presented.secret_hash):
            raise UnauthorizedError
        # From here on the caller has proven that it holds the key, and may know what became of it.
        if held.revoked_at is not None:
            raise EndedKeyError(f"this key was revoked on {written(held.revoked_at)}")
        if key.expires_at is not None and key.expires_at <= now:
            raise EndedKeyError(f"this key expired on {written(key.expires_at)}")
        name = key.agent_id if key.role is Role.AGENT and key.agent_id is not None else key.name
        return Principal(key.tenant_id, key.role, name, key.agent_id, key.key_id)

    def forget(self, tenant_id: UUID, key_id: str) -> None:
        """A key is looked up again: this process has just revoked it."""
        self._known.forget((tenant_id, key_id))

    async def close(self) -> None:
        """Waits for what is being noted."""
        while self._notes:
            await asyncio.gather(*self._notes, return_exceptions=True)

    async def _load(self, tenant_id: UUID, key_id: str) -> _Held:
        row = await db.access.api_key(self._pool, tenant_id, key_id)
        if row is None:
            return _Held(None)
        if row.revoked_at is None:
            self._standings.expect(tenant_id, key_id)  # another process may have issued it a moment ago
        key = key_of_row(row)
        return _Held(
            key if key is not None and self._mint.is_genuine(key, row.seal) else None, row.revoked_at
        )

    def _note(self, place: tuple[UUID, str], now: datetime) -> None:
        """Notes now and then that a key is used; a request never waits for it."""
        before = self._noted.get(place)
        if before is not None and now - before < timedelta(seconds=USE_SECS):
            return
        if len(self._noted) >= CAPACITY:
            self._noted.clear()
        self._noted[place] = now
        task = asyncio.create_task(self._write_note(place, now))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _write_note(self, place: tuple[UUID, str], now: datetime) -> None:
        with suppress(TrailsError):  # the next use tells of it again
            await db.access.use_api_key(self._pool, *place, now)
