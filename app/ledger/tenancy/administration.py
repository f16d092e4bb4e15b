"""A tenant's administration: an act changes its table and is a record of the tenant's own chain, or neither.

The chain is called ``_administration``. It is made, signed, verified and read like any other; only the
service writes to it. Acts of one tenant follow one another: an act that another process overtook is decided
again on what is true then. What is true its records say: a row that someone removed makes nothing undone.

No chain begins that this one does not tell of: see ``app.ledger.tenancy.filing``.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import msgspec

import db.access
import db.ledger
from app.api_key import KEY_ID_BYTES, SECRET_BYTES, TENANT_ROLES, ApiKey, Mint, check_name, hash_secret
from app.chain.record import Draft
from app.errors import (
    AgentExistsError,
    BadRequestError,
    ChainError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    StaleChainError,
    TrailsError,
)
from app.fold.administration import AGENTS, COVERS, AdministrationState, TenantStanding
from app.guard.kinds import ADMIN
from app.ledger.act import MAX_ATTEMPTS, outrun
from app.ledger.chain import Chain, ChainId, Chains
from app.ledger.idempotency import Stamp, act_length, stamped
from app.ledger.keys.keystore import require_active
from app.ledger.keys.sealed_key import NewSigningKey
from app.ledger.keys.sealing import from_source, sealed
from app.ledger.keys.signers import scheme_of
from app.ledger.mirror import registry_row, row_of
from app.ledger.read import verified_row
from app.ledger.rebuild import catch_up, each_record
from app.ledger.tenancy.filing import Begun, Filer, NewChain, first_records, ready
from app.moment import from_microseconds
from app.principal import ADMINISTRATION, Grant, Role
from db.access import ApiKeyRow
from db.errors import DuplicateKeyError
from db.ledger import TenantRow
from db.pool import tenant_transaction

if TYPE_CHECKING:
    from app.chain.strict import JsonObject
    from app.ledger.act import Actor
    from app.ledger.clock import Clock
    from app.ledger.keys.keystore import Keystore, TenantKeys
    from app.ledger.redacting import Redacting
    from app.ledger.tenancy.standings import Standings
    from app.redaction import RuleList
    from db.pool import Connection, Pool

MAX_KEYS: Final = 10_000
"""Keys that a tenant may have that are neither revoked nor expired."""

Act = Callable[["Connection", datetime], Awaitable["JsonObject"]]
"""Changes tables within the transaction, at a time; returns the payload of the record that says so."""

RESERVED_NAMES: Final = frozenset({"root", "operator", "guard", "rotation", "system", "trails"})
"""Actors of the installation's own: no key is called so, in whatever case."""

_LAST_EXPIRY: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Far from what PostgreSQL's clients take for the end of time."""

_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class NewKey(msgspec.Struct, frozen=True):
    """What is asked for: see ``ApiKey`` for the members."""

    role: Role
    name: str
    agent_id: str | None = None
    expires_at: datetime | None = None


class HandedOver(msgspec.Struct, frozen=True):
    """A chain that the new key signs from now on, or why not."""

    agent_id: str
    problem: str | None


class NewTenant(msgspec.Struct, frozen=True):
    """A tenant to make: ``operator`` is the name of its first operator's key.

    ``source`` is the URI of what holds its signing key; None for a new key in the database.
    """

    slug: str
    name: str
    operator: str
    source: str | None = None


class IssuedKey(msgspec.Struct, frozen=True):
    """A new key with its only copy. The repr does not show it."""

    key: ApiKey
    token: str

    def __repr__(self) -> str:
        return f"IssuedKey({self.key.key_id})"


