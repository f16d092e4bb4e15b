"""A tenant's signing keys, stored sealed under the master key and opened in memory only; and its standing.

Of a key that is kept elsewhere the row holds the public half and the name of its source, sealed as well:
reading and verifying never need the source.

What another process did (a key rotated, the tenant suspended) is known here within ``FRESH_SECS``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

import db.access
import db.ledger
from app.chain.keys import SigningKey
from app.errors import ForbiddenError, KeyMaterialError, NotFoundError
from app.ledger.fresh import Fresh
from app.ledger.keys.sealed_key import NewSigningKey, in_order, is_dated, open_row, seal_key
from app.ledger.keys.signers import SourceSigner
from db.ledger import SigningKeyRow, TenantRow
from db.pool import tenant_transaction

if TYPE_CHECKING:
    from app.chain.keys import PublicKey
    from db.pool import Connection, Pool

FRESH_SECS = 1.0
"""How old what is known of a tenant's keys and standing may be."""

SETTLE_SECS = 2.0
"""How old a new key must be before a chain is signed by it: by then every process has heard of it."""

CAPACITY = 10_000
"""Tenants whose keys are kept open."""


class TenantKeys(msgspec.Struct, frozen=True):
    """The keys of one tenant: ``newest`` signs new chains, ``by_public_key`` holds all of them, oldest first.

    A chain is signed by the key that its own records put in force, which may be an older one until its next
    append. Nothing is written for a tenant that is ``suspended``, as its table says; see ``Standings``.
    """

    tenant_id: UUID
    newest: SigningKey | SourceSigner
    by_public_key: dict[str, SigningKey | SourceSigner]
    suspended: bool = False
    rows: tuple[SigningKeyRow, ...] = ()

    def signing(self, public: PublicKey) -> SigningKey | SourceSigner:
        """The secret half of a chain's key in force.

        Raises:
            KeyMaterialError: the tenant does not have it.
        """
        key = self.by_public_key.get(public.hex)
        if key is None:
            raise KeyMaterialError(f"the secret of key {public.key_id} is not among the tenant's keys")
        return key

    def is_retired(self, public: PublicKey) -> bool:
        """Whether ``newest`` has come after this key."""
        return self.precedes(public, self.newest.public.hex)

    def precedes(self, public: PublicKey, other: str) -> bool:
        """Whether ``other`` (hex), or what is not known here yet, has come after this key."""
        order = list(self.by_public_key)
        return public.hex in order and (other not in order or order.index(public.hex) < order.index(other))

    def public(self, key_id: str) -> PublicKey | None:
        """The tenant's public key of this id, as its seal says; None when there is none."""
        found = (key.public for key in self.by_public_key.values() if key.public.key_id == key_id)
        return next(found, None)


class Keystore:
    """Opens signing keys with the master key, each once in the life of the process."""

    def __init__(self, pool: Pool, master_key: bytes, *, fresh_secs: float = FRESH_SECS) -> None:
        self.settle_secs = SETTLE_SECS
        self._pool = pool
        self._master = master_key
        self._known: Fresh[UUID, TenantKeys] = Fresh(fresh_secs, capacity=CAPACITY)
        self._slugs: dict[UUID, str] = {}

    async def of(self, tenant_id: UUID) -> TenantKeys:
        """The tenant's keys and standing, at most ``FRESH_SECS`` old.

        Raises:
            NotFoundError: no such tenant.
            KeyMaterialError: a stored key does not open under this master key.
            UnavailableError: the database is away.
        """
        known = self._known.at_hand(tenant_id)
        if known is not None:
            return known
        return await self._known.get(tenant_id, lambda before: self._load(tenant_id, before))

    def slug_of(self, tenant_id: UUID) -> str:
        """The tenant's slug, which never changes; its id when its keys were not asked for yet."""
        return self._slugs.get(tenant_id) or str(tenant_id)

    def forget(self, tenant_id: UUID) -> None:
        """What is known of a tenant is asked for again: this process has just changed it."""
        self._known.forget(tenant_id)

    def seal(self, tenant_id: UUID, key: NewSigningKey, created_at: datetime) -> SigningKeyRow:
        """The row of a tenant's new key, which follows every key that was made before ``created_at``."""
        return seal_key(self._master, tenant_id, key, created_at)

    async def next_row(
        self, connection: Connection, tenant_id: UUID, key: NewSigningKey
    ) -> tuple[SigningKeyRow, SigningKeyRow]:
        """The row of a key that follows all that a tenant has, and the row of the last of these.

        By the clock that all processes share; keys of the old form are before it whatever their rows say.

        Raises:
            KeyMaterialError: a stored key does not open, or its time was changed.
        """
        rows = await db.ledger.signing_keys(connection, tenant_id)
        for row in rows:
            open_row(self._master, row)
        rows = in_order(rows)
        at = await db.access.server_time(connection)
        if is_dated(rows[-1]):
            at = max(at, rows[-1].created_at + timedelta(microseconds=1))
        return self.seal(tenant_id, key, at), rows[-1]

    async def create_tenant(self, tenant_id: UUID, slug: str, name: str) -> TenantKeys:
        """Makes a tenant with a signing key of its own; one that exists is left as it is."""
        async with tenant_transaction(self._pool, tenant_id) as connection:
            now = await db.access.server_time(connection)
            # Replicas that start together agree on one key: only who added the tenant adds its key.
            if await db.ledger.add_tenant(connection, TenantRow(tenant_id, slug, name, now)):
                await db.ledger.add_signing_key(connection, self.seal(tenant_id, NewSigningKey.random(), now))
        return await self.of(tenant_id)

    async def _load(self, tenant_id: UUID, before: TenantKeys | None) -> TenantKeys:
        async with tenant_transaction(self._pool, tenant_id) as connection:
            rows = await db.ledger.signing_keys(connection, tenant_id)
            now = await db.access.server_time(connection)
            suspended = await db.access.is_suspended(connection, tenant_id)
            if tenant_id not in self._slugs and (tenant := await db.ledger.tenant(connection, tenant_id)):
                self._slugs[tenant_id] = tenant.slug
        if not rows:
            raise NotFoundError("tenant not found")
        opened = {row.key_id: self._opened(row, before) for row in rows}
        rows = in_order(rows)
        settled = now - timedelta(seconds=self.settle_secs)
        known = [row for row in rows if row.created_at <= settled]
        return TenantKeys(
            tenant_id=tenant_id,
            newest=opened[(known[-1] if known else rows[0]).key_id],
            by_public_key={row.public_key: opened[row.key_id] for row in rows},
            suspended=suspended,
            rows=tuple(rows),
        )

    def opened(self, row: SigningKeyRow) -> TenantKeys:
        """The keys of a tenant that is being made with this one key."""
        key = self._opened(row, None)
        return TenantKeys(row.tenant_id, key, {key.public.hex: key}, rows=(row,))

    def _opened(self, row: SigningKeyRow, before: TenantKeys | None) -> SigningKey | SourceSigner:
        """The key of a row: the one that was opened before, if no column changed, or opened now."""
        if before is not None and row in before.rows:
            return before.by_public_key[row.public_key]
        stored = open_row(self._master, row)
        if isinstance(stored.content, str):
            return SourceSigner(stored.public, stored.content)
        return SigningKey.from_raw(stored.content)


def require_active(*, suspended: bool) -> None:
    """Raises ForbiddenError when the tenant is suspended."""
    if suspended:
        raise ForbiddenError("this tenant is suspended: its records can be read, nothing is written")
