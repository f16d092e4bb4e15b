"""Audit: verifies a whole database and trusts no column of it (DESIGN.md section 4, last paragraphs).

The registry comes first, so that a chain that vanished is an error. Then every row of the table is read
once, in one snapshot, not by an index, through a server-side cursor: what is held in memory does not depend
on how long a chain is. Each signed text is verified, every column and the JSONB mirror are compared with it,
and rows that belong to no registered chain are an error. The catalog is compared with what the migrations
make: triggers, CHECKs, policies, generated columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from app.chain.keys import PublicKey, SigningKey, open_secret
from app.chain.report import Report
from app.chain.verdict import Verdict
from app.chain.verify import ChainAudit
from app.errors import KeyMaterialError, OrderError, StartupError
from app.ledger.audit_chain import (
    AuditedChain,
    AuditedRow,
    ChainName,
    Keys,
    RegisteredChain,
    UnregisteredRows,
)
from app.ledger.keystore import _context
from db.checks import check_catalog
from db.ledger import ChainRow, SigningKeyRow, TrailRow
from db.migrate import check_revision
from db.pool import Connection, tenant_setting
from db.schema import DEFAULT_TENANT_ID, DEFAULT_TENANT_SLUG
from db.sql import statements

CHUNK_ROWS: Final = 500
"""Rows fetched at once: with bodies of some kB, some MB in memory, whatever the length of a chain."""

_AUDIT = statements("audit")
_SESSION = statements("session")
_BOUND: Final = (
    "row security binds the role {role}: only tenant {slug} was looked at; "
    "use an administrator's URL to look at all"
)
_NEVER: Final = datetime.min.replace(tzinfo=UTC)

Checkpoints = Callable[["ChainName"], Mapping[int, str]]
"""The hashes by seq that were kept elsewhere of one chain."""

Progress = Callable[[int], None]
"""Called with the number of records verified so far."""


class ChainVerdict(msgspec.Struct, frozen=True):
    """What was found in one chain."""

    name: ChainName
    report: Report


class Problem(msgspec.Struct, frozen=True):
    """Something that concerns no single chain: the catalog, a key, a table out of reach."""

    verdict: Verdict
    what: str
    reason: str


class Trust(msgspec.Struct, frozen=True):
    """What signatures are believed from: pinned keys, else the stored ones that the master key opens."""

    pinned: tuple[PublicKey, ...] = ()
    master_key: bytes | None = None


class Selection(msgspec.Struct, frozen=True):
    """What to look at: all that the role may see, or one tenant (by slug), or one agent's id."""

    tenant: str | None = None
    agent_id: str | None = None


class DatabaseAudit:
    """What an audit found; filled while it runs, so that an interruption loses nothing found before."""

    def __init__(self) -> None:
        self.chains: list[ChainVerdict] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.checked = 0

    def problem(self, verdict: Verdict, what: str, reason: str) -> None:
        """Adds a finding that concerns no single chain."""
        self.problems.append(Problem(verdict, what, reason))


async def audit_database(
    url: str,
    selection: Selection,
    trust: Trust,
    *,
    checkpoints: Checkpoints = lambda _: {},
    progress: Progress = lambda _: None,
) -> DatabaseAudit:
    """Verifies the database behind ``url``. Never raises for what is wrong with it: that is the result.

    Args:
        url: a role that may read the tables; one without row security sees every tenant.
        selection: which chains.
        trust: whose signatures count.
        checkpoints: heads kept elsewhere, by chain.
        progress: told now and then how far it is.
    """
    found = DatabaseAudit()
    try:
        async with connected(url) as connection:
            await _audit(connection, _Run(found, selection, trust, checkpoints, progress))
    except StartupError as error:
        found.problem(Verdict.UNCHECKED, "database", error.message)
    except asyncpg.PostgresError as error:
        found.problem(Verdict.UNCHECKED, "database", f"it refuses (SQLSTATE {error.sqlstate}): {error}")
    except (
        OSError,
        asyncio.IncompleteReadError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ) as error:
        reason = f"it cannot be reached, or the connection broke: {str(error) or type(error).__name__}"
        found.problem(Verdict.UNCHECKED, "database", reason)
    return found