class Administration:
    """Carries out administrative acts and records them; ``on_revoked`` hears of each key that ended here."""

    def __init__(
        self,
        pool: Pool,
        chains: Chains,
        keystore: Keystore,
        standings: Standings,
        *,
        actor: Actor,
        redacting: Redacting,
        clock: Clock,
        mint: Mint,
        on_revoked: Callable[[UUID, str], None],
    ) -> None:
        self._pool = pool
        self._chains = chains
        self._keystore = keystore
        self._standings = standings
        self._actor = actor
        self._redacting = redacting
        self._clock = clock
        self._mint = mint
        self._on_revoked = on_revoked
        self._filer = Filer(pool, keystore, actor=actor, clock=clock)

    async def close(self) -> None:
        """Waits until all that was accepted is settled."""
        await self._filer.close()

    # --- keys ---------------------------------------------------------------------------------------

    async def issue_key(self, grant: Grant, wanted: NewKey, mark: Stamp | None = None) -> IssuedKey:
        """Issues an API key.

        Raises:
            BadRequestError: what is asked for is no key: role, agent, name or expiry.
            ForbiddenError: the tenant is suspended, by whatever process, before the key is on record.
            NotFoundError: an agent's key for an agent that does not exist.
            ConflictError: the name is that of another key in use or of an agent, or the stamp was used: the
                key is not shown again.
        """
        await self._standings.writable(grant.tenant_id)
        issued = self._minted(grant.tenant_id, wanted, self._now())

        async def act(connection: Connection, now: datetime) -> JsonObject:
            require_active(suspended=(await self._recorded(grant.tenant_id)).suspended)
            await self._check_key(connection, issued.key, now)
            await db.access.add_api_key(connection, self._row(issued.key))
            return {"act": "key_issued", "key": told(issued.key)}

        if not await self._do(grant.tenant_id, grant.actor, act, mark):
            raise ConflictError(
                "this Idempotency-Key was used before, and what its answer showed is not shown again"
            )
        return issued

    async def revoke_key(self, grant: Grant, key_id: str, mark: Stamp | None = None) -> ApiKeyRow:
        """Ends a key for good; one that was revoked before stays so, and no second record says it.

        Raises:
            NotFoundError: the tenant has no such key.
        """

        async def act(connection: Connection, now: datetime) -> JsonObject:
            row = await self._key_row(connection, grant.tenant_id, key_id)
            if key_id not in (await self._recorded(grant.tenant_id)).keys:
                raise _AlreadyDone
            await db.access.revoke_api_key(connection, grant.tenant_id, key_id, now)
            return {"act": "key_revoked", "key_id": key_id, "name": row.name, "role": row.role}

        with suppress(_AlreadyDone):
            await self._do(grant.tenant_id, grant.actor, act, mark)
        self._on_revoked(grant.tenant_id, key_id)
        return await self._key_row(self._pool, grant.tenant_id, key_id)

    async def keys(self, grant: Grant) -> list[ApiKeyRow]:
        """The tenant's keys, oldest first; rows that are no keys (written by SQL) are left out."""
        return [row for row in await db.access.api_keys(self._pool, grant.tenant_id) if self._genuine(row)]

    async def revoke_token(self, grant: Grant, reason: str, mark: Stamp | None = None) -> int:
        """Ends the token that is derived for the grant's agent; returns the epoch of its next one.

        Raises:
            NotFoundError: the tenant has no such agent.
            IdempotencyConflictError: the stamp's key was used with another body.
        """
        agent_id = grant.agent_id or ""
        said, mark = await self._redacting.reason(grant.tenant_id, reason, mark)

        async def act(connection: Connection, _now: datetime) -> JsonObject:
            if not await _is_agent(connection, grant.tenant_id, agent_id):
                raise NotFoundError("agent not found")
            epoch = (await self._recorded(grant.tenant_id)).epochs.get(agent_id, 0) + 1
            return {"act": "agent_token_revoked", "agent_id": agent_id, "epoch": epoch, **said}

        await self._do(grant.tenant_id, grant.actor, act, mark)
        return await self._standings.epoch(grant.tenant_id, agent_id)

    # --- tenants ------------------------------------------------------------------------------------

    async def create_tenant(
        self, wanted: NewTenant, actor: str, mark: Stamp | None = None
    ) -> tuple[TenantRow, IssuedKey]:
        """Makes a tenant with its signing key, its administration chain and its first operator's key.

        Raises:
            BadRequestError: slug, name or operator's name breaks its rule.
            ConflictError: the slug is taken, or this request made the tenant before: the key is not shown
                again.
            IdempotencyConflictError: the stamp's key made it from another body.
            KeyMaterialError: the source of its key does not open or does not sign; says why.
        """
        if _SLUG.fullmatch(wanted.slug) is None:
            raise BadRequestError("slug: must have 1 to 63 of a-z 0-9 -, the first a letter or digit")
        if not wanted.name.isprintable() or not wanted.name.strip():
            raise BadRequestError("name: must be printable")
        tenant = TenantRow(uuid4(), wanted.slug, wanted.name, self._now())
        issued = self._minted(tenant.tenant_id, NewKey(Role.OPERATOR, wanted.operator), tenant.created_at)
        key = NewSigningKey.random() if wanted.source is None else await from_source(wanted.source)
        made: JsonObject = {"act": "tenant_created", "slug": tenant.slug, "name": tenant.name}
        drafts = [
            Draft(ADMIN, made, actor),
            Draft(ADMIN, {"act": "key_issued", "key": told(issued.key)}, actor),
        ]
        try:
            await self._add_tenant(tenant, issued.key, key, stamped(drafts, mark), actor)
        except ConflictError:
            if mark is not None:
                await self._refuse_again(tenant.slug, mark)
            raise
        return tenant, issued

    async def _add_tenant(
        self, tenant: TenantRow, first: ApiKey, key: NewSigningKey, drafts: Sequence[Draft], actor: str
    ) -> None:
        async with tenant_transaction(self._pool, tenant.tenant_id) as connection:
            await db.ledger.add_tenant(connection, tenant)
            row = self._keystore.seal(tenant.tenant_id, key, await db.access.server_time(connection))
            await db.ledger.add_signing_key(connection, row)
            await self._begin(connection, self._keystore.opened(row), drafts, actor)
            await db.access.add_api_key(connection, self._row(first))

    async def _refuse_again(self, slug: str, mark: Stamp) -> None:
        """Raises what is told to a request that made the tenant of this slug before, if it did."""
        tenant = await db.ledger.tenant_by_slug(self._pool, slug)
        if tenant is None:
            return
        try:
            chain = await self._chains.get(tenant.tenant_id, ADMINISTRATION)
        except NotFoundError:
            return  # it was not made by a request
        if await self._is_done(chain, await self._keystore.of(tenant.tenant_id), mark):
            raise ConflictError(
                f"the tenant was made by the first request with this Idempotency-Key ({tenant.tenant_id}), "
                "and its operator's token is not shown again; `trails key issue` issues another"
            )

    async def tenants(self, *, after: str = "", limit: int = 1_000) -> list[tuple[TenantRow, bool]]:
        """Who shares this installation, by slug, each with whether it is suspended."""
        rows = await db.access.tenants(self._pool, after=after, limit=limit)
        suspended = await db.access.suspended_among(self._pool, [row.tenant_id for row in rows])
        return [(row, row.tenant_id in suspended) for row in rows]

    async def suspend_tenant(
        self, tenant_id: UUID, actor: str, reason: str, mark: Stamp | None = None, *, suspended: bool
    ) -> None:
        """Suspends a tenant, so that nothing more is written for it, or lets it go on.

        Its administration chain alone still takes records: what is done to a suspended tenant is on record.

        Raises:
            NotFoundError: there is none.
            ConflictError: it is so already, unless this request did it.
            IdempotencyConflictError: the stamp's key was used with another body.
        """
        said, mark = await self._redacting.reason(tenant_id, reason, mark)

        async def act(connection: Connection, now: datetime) -> JsonObject:
            recorded = (await self._recorded(tenant_id)).suspended
            if {recorded, await db.access.is_suspended(connection, tenant_id)} == {suspended}:
                raise ConflictError(f"the tenant is {'' if suspended else 'not '}suspended already")
            await db.access.suspend(connection, tenant_id, now, suspended=suspended)
            return {"act": "tenant_suspended" if suspended else "tenant_resumed", **said}

        await self._do(tenant_id, actor, act, mark)
        self._keystore.forget(tenant_id)

    # --- redaction ------------------------------------------------------------------------------------

    async def set_redaction(self, grant: Grant, wanted: RuleList, mark: Stamp | None = None) -> RuleList:
        """Replaces what is taken out of what is written for the tenant; returns the list with its version.

        Records that are written stay as they are.

        Raises:
            ForbiddenError: the tenant is suspended.
            IdempotencyConflictError: the stamp's key was used with another body.
        """
        await self._standings.writable(grant.tenant_id)

        async def act(_connection: Connection, _now: datetime) -> JsonObject:
            before = await self._recorded(grant.tenant_id)
            require_active(suspended=before.suspended)
            rules = msgspec.structs.replace(wanted, version=before.redaction.version + 1)
            return {"act": "redaction_set", "rules": rules.to_json()}

        await self._do(grant.tenant_id, grant.actor, act, mark)
        self._standings.forget(grant.tenant_id)
        return (await self._standings.of(grant.tenant_id)).redaction

    # --- signing keys -------------------------------------------------------------------------------

    async def rotate_signing(self, tenant_id: UUID, actor: str, source: str | None = None) -> str:
        """Makes a new signing key for a tenant; returns its public half, 64 hex.

        With ``source``, a URI (``app.ledger.keys.signers``), it is the key that is kept there: every process
        that writes for the tenant has to be able to open it, and does so when it has to sign.

        It signs from ``SETTLE_SECS`` on: each chain is handed over to it by its next append, or at once by
        ``hand_over``. The old key stays, since its records verify by it.

        Raises:
            NotFoundError: no such tenant.
            KeyMaterialError: the source does not open or does not sign; says why.
            ConflictError: the source's key is one of the tenant's already.
        """
        key = NewSigningKey.random() if source is None else await from_source(source)

        async def act(connection: Connection, _now: datetime) -> JsonObject:
            row, before = await self._keystore.next_row(connection, tenant_id, key)
            if not await db.ledger.add_signing_key(connection, row):
                raise ConflictError(
                    f"key {row.key_id} is one of the tenant's already: a key is put in force once"
                )
            told: JsonObject = {"act": "signing_key_rotated", "from": before.public_key, "to": row.public_key}
            return told if source is None else {**told, "source": scheme_of(source)}

        await self._do(tenant_id, actor, act, None)
        self._keystore.forget(tenant_id)
        return key.public.hex

    async def hand_over(self, tenant_id: UUID, public_key: str) -> AsyncIterator[HandedOver]:
        """Hands every chain of the tenant over to the key that ``rotate_signing`` made, one after the other.

        A chain that cannot be is told of and left: it may not verify, or the key may not be in force yet.
        """
        for entry in await db.ledger.chains(self._pool, tenant_id):
            chain = self._chains.remember(ChainId(tenant_id, entry.agent_id, entry.log_uuid, entry.guarded))
            try:
                in_force = await self._actor.renew(chain)
            except TrailsError as error:
                yield HandedOver(entry.agent_id, error.message)
                continue
            problem = f"is still signed by key {in_force.key_id}; try again"
            keys = await self._keystore.of(tenant_id)
            yield HandedOver(entry.agent_id, problem if keys.precedes(in_force, public_key) else None)

    # --- acts ---------------------------------------------------------------------------------------

    async def record(self, tenant_id: UUID, actor: str, payload: JsonObject) -> None:
        """Records an act that changes no table of ours: an export, a verification, a SQL login.

        Raises:
            NotFoundError: no such tenant.
            TenantQuarantinedError: the administration chain does not verify.
            UnavailableError: the database is away or too busy.
        """
        keys = await self._keystore.of(tenant_id)
        await self._filer.record(await self._chain(keys, actor), actor, payload)

    async def begin_chains(self, tenant_id: UUID, actor: str, new: Sequence[NewChain]) -> Begun:
        """Begins chains of a tenant, whose ids differ, in one transaction with the records that tell of them.

        One whose agent exists already is left out, and so is one that a key in use is called, which is told.

        Raises:
            NotFoundError: no such tenant.
            ForbiddenError: the tenant is suspended.
            TenantQuarantinedError: the administration chain does not verify.
            UnavailableError: the database is away or too busy.
        """
        keys = await self._standings.writable(tenant_id)
        return await self._filer.begin(await self._chain(keys, actor), actor, new)

    async def state(self, tenant_id: UUID) -> AdministrationState:
        """All that is on record of a tenant's administration, read from the first record on.

        Raises:
            NotFoundError: no such tenant.
            QuarantinedError: the chain does not verify.
            UnavailableError: the database is away.
        """
        keys, state = await self._keystore.of(tenant_id), AdministrationState()
        try:
            chain = await self._chains.get(tenant_id, ADMINISTRATION)
        except NotFoundError:
            return state
        async for record in each_record(self._pool, chain.id, keys):
            state.add(record)
        return state

    async def carry_out(self, tenant_id: UUID, actor: str, act: Act, mark: Stamp | None) -> bool:
        """Carries out an act of another part of the service in one transaction with its record.

        Returns:
            False when the request that ``mark`` names did it before; nothing is done again.

        Raises:
            IdempotencyConflictError: another request has this key.
        """
        return await self._do(tenant_id, actor, act, mark)

    async def standing_of(self, tenant_id: UUID) -> TenantStanding:
        """What the records say that an act is decided on; only within one, which has the chain."""
        return await self._recorded(tenant_id)

    async def _do(self, tenant_id: UUID, actor: str, act: Act, mark: Stamp | None) -> bool:
        """Carries out one act in one transaction with its record, whatever other writers do meanwhile.

        Returns:
            False when the request that ``mark`` names did it before; nothing is done again.

        Raises:
            IdempotencyConflictError: another request has this key.
        """
        keys = await self._keystore.of(tenant_id)
        chain = await self._chain(keys, actor)
        async with chain.exclusively():
            await ready(self._actor, chain, keys)
            for attempt in range(MAX_ATTEMPTS):
                if await self._is_done(chain, keys, mark):
                    return False
                try:
                    await self._attempt(chain, keys, actor, act, mark)
                except (DuplicateKeyError, StaleChainError):
                    await self._actor.read_on(chain, keys, attempt)
                except (_AlreadyDone, ConflictError, ForbiddenError, NotFoundError):
                    # Final only on what is on record now: another process may have issued what ends here.
                    if not await catch_up(self._pool, chain, keys):
                        raise
                else:
                    return True
        raise outrun()

    async def _is_done(self, chain: Chain, keys: TenantKeys, mark: Stamp | None) -> bool:
        """Whether the chain has the act of the request that ``mark`` names.

        Raises:
            IdempotencyConflictError: it has another one under this key.
            QuarantinedError: the record does not verify.
        """
        if mark is None:
            return False
        row = await db.ledger.by_idempotency(self._pool, chain.id.tenant_id, chain.id.log_uuid, mark.key)
        if row is None:
            return False
        record = verified_row(chain, keys, row)
        try:
            act_length(record, mark)
        except ChainError as error:
            raise chain.quarantine(str(error)) from error
        return True

    async def _attempt(
        self, chain: Chain, keys: TenantKeys, actor: str, act: Act, mark: Stamp | None
    ) -> None:
        key = await self._actor.signing_key(chain, keys)
        now_us = chain.state.time_us(self._clock())  # rows have the time of their record
        async with tenant_transaction(self._pool, keys.tenant_id) as connection:
            payload = await act(connection, from_microseconds(now_us))
            drafts = stamped([Draft(ADMIN, payload, actor)], mark)
            records = await sealed(drafts, chain.head, now_us, key)
            rows = [row_of(chain.id, record, key.public.key_id) for record in records]
            await db.ledger.append(connection, rows)
        for record in records:
            chain.advance(record, key.public)
        self._standings.forget(keys.tenant_id)

    async def _recorded(self, tenant_id: UUID) -> TenantStanding:
        """What the records say that this act is decided on; only within ``_do``, which has the chain."""
        return (await self._chains.get(tenant_id, ADMINISTRATION)).standing

    async def _chain(self, keys: TenantKeys, actor: str) -> Chain:
        """The tenant's administration chain, begun when there is none yet."""
        try:
            return await self._chains.get(keys.tenant_id, ADMINISTRATION)
        except NotFoundError:
            pass
        try:
            async with tenant_transaction(self._pool, keys.tenant_id) as connection:
                await self._begin(connection, keys, [], actor)
        except AgentExistsError:
            pass  # another process was faster
        return await self._chains.get(keys.tenant_id, ADMINISTRATION)

    async def _begin(
        self, connection: Connection, keys: TenantKeys, drafts: Sequence[Draft], actor: str
    ) -> None:
        has_agents = bool(await db.ledger.chains(connection, keys.tenant_id))
        new = NewChain(
            ChainId(keys.tenant_id, ADMINISTRATION, uuid4(), guarded=False),
            tuple(drafts),
            members={} if has_agents else {COVERS: AGENTS},
        )
        records = await first_records(new, actor, keys, self._clock())
        rows = [row_of(new.id, record, keys.newest.public.key_id) for record in records]
        await db.ledger.append(connection, rows, chains=[registry_row(new.id, rows[0])])

    # --- shared -------------------------------------------------------------------------------------

    def _minted(self, tenant_id: UUID, wanted: NewKey, now: datetime) -> IssuedKey:
        secret, key_id = os.urandom(SECRET_BYTES), os.urandom(KEY_ID_BYTES).hex()
        key = ApiKey(
            tenant_id=tenant_id,
            key_id=key_id,
            role=_role_of(wanted),
            agent_id=wanted.agent_id,
            name=check_name(wanted.name),
            secret_hash=hash_secret(secret),
            created_at=now,
            expires_at=None if wanted.expires_at is None else wanted.expires_at.astimezone(UTC),
        )
        if key.expires_at is not None and not now < key.expires_at < _LAST_EXPIRY:
            raise BadRequestError("expires_at: must be in the future, and before the year 9000")
        if key.role is not Role.AGENT and key.name.casefold() in RESERVED_NAMES:
            raise BadRequestError(
                f"name: {key.name!r} is what records call the service itself; choose another"
            )
        return IssuedKey(key, self._mint.token(tenant_id, key_id, secret))

    async def _check_key(self, connection: Connection, key: ApiKey, now: datetime) -> None:
        """Refuses a key for no agent, and a name that would make two actors look the same."""
        if key.agent_id is not None and not await _is_agent(connection, key.tenant_id, key.agent_id):
            raise NotFoundError("agent not found")
        rows = await db.access.api_keys(connection, key.tenant_id)
        rows = [row for row in rows if row.revoked_at is None and self._genuine(row)]
        live = [row for row in rows if (row.expires_at or now) >= now]
        if len(live) >= MAX_KEYS:
            raise ConflictError(f"the tenant has {MAX_KEYS} keys in use; revoke some first")
        folded = key.name.casefold()
        if (taken := next((row.name for row in live if row.name.casefold() == folded), None)) is not None:
            raise ConflictError(f"a key in use is called {taken!r}; choose another name")
        if key.role is not Role.AGENT:
            agent_id = await db.ledger.agent_called(connection, key.tenant_id, folded)
            if agent_id is not None:
                raise ConflictError(f"an agent is called {agent_id!r}; choose another name")

    async def _key_row(self, source: Pool | Connection, tenant_id: UUID, key_id: str) -> ApiKeyRow:
        row = await db.access.api_key(source, tenant_id, key_id)
        if row is None or not self._genuine(row):
            raise NotFoundError("key not found")
        return row

    def _genuine(self, row: ApiKeyRow) -> bool:
        key = key_of_row(row)
        return key is not None and self._mint.is_genuine(key, row.seal)

    def _row(self, key: ApiKey) -> ApiKeyRow:
        return ApiKeyRow(**msgspec.structs.asdict(key), seal=self._mint.seal(key))

    def _now(self) -> datetime:
        return from_microseconds(self._clock())


