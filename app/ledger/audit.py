"""Audit: verifies a whole database and trusts no column of it.

The registry comes first, so that a chain that vanished is an error. Then every row of the table is read
once, in one snapshot, not by an index, in pieces of bounded size: what is held in memory depends neither on
how long a chain is nor on how large its rows are. Each signed text is verified, every column and the JSONB
mirror are compared with it, and rows that belong to no registered chain are an error. The catalog is compared
with what the migrations make: triggers, CHECKs, policies, generated columns, keys.

Whatever goes wrong in one part is a finding beside what the others found, never instead of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from app.chain.keys import PublicKey
from app.chain.report import Report
from app.chain.verdict import Verdict
from app.chain.verify import ChainAudit
from app.errors import KeyMaterialError, OrderError, TrailsError
from app.ledger.administration_state import AdministrationState
from app.ledger.audit_administration import AllTables, BegunChain, differences, without_chain
from app.ledger.audit_chain import AuditedChain, ChainName, Keys, RegisteredChain, UnregisteredRows
from app.ledger.audit_rows import CHUNK_ROWS, AuditedRow, audited_rows, moment
from app.ledger.sealed_key import MOVED, StoredKey, open_key
from app.principal import ADMINISTRATION
from db.checks import check_catalog
from db.ledger import ChainRow
from db.migrate import check_revision
from db.pool import Connection, tenant_setting
from db.schema import DEFAULT_TENANT_ID, DEFAULT_TENANT_SLUG
from db.sql import statements

_AUDIT = statements("audit")
_SESSION = statements("session")
_BOUND: Final = (
    "row security binds the role {role}: only tenant {slug} was looked at; "
    "use an administrator's URL to look at all"
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
_TENANTLESS: Final = (
    "chains of agent {agent} belong to tenant {tenant}, which has no row in the table of tenants"
)
_NOT_COMPARED: Final = (
    "this role may not read keys, suspensions and logins: these tables were not compared with the records of "
    "administration"
)
_NO_STATE: Final = "its records do not verify, so that no table was compared with them"
_LOST: Final = (
    OSError,
    asyncio.IncompleteReadError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)
"""The connection is gone, and with it what would come next."""

Checkpoints = Callable[["ChainName"], Mapping[int, str]]
"""The hashes by seq that were kept elsewhere of one chain."""

Progress = Callable[[int], None]
"""Called with the number of records verified so far."""


class ChainVerdict(msgspec.Struct, frozen=True):
    """What was found in one chain."""

    name: ChainName
    report: Report
    note: str = ""


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
        self.complete = False
        """Whether every row was read: only then is a chain that was not found missing."""

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
    with _reported(found, "database", (Exception,)):
        async with connected(url) as connection:
            await _audit(connection, _Run(found, selection, trust, checkpoints, progress))
    return found


@contextmanager
def _reported(found: DatabaseAudit, what: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turns an error of one of ``kinds`` into a finding of the part ``what``, which could not be checked."""
    try:
        yield
    except kinds as error:
        found.problem(Verdict.UNCHECKED, what, _reason(error))


