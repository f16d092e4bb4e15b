"""Audit: verifies a whole database and trusts no column of it.

The registry comes first, so that a chain that vanished is an error. Then every row of the table is read
once, in one snapshot, not by an index, in pieces of bounded size: what is held in memory depends neither on
how long a chain is nor on how large its rows are. Each signed text is verified, every column and the JSONB
mirror are compared with it, and rows that belong to no registered chain are an error. The catalog is compared
with what the migrations make: triggers, CHECKs, policies, generated columns, keys.

Whatever goes wrong in one part is a finding beside what the others found, never instead of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from app.audit import jobs as audit_jobs
from app.audit.administration import AllTables, BegunChain, differences, without_chain
from app.audit.chain import Keys, Reached
from app.audit.jobs import Crew, Shared, crew, exported, shareable
from app.audit.rows import Place, moment, pieces, read_rows
from app.audit.session import connected, enter_tenant, reading
from app.audit.walk import (
    NO_MARKS,
    AuditRun,
    Checkpoints,
    DatabaseAudit,
    Marks,
    Progress,
    Registry,
    Selection,
    Trust,
    Walk,
    part,
    reported,
)
from app.chain.keys import PublicKey
from app.chain.verdict import Verdict
from app.errors import KeyMaterialError, StartupError
from app.ledger.keys.sealed_key import MOVED, StoredKey, open_key
from app.principal import ADMINISTRATION
from db.checks import check_catalog
from db.ledger import ChainRow
from db.migrate import check_revision
from db.pool import Connection
from db.schema import DEFAULT_TENANT_SLUG
from db.sql import statements

_AUDIT = statements("audit")
_BOUND: Final = (
    "row security binds the role {role}: only tenant {slug} was looked at; "
    "name another with --tenant, or look at all as a superuser or a role with BYPASSRLS"
)
_AUDITORS: Final = (
    "this login sees a tenant's records and not the whole database; export them and verify the file "
    "(trails export AGENT --out chain.jsonl, trails verify chain.jsonl), or use the login of "
    "deploy/postgres/verifier.sql"
)
_REPEATED: Final = (
    "idempotency key {key} stands in {records} records, the first at seq {first}, the last at seq {last}: "
    "one request was carried out more than once"
)
_STRAY_SPANS: Final = "the index of spans names record {seq} of chain {log_uuid} for spans, {why}"
_STRAY_SENDINGS: Final = (
    "the index of sendings names record {seq} of chain {log_uuid} for nodes, {why}: the views may hide nodes"
)
_UNTOLD_SENDINGS: Final = (
    "the index of sendings does not name record {seq} of chain {log_uuid} for all of its nodes: "
    "the views may show replaced ones"
)
_STRAY_WAITING: Final = (
    "the index of what waits names action {action_id} as held by record {seq} of chain {log_uuid}, {why}"
)
_UNTOLD_WAITING: Final = (
    "the index of what waits does not name action {action_id}, held by record {seq} of chain {log_uuid} and "
    "not decided: whoever approves is not shown it"
)
_TENANTLESS: Final = (
    "chains of agent {agent} belong to tenant {tenant}, which has no row in the table of tenants"
)
_NOT_COMPARED: Final = (
    "this role may not read keys, suspensions and logins: these tables were not compared with the records of "
    "administration"
)
_NO_STATE: Final = "its records do not verify, so that no table was compared with them"
_ANOTHER_DATABASE: Final = "the mark is of another database: no chain that it names is in this registry"
_GONE: Final = (
    "it was verified up to seq {seq}, as the mark says ({log_uuid}), and is not in the registry any more"
)
_ONE_JOB: Final = "one process did all: several cannot share a snapshot of this database ({reason})"


async def audit_database(
    url: str,
    selection: Selection,
    trust: Trust,
    *,
    checkpoints: Checkpoints = lambda _: {},
    progress: Progress = lambda _: None,
    jobs: int = 1,
    marks: Marks = NO_MARKS,
) -> DatabaseAudit:
    """Verifies the database behind ``url``. Never raises for what is wrong with it: that is the result.

    Args:
        url: a role that may read the tables; one without row security sees every tenant.
        selection: which chains.
        trust: whose signatures count.
        checkpoints: heads kept elsewhere, by chain.
        progress: told now and then how far it is.
        jobs: processes that share the work; with 1 this one does it all.
        marks: how far chains were verified before, whose word is taken for it.
    """
    found = DatabaseAudit()
    with reported(found, "database", (Exception,)):
        async with connected(url) as connection:
            run = AuditRun(url, found, selection, trust, checkpoints, progress, jobs, marks)
            await _audit(connection, run)
    return found


async def _audit(connection: Connection, run: AuditRun) -> None:
    scope = await connection.fetchrow(_AUDIT["scope"])
    if scope is None or not scope["migrated"]:
        run.found.problem(
            Verdict.NOTHING, "database", "holds no trail: it was never migrated (trails migrate)"
        )
        return
    await _audit_catalog(connection, run)
    slug = (run.selection.tenant or DEFAULT_TENANT_SLUG) if scope["bound"] else None
    several = await _is_shareable(connection, run, slug)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        shared = Shared(run.url, await exported(connection), slug) if several else None
        await reading(connection)
        if slug is not None:
            await enter_tenant(connection, slug)
            run.found.notes.append(_BOUND.format(role=scope["role"], slug=slug))
        async with part(connection, run.found, "registry and rows"):
            registry = await _registry(connection, run)
            walk = await _audit_rows(connection, run, registry, shared)
            run.found.complete = True
            if run.selection.agent_id is None:
                async with part(connection, run.found, "administration"):
                    await _audit_administration(connection, run, registry, walk, bound=scope["bound"])
            await _audit_keys(connection, run, registry)
            async with part(connection, run.found, "index of spans"):
                await _audit_spans(connection, run, registry)
            async with part(connection, run.found, "index of sendings"):
                await _audit_sendings(connection, run, registry)
            async with part(connection, run.found, "index of what waits"):
                await _audit_waiting(connection, run, registry)


async def _is_shareable(connection: Connection, run: AuditRun, slug: str | None) -> bool:
    """Whether several processes are asked for and can see one snapshot."""
    if run.jobs < 2:
        return False
    if reason := await shareable(run.url, connection, slug):
        run.found.notes.append(_ONE_JOB.format(reason=reason))
    return not reason


async def _audit_catalog(connection: Connection, run: AuditRun) -> None:
    """The catalog, which another revision's cannot be compared with."""
    known = False
    async with part(connection, run.found, "schema"):
        if not await connection.fetchval(_AUDIT["revision_readable"]):
            raise StartupError(_AUDITORS)
        await check_revision(connection)
        known = True
    if known:
        async with part(connection, run.found, "catalog"):
            for finding in await check_catalog(connection):
                run.found.problem(Verdict.TAMPERED, f"catalog: {finding.object}", finding.problem)