class _AlreadyDone(Exception):  # noqa: N818  no error: it ends a transaction that has nothing to do
    """What was asked for is so already."""


def key_of_row(row: ApiKeyRow) -> ApiKey | None:
    """What a row says, before its seal is looked at; None for a role that is none."""
    if row.role not in TENANT_ROLES:
        return None
    values = {name: getattr(row, name) for name in ApiKey.__struct_fields__}
    return ApiKey(**{**values, "role": Role(row.role)})


def told(key: ApiKey) -> JsonObject:
    """What answers and records tell of a key: nothing of its secret."""
    return {
        "key_id": key.key_id,
        "role": key.role.value,
        "agent_id": key.agent_id,
        "name": key.name,
        "created_at": written(key.created_at),
        "expires_at": _written_if(key.expires_at),
    }


def told_row(row: ApiKeyRow) -> JsonObject:
    """The same of a row, with what became of the key."""
    return {
        "key_id": row.key_id,
        "role": row.role,
        "agent_id": row.agent_id,
        "name": row.name,
        "created_at": written(row.created_at),
        "expires_at": _written_if(row.expires_at),
        "revoked_at": _written_if(row.revoked_at),
        # Uses are kept by the step of time that they fall into, which may have begun before the key was made.
        "last_used_at": _written_if(row.used_at and max(row.used_at, row.created_at)),
    }


def _written_if(moment: datetime | None) -> str | None:
    return None if moment is None else written(moment)


def written(moment: datetime) -> str:
    """A time as records write it: RFC 3339, UTC, six decimals."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _role_of(wanted: NewKey) -> Role:
    if wanted.role not in TENANT_ROLES:
        raise BadRequestError(f"role: must be one of {', '.join(TENANT_ROLES)}")
    if (wanted.role is Role.AGENT) != (wanted.agent_id is not None):
        raise BadRequestError("agent_id: is required for role agent, and for no other")
    return wanted.role


async def _is_agent(connection: Connection, tenant_id: UUID, agent_id: str) -> bool:
    return await db.ledger.chain(connection, tenant_id, agent_id) is not None
