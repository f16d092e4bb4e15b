"""The standing of tenants at run time: what the verified records of their administration say.

The tables of keys and suspensions are written together with these records and find things; what counts is
the records. A revocation that was deleted from its table revives no key, and a suspension none of what it
ended, in this process and in one that starts later. An act of another process is known here within
``FRESH_SECS``.

Fail closed: while an administration chain does not verify, no API key of its tenant is accepted and nothing
is written for it, since it is not known what was revoked. The tokens of the installation still read, so that
someone can look; ``GET /v1/agents/_administration/verify`` releases the chain once it verifies again, and is
all that the tenant's own keys can have done meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import db.ledger
from app.errors import NotFoundError, QuarantinedError, TenantQuarantinedError
from app.fold.administration import NO_STANDING, TenantStanding
from app.ledger.fresh import Fresh
from app.ledger.keys.keystore import require_active
from app.ledger.rebuild import catch_up
from app.principal import ADMINISTRATION

if TYPE_CHECKING:
    from uuid import UUID

    from app.ledger.chain import Chain, Chains
    from app.ledger.keys.keystore import Keystore, TenantKeys
    from app.ledger.snapshots import Snapshots
    from app.ledger.watch.seen import Seen
    from db.pool import Pool

FRESH_SECS: Final = 0.5
"""How old what is known of a tenant's standing may be."""

CAPACITY: Final = 10_000
"""Tenants whose standing is remembered."""


class Standings:
    """Tells the standing of tenants; one look at the head of a tenant's chain in ``fresh_secs``."""

    def __init__(
        self,
        pool: Pool,
        chains: Chains,
        keystore: Keystore,
        *,
        snapshots: Snapshots,
        seen: Seen,
        fresh_secs: float = FRESH_SECS,
    ) -> None:
        self._seen = seen
        self._pool = pool
        self._snapshots = snapshots
        self._chains = chains
        self._keystore = keystore
        self._known: Fresh[UUID, TenantStanding] = Fresh(fresh_secs, capacity=CAPACITY)

    async def of(self, tenant_id: UUID) -> TenantStanding:
        """What the tenant's administration chain says; nothing before there is one.

        Raises:
            TenantQuarantinedError: the chain does not verify.
            NotFoundError: no such tenant.
            UnavailableError: the database is away.
        """
        known = self._known.at_hand(tenant_id)
        return await self._known.get(tenant_id, lambda _: self._load(tenant_id)) if known is None else known

    async def writable(self, tenant_id: UUID) -> TenantKeys:
        """The keys of a tenant for which something is about to be written.

        The caller has not its administration chain exclusively.

        Raises:
            ForbiddenError: the tenant is suspended, as its table or its records say.
            TenantQuarantinedError: its administration chain does not verify.
            NotFoundError: no such tenant.
            UnavailableError: the database is away.
        """
        keys = await self._keystore.of(tenant_id)
        require_active(suspended=keys.suspended or (await self.of(tenant_id)).suspended)
        return keys

    async def epoch(self, tenant_id: UUID, agent_id: str) -> int:
        """How often the token of an agent was revoked, as it is on record now.

        Raises:
            TenantQuarantinedError: the administration chain does not verify.
            UnavailableError: the database is away.
        """
        self.forget(tenant_id)
        return (await self.of(tenant_id)).epochs.get(agent_id, 0)

    def forget(self, tenant_id: UUID) -> None:
        """What is known of a tenant is looked at again: this process has just recorded an act."""
        self._known.forget(tenant_id)

    def expect(self, tenant_id: UUID, key_id: str) -> None:
        """A row of this key was read: what is known without it is older than the row, and looked at again."""
        known = self._known.at_hand(tenant_id)
        if known is not None and key_id not in known.keys:
            self._known.forget(tenant_id)

    async def _load(self, tenant_id: UUID) -> TenantStanding:
        try:
            chain = await self._chains.get(tenant_id, ADMINISTRATION)
        except NotFoundError:
            return NO_STANDING
        try:
            await self._bring_up_to_date(chain)
        except QuarantinedError as error:
            raise TenantQuarantinedError(error.reason) from error
        return chain.standing

    async def _bring_up_to_date(self, chain: Chain) -> None:
        """Folds what the table holds; without waiting for acts of this process when it is folded already."""
        chain.require_sound()
        newest = await db.ledger.head(self._pool, chain.id.tenant_id, chain.id.log_uuid)
        is_ahead = self._seen.ahead(chain)
        if not is_ahead and newest is not None and chain.head is not None and newest[0] <= chain.head.seq:
            return
        keys = await self._keystore.of(chain.id.tenant_id)
        async with chain.exclusively():
            is_new = chain.head is None
            await self._snapshots.begin(chain, keys)
            await catch_up(self._pool, chain, keys)
            if is_new or self._seen.ahead(chain):
                await self._seen.require(chain)