async def _registry(connection: Connection, run: AuditRun) -> Registry:
    slugs: dict[UUID, str] | None = None
    async with part(connection, run.found, "tenants"):
        slugs = {row["tenant_id"]: row["slug"] for row in await connection.fetch(_AUDIT["tenants"])}
    pinned = {key.hex: key for key in run.trust.pinned}
    keys: Mapping[UUID, Keys] | None = None
    if not pinned and run.trust.master_key is not None:
        async with part(connection, run.found, "signing keys"):
            keys = await _keys(connection, run.trust.master_key, run.found, slugs or {})
    rows = [
        ChainRow(tenant_id, agent_id, log_uuid, guarded, moment(created_at))
        for tenant_id, agent_id, log_uuid, guarded, created_at in await connection.fetch(_AUDIT["registry"])
    ]
    if run.selection.tenant is not None and slugs is not None:
        _report_tenantless(run, slugs, rows)
    chains: dict[Place, ChainRow] = {
        (row.tenant_id, row.log_uuid): row for row in rows if _selected(run.selection, slugs or {}, row)
    }
    registry = Registry(slugs, chains, keys, pinned, {})
    marked = _marked(run, registry, {(row.tenant_id, row.log_uuid) for row in rows})
    return msgspec.structs.replace(registry, marked=marked)


def _marked(run: AuditRun, registry: Registry, there: AbstractSet[Place]) -> dict[Place, Reached]:
    """The marks that are believed; what they name and what is gone is a finding.

    Raises:
        StartupError: nothing of what they name is there.
    """
    marks = run.marks.chains
    if marks and not there & marks.keys():
        raise StartupError(_ANOTHER_DATABASE)
    for place in marks.keys() - there:
        name = run.marks.names[place]
        if run.selection.agent_id in {None, name.agent_id} and run.selection.tenant in {None, name.tenant}:
            seq = marks[place].position.head.seq
            what = f"chain {name.tenant}/{name.agent_id}"
            run.found.problem(Verdict.TAMPERED, what, _GONE.format(log_uuid=name.log_uuid, seq=seq))
    return {
        place: reached
        for place, reached in marks.items()
        if (entry := registry.chains.get(place)) is not None and _is_believed(run, registry, entry, reached)
    }


