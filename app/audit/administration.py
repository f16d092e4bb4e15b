"""What a tenant's tables and its registry of chains say, compared with its administration chain.

Tables and records are written together; the records are signed, the tables are not. What one of them says and
the other does not was added, changed or removed by somebody past the service.

Of chains it depends on how the administration chain began: when its genesis record says that it covers
agents, a chain that none of its records names is a finding. An administration chain that is older, or was
begun for a tenant that had agents already, is held to what it does name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from app.audit.rows import moment
from app.chain.verdict import Verdict
from app.fold.administration import (
    AdministrationState,
    Suspension,
    ToldAgent,
    ToldKey,
    ToldWebhook,
)
from app.ledger.tenancy.origins import begun_too_late
from app.ledger.webhooks.hooks import target_of
from db.pool import Connection
from db.sql import statements
from db.webhooks import WebhookRow

_AUDIT = statements("audit")
_MICROSECOND: Final = timedelta(microseconds=1)

Difference = tuple[Verdict, str]
"""How grave, and what, as a sentence."""


class Login(msgspec.Struct, frozen=True):
    """A row of the table of SQL logins; ``exists`` says whether the role is there."""

    login: str
    name: str
    created_at: datetime
    exists: bool


class StoredWebhook(msgspec.Struct, frozen=True):
    """A row of the table of webhooks; ``target`` is what its seal opens to, None when it does not open.

    Without the master key nobody knows (``sealed``).
    """

    name: str
    kinds: tuple[str, ...] | None
    agents: tuple[str, ...] | None
    created_at: datetime
    target: str | None
    sealed: bool = False


class Tables(msgspec.Struct, frozen=True):
    """What the tables say of one tenant.

    Attributes:
        named: slug and name; None without a row.
        keys: API keys by id.
        revoked: when API keys were revoked, by id.
        suspensions: each change in order: whether suspended from then on, and when.
        logins: SQL logins by the name of the role.
        roles: names of roles of the cluster that records call SQL logins.
        signing: public keys in hex, oldest first.
        webhooks: webhooks by id.
    """

    named: tuple[str, str] | None = None
    keys: Mapping[str, ToldKey] = {}
    revoked: Mapping[str, datetime] = {}
    suspensions: Sequence[tuple[bool, datetime]] = ()
    logins: Mapping[str, Login] = {}
    roles: Collection[str] = ()
    signing: Sequence[str] = ()
    webhooks: Mapping[str, StoredWebhook] = {}


class BegunChain(msgspec.Struct, frozen=True):
    """A chain of the registry; ``key`` (hex) and ``at`` are its genesis record's, None when that fails."""

    agent_id: str
    log_uuid: str
    guarded: bool
    key: str | None = None
    at: datetime | None = None


class AllTables:
    """What the tables say of all tenants that are looked at, read in one snapshot."""

    def __init__(self) -> None:
        self.named: dict[UUID, tuple[str, str]] = {}
        self.keys: dict[UUID, dict[str, ToldKey]] = {}
        self.revoked: dict[UUID, dict[str, datetime]] = {}
        self.suspensions: dict[UUID, list[tuple[bool, datetime]]] = {}
        self.logins: dict[UUID, dict[str, Login]] = {}
        self.signing: dict[UUID, list[str]] = {}
        self.webhooks: dict[UUID, dict[str, StoredWebhook]] = {}

    @classmethod
    async def read(
        cls, connection: Connection, tenants: list[UUID] | None, master_key: bytes | None
    ) -> AllTables:
        """Reads the rows of these tenants; None for all. With the master key what is sealed is opened."""
        tables = cls()

        async def rows(name: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in await connection.fetch(_AUDIT[name], tenants)]

        tables.named = {tenant: (slug, name) for tenant, slug, name in await rows("tenant_names")}
        for tenant, key_id, role, agent_id, name, created_at, expires_at in await rows("api_keys"):
            expires = None if expires_at is None else moment(expires_at)
            key = ToldKey(key_id, role, agent_id, name, moment(created_at), expires)
            tables.keys.setdefault(tenant, {})[key_id] = key
        for tenant, key_id, at in await rows("revocations"):
            tables.revoked.setdefault(tenant, {})[key_id] = moment(at)
        for tenant, suspended, at in await rows("suspensions"):
            tables.suspensions.setdefault(tenant, []).append((suspended, moment(at)))
        for tenant, login, name, at, exists in await rows("sql_logins"):
            tables.logins.setdefault(tenant, {})[login] = Login(login, name, moment(at), exists)
        for tenant, key in await rows("signing_keys"):
            tables.signing.setdefault(tenant, []).append(key)
        if await connection.fetchval(_AUDIT["webhooks_there"]):
            for tenant, webhook_id, name, kinds, agents, sealed, at in await rows("webhooks"):
                row = WebhookRow(tenant, webhook_id, name, kinds, agents, sealed, moment(at))
                tables.webhooks.setdefault(tenant, {})[webhook_id] = _stored(row, master_key)
        return tables

    @property
    def tenants(self) -> set[UUID]:
        """Tenants with rows that a record has to tell of."""
        return {*self.keys, *self.revoked, *self.suspensions, *self.logins, *self.webhooks}

    def of(self, tenant: UUID, roles: Collection[str] = ()) -> Tables:
        """What they say of one tenant."""
        return Tables(
            self.named.get(tenant),
            self.keys.get(tenant, {}),
            self.revoked.get(tenant, {}),
            self.suspensions.get(tenant, []),
            self.logins.get(tenant, {}),
            roles,
            self.signing.get(tenant, []),
            self.webhooks.get(tenant, {}),
        )