@asynccontextmanager
async def _part(connection: Connection, found: DatabaseAudit, what: str) -> AsyncIterator[None]:
    """One part of an audit: its failure is a finding, and the next part goes on in the same snapshot."""
    try:
        async with connection.transaction():
            yield
    except _LOST:
        raise
    except Exception as error:  # noqa: BLE001  a defect must not hide what the other parts find
        found.problem(Verdict.UNCHECKED, what, _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, TrailsError):
        return error.message
    if isinstance(error, asyncpg.PostgresError):
        return f"it refuses (SQLSTATE {error.sqlstate}): {error}"
    if isinstance(error, _LOST):
        return f"it cannot be reached, or the connection broke: {str(error) or type(error).__name__}"
    return f"an unexpected error, which is a defect of this program: {type(error).__name__}: {error}"


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
    await _audit_catalog(connection, run)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute(_AUDIT["read_tables"])
        if scope["bound"]:
            slug = run.selection.tenant or DEFAULT_TENANT_SLUG
            await enter_tenant(connection, slug)
            run.found.notes.append(_BOUND.format(role=scope["role"], slug=slug))
        async with _part(connection, run.found, "registry and rows"):
            registry = await _registry(connection, run)
            walk = await _audit_rows(connection, run, registry)
            run.found.complete = True
            if run.selection.agent_id is None:
                async with _part(connection, run.found, "administration"):
                    await _audit_administration(connection, run, registry, walk, bound=scope["bound"])
            await _audit_keys(connection, run, registry)
            async with _part(connection, run.found, "index of spans"):
                await _audit_spans(connection, run, registry)
            async with _part(connection, run.found, "index of sendings"):
                await _audit_sendings(connection, run, registry)


async def _audit_catalog(connection: Connection, run: _Run) -> None:
    """The catalog, which another revision's cannot be compared with."""
    known = False
    async with _part(connection, run.found, "schema"):
        await check_revision(connection)
        known = True
    if known:
        async with _part(connection, run.found, "catalog"):
            for finding in await check_catalog(connection):
                run.found.problem(Verdict.TAMPERED, f"catalog: {finding.object}", finding.problem)


async def enter_tenant(connection: Connection, slug: str) -> None:
    """Under row security: names the tenant to look at, which has to be known by its slug."""
    await connection.execute(_SESSION["name_slug"], slug)
    tenants = {row["slug"]: row["tenant_id"] for row in await connection.fetch(_AUDIT["tenants"])}
    await connection.execute(_SESSION["name_tenants"], tenant_setting(tenants.get(slug, DEFAULT_TENANT_ID)))


class _Registry(msgspec.Struct, frozen=True):
    """What must be in the trail, and under whose keys."""

    slugs: dict[UUID, str] | None
    """None: the table of tenants is out of reach."""

    chains: dict[tuple[UUID | None, UUID | None], ChainRow]
    keys: Mapping[UUID, Keys] | None
    """None: no key is known, every signer is self-declared."""

    pinned: Keys

    def name(self, tenant_id: UUID | None, agent_id: str | None, log_uuid: UUID | None) -> ChainName:
        tenant = "(none)" if tenant_id is None else (self.slugs or {}).get(tenant_id, str(tenant_id))
        return ChainName(tenant, agent_id or "(none)", str(log_uuid))

    def keys_of(self, tenant_id: UUID) -> Keys | None:
        """The keys that a tenant's chains are held against; None when no key is known at all."""
        return self.pinned or (None if self.keys is None else self.keys.get(tenant_id, {}))


async def _registry(connection: Connection, run: _Run) -> _Registry:
    slugs: dict[UUID, str] | None = None
    async with _part(connection, run.found, "tenants"):
        slugs = {row["tenant_id"]: row["slug"] for row in await connection.fetch(_AUDIT["tenants"])}
    pinned = {key.hex: key for key in run.trust.pinned}
    keys: Mapping[UUID, Keys] | None = None
    if not pinned and run.trust.master_key is not None:
        async with _part(connection, run.found, "signing keys"):
            keys = await _keys(connection, run.trust.master_key, run.found, slugs or {})
    rows = [
        ChainRow(tenant_id, agent_id, log_uuid, guarded, moment(created_at))
        for tenant_id, agent_id, log_uuid, guarded, created_at in await connection.fetch(_AUDIT["registry"])
    ]
    if run.selection.tenant is not None and slugs is not None:
        _report_tenantless(run, slugs, rows)
    chains: dict[tuple[UUID | None, UUID | None], ChainRow] = {
        (row.tenant_id, row.log_uuid): row for row in rows if _selected(run.selection, slugs or {}, row)
    }
    return _Registry(slugs, chains, keys, pinned)