def _is_believed(run: AuditRun, registry: Registry, entry: ChainRow, reached: Reached) -> bool:
    """Whether to go on from a mark: no head kept elsewhere stands before it, and the key is still trusted."""
    position, keys = reached.position, registry.keys_of(entry.tenant_id)
    kept = run.checkpoints(registry.name(entry.tenant_id, entry.agent_id, entry.log_uuid))
    return all(seq >= position.head.seq for seq in kept) and (keys is None or position.genesis_key in keys)


def _behind(marked: Mapping[Place, Reached]) -> tuple[list[UUID | None], list[UUID | None], list[int]]:
    """From which row on chains are read that were verified before: from their last one on."""
    tenants, logs = [place[0] for place in marked], [place[1] for place in marked]
    return tenants, logs, [reached.position.head.seq for reached in marked.values()]


def _report_tenantless(run: AuditRun, slugs: Mapping[UUID, str], rows: list[ChainRow]) -> None:
    """Chains that cannot be selected by a slug, for their tenant has none any more: it may be this one."""
    strays = {row.tenant_id: row.agent_id for row in rows if row.tenant_id not in slugs}
    for tenant_id, agent_id in strays.items():
        reason = _TENANTLESS.format(agent=agent_id, tenant=tenant_id)
        run.found.problem(Verdict.TAMPERED, "registry", reason)


def _selected(selection: Selection, slugs: Mapping[UUID, str], row: ChainRow) -> bool:
    return (selection.tenant is None or slugs.get(row.tenant_id) == selection.tenant) and (
        selection.agent_id is None or row.agent_id == selection.agent_id
    )


async def _keys(
    connection: Connection, master_key: bytes, found: DatabaseAudit, slugs: Mapping[UUID, str]
) -> Mapping[UUID, Keys] | None:
    """The trusted keys of each tenant; a stored public key is never believed, only what a secret opens to."""
    keys: dict[UUID, dict[str, PublicKey]] = {tenant_id: {} for tenant_id in slugs}
    refused: list[str] = []
    for row in await connection.fetch(_AUDIT["keys"]):
        tenant_id = row["tenant_id"]
        try:
            stored = _open(master_key, row)
            keys.setdefault(tenant_id, {})[stored.public.hex] = stored.public
            if not stored.is_of(moment(row["created_at"])):
                reason = MOVED.format(key_id=row["key_id"])
                found.problem(Verdict.TAMPERED, f"signing key of {slugs.get(tenant_id, tenant_id)}", reason)
        except KeyMaterialError as error:
            refused.append(f"{slugs.get(tenant_id, tenant_id)}/{row['key_id']}: {error.message}")
    if refused and not any(keys.values()):
        reason = (
            "no stored key opens under this master key: it is not this installation's, or all were replaced"
        )
        found.problem(Verdict.UNCHECKED, "signing keys", reason)
        return None
    for reason in refused:
        found.problem(Verdict.TAMPERED, "signing key", reason)
    return keys


def _open(master_key: bytes, row: asyncpg.Record) -> StoredKey:
    columns = ("tenant_id", "key_id", "public_key", "sealed_secret")
    return open_key(master_key, **{name: row[name] for name in columns})


async def _audit_rows(
    connection: Connection, run: AuditRun, registry: Registry, shared: Shared | None
) -> Walk:
    """All rows, chain by chain; then the chains of the registry that had none."""
    walk = Walk(run, registry)
    try:
        async with AsyncExitStack() as stack:
            workers: Crew | None = None
            wanted = *_scope(run, registry), *_behind(registry.marked)
            async for piece in pieces(connection, _AUDIT["places"], *wanted):
                if shared is not None and workers is None and run.found.checked >= audit_jobs.ROWS_ALONE:
                    workers = await stack.enter_async_context(crew(connection, walk, shared, run.jobs))
                if workers is not None:
                    await workers.take(piece)
                    continue
                async for row in read_rows(connection, piece):
                    walk.take(row)
                walk.tell()
            if workers is not None:
                await workers.end()
    except BaseException:
        walk.interrupt()
        raise
    walk.end()
    return walk