async def differences(
    connection: Connection,
    tenant: UUID,
    state: AdministrationState,
    agents: Sequence[BegunChain],
    tables: AllTables | None,
) -> list[Difference]:
    """Every difference between the records of a tenant's administration, its chains and its tables.

    Without ``tables`` they are not compared.
    """
    found = [*compare_chains(state, agents)]
    if tables is not None:
        roles = await connection.fetch(_AUDIT["roles_among"], list(state.logins))
        found += compare_tables(state, tables.of(tenant, {role["rolname"] for role in roles}))
    return found


def compare_tables(state: AdministrationState, tables: Tables) -> Iterator[Difference]:
    """Every difference between the tables of a tenant and its records."""
    if state.tenant is not None and tables.named is not None and state.tenant != tables.named:
        yield _tampered(
            f"the table of tenants calls it {_called(tables.named)}, its record {_called(state.tenant)}"
        )
    yield from _compare_keys(state.keys, tables.keys)
    yield from _compare_revocations(state, tables)
    yield from _compare_suspensions(state.suspensions, tables.suspensions)
    yield from _compare_logins(state, tables)
    yield from _compare_signing(state, tables.signing)
    yield from _compare_webhooks(state.webhooks, tables.webhooks)


def compare_chains(state: AdministrationState, chains: Sequence[BegunChain]) -> Iterator[Difference]:
    """Every difference between the registry of chains and the records that tell of chains."""
    by_agent = {chain.agent_id: chain for chain in chains}
    for told in state.agents.values():
        chain = by_agent.get(told.agent_id)
        if chain is None:
            yield _tampered(
                f"the chain of agent {told.agent_id} is on record (seq {told.told.seq}) and is gone"
            )
        elif (chain.log_uuid, chain.guarded) != (told.log_uuid, told.guarded):
            yield _tampered(
                f"the chain of agent {told.agent_id} is not the one on record (seq {told.told.seq}): "
                f"{_chain(chain.log_uuid, guarded=chain.guarded)} in the registry, "
                f"{_chain(told.log_uuid, guarded=told.guarded)} on record"
            )
    retired = {rotation.old: rotation.told.at for rotation in state.rotations}
    for chain in chains:
        named = state.agents.get(chain.agent_id)
        if named is None and state.covers_agents:
            yield _tampered(f"the chain of agent {chain.agent_id} ({chain.log_uuid}) is named by no record")
        yield from _check_key(chain, named, retired)


def without_chain(tables: Tables) -> Iterator[Difference]:
    """What must not be there for a tenant that has no administration chain."""
    parts = {
        "API keys": tables.keys,
        "revocations of API keys": tables.revoked,
        "suspensions": tables.suspensions,
        "SQL logins": tables.logins,
        "webhooks": tables.webhooks,
    }
    for name, rows in parts.items():
        if rows:
            yield _tampered(
                f"{len(rows)} {name} in the tables are on no record: it has no administration chain"
            )


def _check_key(
    chain: BegunChain, named: ToldAgent | None, retired: Mapping[str, datetime]
) -> Iterator[Difference]:
    """A key that was retired begins no chain any more: whoever took it has begun this one."""
    over = None if chain.key is None else retired.get(chain.key)
    begun = chain.at if named is None else named.told.at
    if over is not None and begun is not None and begun_too_late(begun, over):
        yield _tampered(
            f"the chain of agent {chain.agent_id} ({chain.log_uuid}) was begun under a signing key that was "
            f"retired before, at {over.isoformat()}"
        )


def _compare_keys(told: Mapping[str, ToldKey], rows: Mapping[str, ToldKey]) -> Iterator[Difference]:
    for key_id, row in rows.items():
        record = told.get(key_id)
        if record is None:
            yield _tampered(
                f"API key {key_id} ({row.name}) is in its table, and no record says that it was issued"
            )
        elif record != row:
            names = [
                name for name in ToldKey.__struct_fields__ if getattr(row, name) != getattr(record, name)
            ]
            yield _tampered(f"API key {key_id} ({record.name}) differs from its record: {', '.join(names)}")
    for key_id, record in told.items():
        if key_id not in rows:
            yield _tampered(f"API key {key_id} ({record.name}) was issued on record, and its row is gone")


