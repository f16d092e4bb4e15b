"""Webhooks of a tenant: setting them up, ending them, switching them on again. Each act is on record.

What the records of the administration say is in force: a row that somebody wrote is no webhook, and one that
was ended stays so whatever the tables say. Address and secret are in no record and no answer.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

import db.webhooks
from app.api_key import check_name
from app.chain.canonical import canonical
from app.chain.keys import open_secret, seal_secret
from app.errors import ConflictError, KeyMaterialError, NotFoundError
from app.ledger.feed.batches import Wanted
from app.ledger.keys.keystore import require_active
from app.ledger.tenancy.administration import written
from app.ledger.webhooks.signing import SECRET_BYTES, secret_text
from app.ledger.webhooks.target import parse_url, refuse_address, shown
from db.webhooks import WebhookRow

if TYPE_CHECKING:
    from datetime import datetime

    from app.chain.strict import JsonObject, JsonValue
    from app.ledger.feed.feed import Feed
    from app.ledger.idempotency import Stamp
    from app.ledger.tenancy.administration import Administration
    from app.ledger.tenancy.standings import Standings
    from app.ledger.webhooks.target import Networks
    from app.principal import Grant
    from db.pool import Connection, Pool

MAX_WEBHOOKS: Final = 20
"""Webhooks that a tenant may have, those that are switched off among them."""

SERVICE: Final = "trails"
"""The actor of what the service does by itself; no key is called so."""

_NONCE_BYTES: Final = 12
_ID_BYTES: Final = 8


class NewWebhook(msgspec.Struct, frozen=True):
    """What is asked for: where to, and which records."""

    name: str
    url: str
    wanted: Wanted


class Webhook(msgspec.Struct, frozen=True):
    """A genuine webhook, opened. The repr shows neither its address nor its secret."""

    tenant_id: UUID
    webhook_id: str
    url: str
    secret: bytes
    wanted: Wanted

    def __repr__(self) -> str:
        return f"Webhook({self.webhook_id})"


class _Content(msgspec.Struct, frozen=True):
    """What is sealed."""

    url: str
    secret: bytes


class Webhooks:
    """The webhooks of all tenants."""

    def __init__(
        self,
        pool: Pool,
        master_key: bytes,
        feed: Feed,
        *,
        administration: Administration,
        standings: Standings,
    ) -> None:
        self._pool = pool
        self._master_key = master_key
        self._feed = feed
        self._administration = administration
        self._standings = standings

    async def create(
        self, grant: Grant, wanted: NewWebhook, networks: Networks, mark: Stamp | None = None
    ) -> tuple[JsonObject, str]:
        """Sets a webhook up, which is told what comes from now on; returns what it is, and its secret.

        Args:
            grant: of whoever asks.
            wanted: where to, and which records.
            networks: where webhooks may go although it is not public.
            mark: of the request, so that it is carried out once.

        Raises:
            BadRequestError: the name or the URL breaks its rule, or names an address that is not public.
            ConflictError: the tenant has as many as it may, or the stamp was used.
            ForbiddenError: the tenant is suspended.
        """
        await self._standings.writable(grant.tenant_id)
        url, name = parse_url(wanted.url), check_name(wanted.name)
        refuse_address(url, networks)
        secret, webhook_id = os.urandom(SECRET_BYTES), os.urandom(_ID_BYTES).hex()
        cursor = self._feed.seal(grant.tenant_id, await self._feed.from_now(grant.tenant_id))
        told: JsonObject = {
            "webhook_id": webhook_id,
            "name": name,
            "target": shown(url),
            "kinds": None if wanted.wanted.kinds is None else list(wanted.wanted.kinds),
            "agents": None if wanted.wanted.agents is None else list(wanted.wanted.agents),
        }

        async def act(connection: Connection, now: datetime) -> JsonObject:
            standing = await self._administration.standing_of(grant.tenant_id)
            require_active(suspended=standing.suspended)
            known = standing.webhooks
            if len(known) >= MAX_WEBHOOKS:
                raise ConflictError(f"the tenant has {MAX_WEBHOOKS} webhooks; delete one first")
            row = WebhookRow(
                grant.tenant_id,
                webhook_id,
                name,
                None if wanted.wanted.kinds is None else list(wanted.wanted.kinds),
                None if wanted.wanted.agents is None else list(wanted.wanted.agents),
                b"",
                now,
            )
            sealed = self._seal(row, _Content(wanted.url, secret))
            await db.webhooks.add(connection, msgspec.structs.replace(row, sealed=sealed), cursor)
            return {"act": "webhook_created", "webhook": told}

        if not await self._administration.carry_out(grant.tenant_id, grant.actor, act, mark):
            raise ConflictError(
                "this Idempotency-Key was used before, and what its answer showed is not shown again"
            )
        return await self._told(grant.tenant_id, webhook_id), secret_text(secret)

    async def list(self, grant: Grant) -> list[JsonObject]:
        """The tenant's webhooks, oldest first."""
        known = (await self._standings.of(grant.tenant_id)).webhooks
        rows = await db.webhooks.webhooks(self._pool, grant.tenant_id)
        return [self._tell(row, known[row.webhook_id]) for row in rows if row.webhook_id in known]

    async def delete(self, grant: Grant, webhook_id: str) -> None:
        """Ends a webhook for good.

        Raises:
            NotFoundError: the tenant has none of this id.
        """
        await self._end(grant.tenant_id, grant.actor, webhook_id, {"act": "webhook_deleted"})

    async def disable(self, tenant_id: UUID, webhook_id: str, why: str) -> None:
        """Switches a webhook off that takes nothing, unless it is off or gone already."""
        with suppress(NotFoundError):
            await self._end(tenant_id, SERVICE, webhook_id, {"act": "webhook_disabled", "reason": why})

    async def enable(
        self, grant: Grant, webhook_id: str, reason: str, mark: Stamp | None = None
    ) -> JsonObject:
        """Switches a webhook on again; it goes on where it was. One that is on stays so, without a record.

        Raises:
            NotFoundError: the tenant has none of this id.
            ConflictError: somebody else has just done it.
            ForbiddenError: the tenant is suspended.
        """
        await self._standings.writable(grant.tenant_id)
        if await self.known(grant.tenant_id, webhook_id):
            return await self._told(grant.tenant_id, webhook_id)

        async def act(connection: Connection, _now: datetime) -> JsonObject:
            standing = await self._administration.standing_of(grant.tenant_id)
            require_active(suspended=standing.suspended)
            known = standing.webhooks
            if webhook_id not in known:
                raise _unknown()
            if known[webhook_id]:
                raise ConflictError("the webhook is switched on already")
            await db.webhooks.resume(connection, grant.tenant_id, webhook_id)
            return {"act": "webhook_enabled", "webhook_id": webhook_id, "reason": reason}

        await self._administration.carry_out(grant.tenant_id, grant.actor, act, mark)
        return await self._told(grant.tenant_id, webhook_id)

    async def known(self, tenant_id: UUID, webhook_id: str) -> bool | None:
        """Whether a webhook is switched on; None when the tenant has none of this id."""
        return (await self._standings.of(tenant_id)).webhooks.get(webhook_id)

    async def opened(self, tenant_id: UUID, webhook_id: str) -> Webhook:
        """A webhook with its address and its secret.

        Raises:
            NotFoundError: the tenant has none of this id.
            KeyMaterialError: its row was changed, or it was sealed under another master key.
        """
        if await self.known(tenant_id, webhook_id) is None:
            raise _unknown()
        rows = await db.webhooks.webhooks(self._pool, tenant_id, webhook_id)
        if not rows:
            raise _unknown()
        row = rows[0]
        content = _opened(self._master_key, row)
        return Webhook(tenant_id, webhook_id, content.url, content.secret, _wanted(row))

    async def _end(self, tenant_id: UUID, actor: str, webhook_id: str, said: JsonObject) -> None:
        async def act(_connection: Connection, _now: datetime) -> JsonObject:
            known = (await self._administration.standing_of(tenant_id)).webhooks
            is_over = said["act"] == "webhook_disabled" and not known.get(webhook_id)
            if webhook_id not in known or is_over:
                raise _unknown()
            return {**said, "webhook_id": webhook_id}

        await self._administration.carry_out(tenant_id, actor, act, None)

    async def _told(self, tenant_id: UUID, webhook_id: str) -> JsonObject:
        enabled = await self.known(tenant_id, webhook_id)
        rows = await db.webhooks.webhooks(self._pool, tenant_id, webhook_id)
        if enabled is None or not rows:
            raise _unknown()
        return self._tell(rows[0], enabled)

    def _tell(self, row: WebhookRow, enabled: bool) -> JsonObject:  # noqa: FBT001  one of a record's words
        """What answers tell of a webhook: nothing of its secret, and of its address the host."""
        return {
            "webhook_id": row.webhook_id,
            "name": row.name,
            "target": target_of(self._master_key, row),
            "kinds": None if row.kinds is None else list(row.kinds),
            "agents": None if row.agents is None else list(row.agents),
            "enabled": enabled,
            "created_at": written(row.created_at),
            "delivered": row.delivered,
            "failures": row.failures,
            "failing_since": None if row.failing_since is None else written(row.failing_since),
            "problem": row.problem,
        }

    def _seal(self, row: WebhookRow, content: _Content) -> bytes:
        packed = msgspec.msgpack.encode(content)
        return seal_secret(self._master_key, packed, context=_context(row), nonce=os.urandom(_NONCE_BYTES))


def target_of(master_key: bytes, row: WebhookRow) -> str | None:
    """What is shown of a webhook's address; None when its row is not what was sealed under this key."""
    try:
        return shown(parse_url(_opened(master_key, row).url))
    except KeyMaterialError:
        return None


def _opened(master_key: bytes, row: WebhookRow) -> _Content:
    return msgspec.msgpack.decode(open_secret(master_key, row.sealed, context=_context(row)), type=_Content)


def _context(row: WebhookRow) -> bytes:
    """What a seal is bound to: all that was set up."""
    kinds: JsonValue = None if row.kinds is None else list(row.kinds)
    agents: JsonValue = None if row.agents is None else list(row.agents)
    named: list[JsonValue] = [
        "webhook",
        str(row.tenant_id),
        row.webhook_id,
        row.name,
        kinds,
        agents,
        written(row.created_at),
    ]
    return canonical(named).encode()


def _wanted(row: WebhookRow) -> Wanted:
    return Wanted(
        None if row.kinds is None else tuple(row.kinds), None if row.agents is None else tuple(row.agents)
    )


def _unknown() -> NotFoundError:
    return NotFoundError("webhook not found")
