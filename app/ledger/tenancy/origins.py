"""Origins: a chain that begins with a retired key has to be told of by a record from before it was retired.

Whoever stole a key that is retired now could begin a chain with it, and date it back. The administration
chain tells of every chain in the transaction that begins it, and is signed by the newer key since, so that
nothing can be put into it behind. Chains of a tenant from before that was so are not judged.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

import db.ledger
from app.errors import NotFoundError, QuarantinedError, TenantQuarantinedError
from app.fold.administration import AdministrationState
from app.ledger.rebuild import each_record
from app.principal import ADMINISTRATION

if TYPE_CHECKING:
    from uuid import UUID

    from app.chain.keys import PublicKey
    from app.ledger.chain import ChainId, Chains
    from app.ledger.keys.keystore import TenantKeys
    from db.pool import Pool

HEARD_SECS: Final = 60
"""How long after a rotation a chain may still begin with the key before: its process had not heard, or its
clock was ahead."""

CAPACITY: Final = 100
"""Tenants of which it is remembered which chains were told of."""


class _Told(msgspec.Struct, frozen=True):
    """When which chain was told of, and when which key (hex) was retired; ``upto`` is the last record."""

    upto: int
    chains: dict[str, datetime]
    retired: dict[str, datetime]
    covers_agents: bool


class Origins:
    """Judges chains that begin with a retired key; one reading of the administration chain tells of all."""

    def __init__(self, pool: Pool, chains: Chains) -> None:
        self._pool = pool
        self._chains = chains
        self._known: OrderedDict[UUID, _Told] = OrderedDict()

    async def problem(self, chain_id: ChainId, key: PublicKey, keys: TenantKeys) -> str | None:
        """Why a chain whose genesis record ``key`` signed is not believed; None when it is.

        Raises:
            TenantQuarantinedError: the administration chain does not verify, so that it cannot be told.
            UnavailableError: the database is away.
        """
        if chain_id.agent_id == ADMINISTRATION or not keys.is_retired(key):
            return None
        known = self._known.get(chain_id.tenant_id)
        if (
            known is not None
            and _problem(known, chain_id, key) is not None
            and await self._is_old(known, keys)
        ):
            known = None
        return _problem(known or await self._read(chain_id.tenant_id, keys), chain_id, key)

    async def _is_old(self, known: _Told, keys: TenantKeys) -> bool:
        """Whether more is on record than was read."""
        try:
            chain = await self._chains.get(keys.tenant_id, ADMINISTRATION)
        except NotFoundError:
            return True
        head = await db.ledger.head(self._pool, keys.tenant_id, chain.id.log_uuid)
        return head is None or head[0] != known.upto

    async def _read(self, tenant_id: UUID, keys: TenantKeys) -> _Told:
        state, upto = AdministrationState(), -1
        try:
            chain = await self._chains.get(tenant_id, ADMINISTRATION)
        except NotFoundError:
            pass
        else:
            try:
                async for record in each_record(self._pool, chain.id, keys):
                    state.add(record)
                    upto = record.seq
            except QuarantinedError as error:
                raise TenantQuarantinedError(error.reason) from error
        told = self._known[tenant_id] = _Told(
            upto,
            {agent.log_uuid: agent.told.at for agent in state.agents.values()},
            {rotation.old: rotation.told.at for rotation in state.rotations},
            state.covers_agents,
        )
        self._known.move_to_end(tenant_id)
        if len(self._known) > CAPACITY:
            self._known.popitem(last=False)
        return told


def begun_too_late(begun: datetime, retired: datetime) -> bool:
    """Whether a chain was begun when every process knew that its key was retired."""
    return begun > retired + timedelta(seconds=HEARD_SECS)


def _problem(told: _Told, chain_id: ChainId, key: PublicKey) -> str | None:
    retired = told.retired.get(key.hex)
    begun = told.chains.get(str(chain_id.log_uuid))
    if retired is None or (begun is None and not told.covers_agents):
        return None
    if begun is not None and not begun_too_late(begun, retired):
        return None
    return f"it begins with key {key.key_id}, which was retired before any record told of this chain"