def _report_tenantless(run: _Run, slugs: Mapping[UUID, str], rows: list[ChainRow]) -> None:
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


async def _audit_rows(connection: Connection, run: _Run, registry: _Registry) -> _Walk:
    """All rows, chain by chain; then the chains of the registry that had none."""
    walk = _Walk(run, registry)
    try:
        async for row in audited_rows(connection, *_scope(run, registry)):
            walk.take(row)
    except BaseException:
        walk.interrupt()
        raise
    walk.end()
    return walk


async def _audit_administration(
    connection: Connection, run: _Run, registry: _Registry, walk: _Walk, *, bound: bool
) -> None:
    """Tables and registry against what the records of administration say, tenant by tenant."""
    tables: AllTables | None = None
    if await connection.fetchval(_AUDIT["administration_readable"]):
        tables = await AllTables.read(connection, _scope(run, registry)[0])
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


async def _audit_keys(connection: Connection, run: _Run, registry: _Registry) -> None:
    """Idempotency keys that one chain holds more than once, which its unique index should have refused."""
    for row in await connection.fetch(_AUDIT["repeated_keys"], *_scope(run, registry)):
        name = registry.name(row["tenant_id"], row["agent_id"], row["log_uuid"])
        reason = _REPEATED.format(
            key=row["key"], records=row["records"], first=row["first_seq"], last=row["last_seq"]
        )
        run.found.problem(Verdict.TAMPERED, f"chain {name.tenant}/{name.agent_id}", reason)


async def _audit_spans(connection: Connection, run: _Run, registry: _Registry) -> None:
    """Entries of the index of spans that no record bears out: such a span could not be recorded any more."""
    if not await connection.fetchval(_AUDIT["spans_indexed"]):
        return  # an older revision, which is a finding of its own
    for row in await connection.fetch(_AUDIT["stray_spans"], *_scope(run, registry)):
        why = "which is not there" if row["missing"] else "which does not hold all of them"
        reason = _STRAY_SPANS.format(seq=row["seq"], log_uuid=row["log_uuid"], why=why)
        run.found.problem(Verdict.TAMPERED, f"chain {_chain_of(registry, row)}", reason)


async def _audit_sendings(connection: Connection, run: _Run, registry: _Registry) -> None:
    """Entries of the index of sendings that no record bears out, and records that it should name."""
    if not await connection.fetchval(_AUDIT["sendings_indexed"]):
        return  # an older revision, which is a finding of its own
    for row in await connection.fetch(_AUDIT["stray_sendings"], *_scope(run, registry)):
        why = "which is not there" if row["missing"] else "which does not hold all of them as it says"
        told = _STRAY_SENDINGS if row["stray"] else _UNTOLD_SENDINGS
        reason = told.format(seq=row["seq"], log_uuid=row["log_uuid"], why=why)
        run.found.problem(Verdict.TAMPERED, f"chain {_chain_of(registry, row)}", reason)


def _chain_of(registry: _Registry, row: asyncpg.Record) -> str:
    entry = registry.chains.get((row["tenant_id"], row["log_uuid"]))
    agent_id = row["agent_id"] if entry is None else entry.agent_id
    name = registry.name(row["tenant_id"], agent_id, row["log_uuid"])
    return f"{name.tenant}/{name.agent_id}"


def _scope(run: _Run, registry: _Registry) -> tuple[list[UUID] | None, list[UUID] | None]:
    """The tenants and chains to read; None for all."""
    tenants = logs = None
    if run.selection.tenant is not None:
        slugs = registry.slugs or {}
        tenants = [tenant for tenant, slug in slugs.items() if slug == run.selection.tenant]
    if run.selection.agent_id is not None:
        logs = [row.log_uuid for row in registry.chains.values()]
    return tenants, logs