class _Run(msgspec.Struct, frozen=True):
    """One audit under way."""

    found: DatabaseAudit
    selection: Selection
    trust: Trust
    checkpoints: Checkpoints
    progress: Progress


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection of its own, closed afterwards; its errors are asyncpg's and the network's."""
    connection = await asyncpg.connect(
        url,
        timeout=10,
        # Unqualified names in casts and operators are PostgreSQL's own, whatever the database was set to.
        server_settings={"application_name": "trails-verify", "search_path": "pg_catalog"},
    )
    try:
        yield connection
    finally:
        with suppress(OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
            await connection.close(timeout=5)


async def _audit(connection: Connection, run: _Run) -> None:
    scope = await connection.fetchrow(_AUDIT["scope"])
    if scope is None or not scope["migrated"]:
        run.found.problem(
            Verdict.NOTHING, "database", "holds no trail: it was never migrated (trails migrate)"
        )
        return
    await check_revision(connection)
    for finding in await check_catalog(connection):
        run.found.problem(Verdict.TAMPERED, f"catalog: {finding.object}", finding.problem)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute(_AUDIT["read_tables"])
        if scope["bound"]:
            slug = run.selection.tenant or DEFAULT_TENANT_SLUG
            await enter_tenant(connection, slug)
            run.found.notes.append(_BOUND.format(role=scope["role"], slug=slug))
        await _audit_rows(connection, run, await _registry(connection, run))


async def enter_tenant(connection: Connection, slug: str) -> None:
    """Under row security: names the tenant to look at, which has to be known by its slug."""
    await connection.execute(_SESSION["name_slug"], slug)
    tenants = {row["slug"]: row["tenant_id"] for row in await connection.fetch(_AUDIT["tenants"])}
    await connection.execute(_SESSION["name_tenants"], tenant_setting(tenants.get(slug, DEFAULT_TENANT_ID)))


class _Registry(msgspec.Struct, frozen=True):
    """What must be in the trail, and under whose keys."""

    slugs: dict[UUID, str]
    chains: dict[tuple[UUID, UUID], ChainRow]
    keys: dict[UUID, Keys] | None
    """None: no key is known, every signer is self-declared."""

    def name(self, tenant_id: UUID | None, agent_id: str | None, log_uuid: UUID | None) -> ChainName:
        tenant = "(none)" if tenant_id is None else self.slugs.get(tenant_id, str(tenant_id))
        return ChainName(tenant, agent_id or "(none)", str(log_uuid))


async def _registry(connection: Connection, run: _Run) -> _Registry:
    slugs = {row["tenant_id"]: row["slug"] for row in await connection.fetch(_AUDIT["tenants"])}
    rows = [ChainRow(*row) for row in await connection.fetch(_AUDIT["registry"])]
    chains = {(row.tenant_id, row.log_uuid): row for row in rows if _selected(run.selection, slugs, row)}
    keys = await _keys(connection, run, slugs)
    return _Registry(slugs, chains, keys)


def _selected(selection: Selection, slugs: Mapping[UUID, str], row: ChainRow) -> bool:
    return (selection.tenant is None or slugs.get(row.tenant_id) == selection.tenant) and (
        selection.agent_id is None or row.agent_id == selection.agent_id
    )


async def _keys(connection: Connection, run: _Run, slugs: Mapping[UUID, str]) -> dict[UUID, Keys] | None:
    """The trusted keys of each tenant; a stored public key is never believed, only what a secret opens to."""
    if run.trust.pinned:
        pinned = {key.hex: key for key in run.trust.pinned}
        return dict.fromkeys(slugs, pinned)
    if run.trust.master_key is None:
        return None
    rows = [SigningKeyRow(*row) for row in await connection.fetch(_AUDIT["keys"])]
    keys: dict[UUID, dict[str, PublicKey]] = {tenant_id: {} for tenant_id in slugs}
    refused: list[str] = []
    for row in rows:
        try:
            key = _open(run.trust.master_key, row)
            keys.setdefault(row.tenant_id, {})[key.hex] = key
        except KeyMaterialError as error:
            refused.append(f"{slugs.get(row.tenant_id, row.tenant_id)}/{row.key_id}: {error.message}")
    if refused and not any(keys.values()):
        reason = (
            "no stored key opens under this master key: it is not this installation's, or all were replaced"
        )
        run.found.problem(Verdict.UNCHECKED, "signing keys", reason)
        return None
    for reason in refused:
        run.found.problem(Verdict.TAMPERED, "signing key", reason)
    return {**keys}


def _open(master_key: bytes, row: SigningKeyRow) -> PublicKey:
    secret = open_secret(master_key, row.sealed_secret, context=_context(row.tenant_id, row.key_id))
    public = SigningKey.from_raw(secret).public
    if (public.hex, public.key_id) != (row.public_key, row.key_id):
        raise KeyMaterialError("the stored public key is not that of the secret")
    return public


def _row(found: asyncpg.Record) -> AuditedRow:
    number, *columns, trace_data = found
    columns[7] = _moment(columns[7])
    return AuditedRow(number, TrailRow(*columns), trace_data)


def _moment(text: str | None) -> datetime:
    """A time in PostgreSQL's ISO spelling; one that Python cannot hold equals no record's time."""
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return _NEVER


async def _audit_rows(connection: Connection, run: _Run, registry: _Registry) -> None:
    """All rows, chain by chain; then the chains of the registry that had none."""
    waiting = dict(registry.chains)
    current: AuditedChain | None = None
    async for row in _rows(connection, run, registry):
        place = (row.trail.tenant_id, row.trail.log_uuid)
        if current is None or current.place != place:
            _finish(run, current)
            current = _begin(run, registry, row, waiting.pop(place, None))
        current.push(row)
        run.found.checked += 1
        if run.found.checked % CHUNK_ROWS == 0:
            run.progress(run.found.checked)
    _finish(run, current)
    run.progress(run.found.checked)
    for entry in waiting.values():
        run.found.chains.append(_vanished(run, registry, entry))


async def _rows(connection: Connection, run: _Run, registry: _Registry) -> AsyncIterator[AuditedRow]:
    tenants = logs = None
    if run.selection.tenant is not None:
        tenants = [tenant for tenant, slug in registry.slugs.items() if slug == run.selection.tenant]
    if run.selection.agent_id is not None:
        logs = [log_uuid for _, log_uuid in registry.chains]
    cursor = await connection.cursor(_AUDIT["rows"], tenants, logs)
    while chunk := await cursor.fetch(CHUNK_ROWS):
        for found in chunk:
            yield _row(found)


def _finish(run: _Run, chain: AuditedChain | None) -> None:
    if chain is not None:
        run.found.chains.append(ChainVerdict(chain.name, chain.report()))


def _begin(run: _Run, registry: _Registry, row: AuditedRow, entry: ChainRow | None) -> AuditedChain:
    trail = row.trail
    if entry is None:
        return UnregisteredRows(registry.name(trail.tenant_id, trail.agent_id, trail.log_uuid), trail)
    name = registry.name(entry.tenant_id, entry.agent_id, entry.log_uuid)
    keys = None if registry.keys is None else registry.keys.get(entry.tenant_id, {})
    follow = bool(run.trust.pinned)
    return RegisteredChain(name, entry, keys, run.checkpoints(name), trail, follow_rotation=follow)


def _vanished(run: _Run, registry: _Registry, entry: ChainRow) -> ChainVerdict:
    name = registry.name(entry.tenant_id, entry.agent_id, entry.log_uuid)
    audit = ChainAudit(None, run.checkpoints(name))
    audit.note(OrderError("the registry names this chain, but the table holds no record of it", seq=0))
    return ChainVerdict(name, audit.report())