async def _audit_administration(
    connection: Connection, run: AuditRun, registry: Registry, walk: Walk, *, bound: bool
) -> None:
    """Tables and registry against what the records of administration say, tenant by tenant."""
    tables: AllTables | None = None
    if await connection.fetchval(_AUDIT["administration_readable"]):
        # One that opens no signing key is another installation's, which is a finding of its own.
        master_key = None if registry.keys is None else run.trust.master_key
        tables = await AllTables.read(connection, _scope(run, registry)[0], master_key)
    else:
        run.found.notes.append(_NOT_COMPARED)
    chains: dict[UUID, list[BegunChain]] = {}
    for entry in registry.chains.values():
        chains.setdefault(entry.tenant_id, []).append(walk.begun(entry))
    # A role that row security binds sees rows of tenants whose chains it does not see.
    others = () if tables is None or bound else tables.tenants
    for tenant in sorted({*chains, *others}):
        what = f"administration of {(registry.slugs or {}).get(tenant, tenant)}"
        agents = [chain for chain in chains.get(tenant, ()) if chain.agent_id != ADMINISTRATION]
        if (state := walk.administrations.get(tenant)) is not None:
            found = await differences(connection, tenant, state, agents, tables)
        elif len(agents) < len(chains.get(tenant, ())):
            found = [(Verdict.UNCHECKED, _NO_STATE)]
        else:
            found = [] if tables is None else [*without_chain(tables.of(tenant))]
        for verdict, reason in found:
            run.found.problem(verdict, what, reason)


async def _audit_keys(connection: Connection, run: AuditRun, registry: Registry) -> None:
    """Idempotency keys that one chain holds more than once, which its unique index should have refused."""
    for row in await connection.fetch(_AUDIT["repeated_keys"], *_scope(run, registry)):
        name = registry.name(row["tenant_id"], row["agent_id"], row["log_uuid"])
        reason = _REPEATED.format(
            key=row["key"], records=row["records"], first=row["first_seq"], last=row["last_seq"]
        )
        run.found.problem(Verdict.TAMPERED, f"chain {name.tenant}/{name.agent_id}", reason)


async def _audit_spans(connection: Connection, run: AuditRun, registry: Registry) -> None:
    """Entries of the index of spans that no record bears out: such a span could not be recorded any more."""
    if not await connection.fetchval(_AUDIT["spans_indexed"]):
        return  # an older revision, which is a finding of its own
    for row in await connection.fetch(_AUDIT["stray_spans"], *_scope(run, registry)):
        why = "which is not there" if row["missing"] else "which does not hold all of them"
        reason = _STRAY_SPANS.format(seq=row["seq"], log_uuid=row["log_uuid"], why=why)
        run.found.problem(Verdict.TAMPERED, f"chain {_chain_of(registry, row)}", reason)


async def _audit_sendings(connection: Connection, run: AuditRun, registry: Registry) -> None:
    """Entries of the index of sendings that no record bears out, and records that it should name."""
    if not await connection.fetchval(_AUDIT["sendings_indexed"]):
        return  # an older revision, which is a finding of its own
    for row in await connection.fetch(_AUDIT["stray_sendings"], *_scope(run, registry)):
        why = "which is not there" if row["missing"] else "which does not hold all of them as it says"
        told = _STRAY_SENDINGS if row["stray"] else _UNTOLD_SENDINGS
        reason = told.format(seq=row["seq"], log_uuid=row["log_uuid"], why=why)
        run.found.problem(Verdict.TAMPERED, f"chain {_chain_of(registry, row)}", reason)


async def _audit_waiting(connection: Connection, run: AuditRun, registry: Registry) -> None:
    """Entries of the index of what waits for a person that no record bears out, and what it should name."""
    if not await connection.fetchval(_AUDIT["waiting_indexed"]):
        return  # an older revision, which is a finding of its own
    for row in await connection.fetch(_AUDIT["stray_waiting"], *_scope(run, registry)):
        told = _STRAY_WAITING if row["stray"] else _UNTOLD_WAITING
        why = "and a decision is on record" if row["decided"] else "which does not hold it so"
        reason = told.format(action_id=row["action_id"], seq=row["seq"], log_uuid=row["log_uuid"], why=why)
        run.found.problem(Verdict.TAMPERED, f"chain {_chain_of(registry, row)}", reason)


def _chain_of(registry: Registry, row: asyncpg.Record) -> str:
    entry = registry.chains.get((row["tenant_id"], row["log_uuid"]))
    agent_id = row["agent_id"] if entry is None else entry.agent_id
    name = registry.name(row["tenant_id"], agent_id, row["log_uuid"])
    return f"{name.tenant}/{name.agent_id}"


def _scope(run: AuditRun, registry: Registry) -> tuple[list[UUID] | None, list[UUID] | None]:
    """The tenants and chains to read; None for all."""
    tenants = logs = None
    if run.selection.tenant is not None:
        slugs = registry.slugs or {}
        tenants = [tenant for tenant, slug in slugs.items() if slug == run.selection.tenant]
    if run.selection.agent_id is not None:
        logs = [row.log_uuid for row in registry.chains.values()]
    return tenants, logs