def _compare_revocations(state: AdministrationState, tables: Tables) -> Iterator[Difference]:
    for key_id, at in tables.revoked.items():
        told = state.revoked.get(key_id)
        if told is None:
            yield _tampered(f"API key {key_id} is revoked in its table, and no record says so")
        elif not told.may_be(at):
            yield _tampered(
                f"API key {key_id} was revoked at {told.at.isoformat()} on record, "
                f"at {at.isoformat()} in its table"
            )
    for key_id in state.revoked:
        if key_id not in tables.revoked:
            yield _tampered(f"API key {key_id} was revoked on record, and the row that says so is gone")


def _compare_suspensions(
    told: Sequence[Suspension], rows: Sequence[tuple[bool, datetime]]
) -> Iterator[Difference]:
    on_record, in_table = [one.suspended for one in told], [suspended for suspended, _ in rows]
    if on_record != in_table:
        yield _tampered(
            f"the table of suspensions says {_standing(in_table)}, the records say {_standing(on_record)}"
        )
        return
    before: datetime | None = None
    for (suspended, at), record in zip(rows, told, strict=True):
        # Two in one microsecond stand one after the other in the table.
        follows = before is not None and record.told.at <= before and at == before + _MICROSECOND
        if not (follows or record.told.may_be(at)):
            yield _tampered(
                f"it was {_word(suspended=suspended)} at {record.told.at.isoformat()} on record, "
                f"at {at.isoformat()} in the table"
            )
        before = at


def _compare_logins(state: AdministrationState, tables: Tables) -> Iterator[Difference]:
    for login, row in tables.logins.items():
        told = state.logins.get(login)
        if told is None:
            yield _tampered(f"SQL login {login} ({row.name}) was made, and is not on record")
        elif (told.name, told.created_at) != (row.name, row.created_at):
            yield _tampered(f"SQL login {login} ({told.name}) differs from its record in name or time")
        if row.exists and login in state.dropped:
            yield _tampered(f"SQL login {login} ({row.name}) was dropped on record, and can still log in")
    for login, told in state.logins.items():
        if login in tables.logins:
            continue
        if login in tables.roles:
            yield _tampered(f"SQL login {login} ({told.name}) is there and on record, and its row is gone")
        elif login not in state.dropped:
            reason = (
                f"SQL login {login} ({told.name}) is on record and not there: making it was interrupted, or "
                f"its row was removed (trails sql-login drop {login} puts its end on record)"
            )
            yield Verdict.INCOMPLETE, reason


def _compare_signing(state: AdministrationState, rows: Sequence[str]) -> Iterator[Difference]:
    told = [*filter(None, [state.first_key]), *(rotation.new for rotation in state.rotations)]
    for key in rows:
        if key not in told:
            yield _tampered(f"signing key {key} is in its table, and no record says that it was made")
    for key in told:
        if key not in rows:
            yield _tampered(f"signing key {key} is on record, and its row is gone")
    if set(rows) == set(told) and list(rows) != told:
        yield _tampered("the signing keys do not follow one another as the records of rotations say")


def _compare_webhooks(
    told: Mapping[str, ToldWebhook], rows: Mapping[str, StoredWebhook]
) -> Iterator[Difference]:
    for webhook_id, row in rows.items():
        record = told.get(webhook_id)
        if record is None:
            yield _tampered(
                f"webhook {webhook_id} ({row.name}) is in its table, and no record says that it was set up"
            )
        elif changed := list(_changed(record, row)):
            reason = f"webhook {webhook_id} ({record.name}) differs from its record: {', '.join(changed)}"
            yield _tampered(reason)
    for webhook_id, record in told.items():
        if webhook_id not in rows:
            yield _tampered(f"webhook {webhook_id} ({record.name}) was set up on record, and its row is gone")


def _changed(record: ToldWebhook, row: StoredWebhook) -> Iterator[str]:
    """What of a webhook's row is not as its record says. A seal that does not open holds another address."""
    for name in ("name", "kinds", "agents"):
        if getattr(row, name) != getattr(record, name):
            yield name
    if not record.told.may_be(row.created_at):
        yield "created_at"
    if not row.sealed and row.target != record.target:
        yield "target"


def _stored(row: WebhookRow, master_key: bytes | None) -> StoredWebhook:
    return StoredWebhook(
        row.name,
        None if row.kinds is None else tuple(row.kinds),
        None if row.agents is None else tuple(row.agents),
        row.created_at,
        None if master_key is None else target_of(master_key, row),
        sealed=master_key is None,
    )


def _tampered(reason: str) -> Difference:
    return Verdict.TAMPERED, reason


def _called(tenant: tuple[str, str]) -> str:
    return f"{tenant[0]} ({tenant[1]})"


def _chain(log_uuid: str, *, guarded: bool) -> str:
    return f"{log_uuid} ({'guarded' if guarded else 'observed'})"


def _standing(changes: Sequence[bool]) -> str:
    """Every change, in order."""
    return ", ".join(_word(suspended=suspended) for suspended in changes) or "nothing"


def _word(*, suspended: bool) -> str:
    return "suspended" if suspended else "resumed"