class _Walk:
    """Goes through the rows, which come chain by chain."""

    def __init__(self, run: _Run, registry: _Registry) -> None:
        self._run = run
        self._registry = registry
        self._waiting = dict(registry.chains)
        self._chain: AuditedChain | None = None
        self._failed = False
        self._begun: dict[tuple[UUID, UUID], tuple[str, datetime]] = {}
        self.administrations: dict[UUID, AdministrationState] = {}
        """What the administration chains that verify say, by tenant."""

    def begun(self, entry: ChainRow) -> BegunChain:
        """A chain of the registry with what its genesis record says, if that stands."""
        key, at = self._begun.get((entry.tenant_id, entry.log_uuid), (None, None))
        return BegunChain(entry.agent_id, str(entry.log_uuid), entry.guarded, key, at)

    def take(self, row: AuditedRow) -> None:
        """The next row."""
        place = (row.spot.tenant_id, row.spot.log_uuid)
        if self._chain is None or self._chain.place != place:
            self._leave()
            self._chain = _begin(self._run, self._registry, row, self._waiting.pop(place, None))
        if not self._failed:
            self._push(self._chain, row)
        self._run.found.checked += 1
        if self._run.found.checked % CHUNK_ROWS == 0:
            self._run.progress(self._run.found.checked)

    def end(self) -> None:
        """There is no further row."""
        self._leave()
        self._run.progress(self._run.found.checked)
        for entry in self._waiting.values():
            self._run.found.chains.append(_vanished(self._run, self._registry, entry))

    def interrupt(self) -> None:
        """The rows end too soon: what was found in the present chain counts, that nothing was does not."""
        chain, self._chain = self._chain, None
        if chain is not None and (report := chain.report()).fault_count:
            self._run.found.chains.append(ChainVerdict(chain.name, report, "not read to its end"))

    def _push(self, chain: AuditedChain, row: AuditedRow) -> None:
        what = f"chain {chain.name.tenant}/{chain.name.agent_id} from seq {row.spot.seq}"
        self._failed = True  # until it is done: a defect must not hide what the other chains say
        with _reported(self._run.found, what, (Exception,)):
            chain.push(row)
            self._failed = False

    def _leave(self) -> None:
        if self._failed:
            self.interrupt()
        elif self._chain is not None:
            self._chain.end()
            verdict = ChainVerdict(self._chain.name, self._chain.report(), self._chain.note)
            self._run.found.chains.append(verdict)
            self._keep(self._chain, verdict.report)
        self._chain, self._failed = None, False

    def _keep(self, chain: AuditedChain, report: Report) -> None:
        """Keeps what is compared when all rows were read."""
        if not isinstance(chain, RegisteredChain):
            return
        if chain.begun is not None:
            self._begun[chain.entry.tenant_id, chain.entry.log_uuid] = chain.begun
        if chain.administration is not None and not report.fault_count:
            self.administrations[chain.entry.tenant_id] = chain.administration


def _begin(run: _Run, registry: _Registry, row: AuditedRow, entry: ChainRow | None) -> AuditedChain:
    if entry is None:
        agent_id = None if row.trail is None else row.trail.agent_id
        name = registry.name(row.spot.tenant_id, agent_id, row.spot.log_uuid)
        return UnregisteredRows(name, row)
    name = registry.name(entry.tenant_id, entry.agent_id, entry.log_uuid)
    keys = registry.keys_of(entry.tenant_id)
    follow = bool(registry.pinned)
    chain = RegisteredChain(name, entry, keys, run.checkpoints(name), row, follow_rotation=follow)
    if registry.slugs is not None and entry.tenant_id not in registry.slugs:
        chain.doubt_tenant()
    return chain


def _vanished(run: _Run, registry: _Registry, entry: ChainRow) -> ChainVerdict:
    name = registry.name(entry.tenant_id, entry.agent_id, entry.log_uuid)
    audit = ChainAudit(None, run.checkpoints(name))
    audit.note(OrderError("the registry names this chain, but the table holds no record of it", seq=0))
    return ChainVerdict(name, audit.report())
