"""SQL logins of auditors: they read their tenant's rows and views, and no way out leads further.

Each way out that was tried is a row of ``WAYS``: the statement, and what it comes to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import psycopg
import pytest

from app.errors import ConflictError, NotFoundError, StartupError
from db import migrate, sql_logins
from db.pool import Pool
from db.sql_logins import CONNECTIONS, SqlLogin
from tests.support.postgres import Database
from tests.support.rows import NOW, count, started_chain

PASSWORD = "the password of an auditor"  # noqa: S105  of a throw-away server

VIEWS = (
    "trace_nodes", "tool_calls", "failed_tool_calls", "corrections", "sessions", "session_paths", "actions",
    "approvals", "scars", "agents_status", "chain_check", "decisions", "claims", "events", "model_usage",
    "daily_tool_calls", "approvals_waiting",
)  # fmt: skip
READABLE = ("agent_audit_trails", "agents", "sendings", "sql_logins")
HIDDEN = (
    "api_keys", "api_key_revocations", "api_key_uses", "spans", "tenant_suspensions", "tenants",
    "waiting_actions", "console_visits", "console_visit_ends", "webhooks", "webhook_progress",
    "alembic_version",
)  # fmt: skip

RIGHTS = "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'trails'::regnamespace ORDER BY 1"

DENIED = "42501"
READ_ONLY = "25006"
SEES_OWN = None


def _named(statement: str, what: str = "user") -> str:
    """A statement that names the login itself, or the database, where no key word does."""
    return f"DO $$BEGIN EXECUTE format('{statement}', current_{what}{'' if what == 'user' else '()'}); END$$"


WAYS: dict[str, tuple[str, str | None]] = {
    # Statements as they come, and what they come to when the session has switched its read-only mode off:
    # an SQLSTATE, or None where it is let in and sees its own tenant alone.
    "become the service": ("SET ROLE trails_app", DENIED),
    "become the owner": ("SET ROLE trails_owner", DENIED),
    "log in as another": ("SET SESSION AUTHORIZATION trails_app", DENIED),
    "row security off": ("SET row_security = off; SELECT count(*) FROM agent_audit_trails", DENIED),
    "insert a record": ("INSERT INTO trails.agent_audit_trails (seq) VALUES (0)", DENIED),
    "insert a login": ("INSERT INTO trails.sql_logins (login) VALUES (current_user)", DENIED),
    "update": ("UPDATE trails.agent_audit_trails SET kind = 'x'", DENIED),
    "delete": ("DELETE FROM trails.agent_audit_trails", DENIED),
    "truncate": ("TRUNCATE trails.agent_audit_trails", DENIED),
    "lock rows": ("SELECT 1 FROM trails.agent_audit_trails FOR UPDATE", DENIED),
    "share rows": ("SELECT 1 FROM trails.agents FOR KEY SHARE", DENIED),
    "lock the table": ("LOCK TABLE trails.agent_audit_trails IN ACCESS EXCLUSIVE MODE", DENIED),
    "lock it against writers": ("LOCK TABLE trails.agent_audit_trails IN SHARE MODE", DENIED),
    "a table": ("CREATE TABLE trails.mine (a int)", DENIED),
    "a table elsewhere": ("CREATE TABLE public.mine (a int)", DENIED),
    "a temporary table": ("CREATE TEMP TABLE mine (a int)", DENIED),
    "a schema": ("CREATE SCHEMA mine", DENIED),
    "a function": ("CREATE FUNCTION trails.f() RETURNS int LANGUAGE sql AS 'SELECT 1'", DENIED),
    "a function elsewhere": ("CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'", DENIED),
    "a view": ("CREATE VIEW trails.mine AS SELECT * FROM trails.agents", DENIED),
    "a large object": ("SELECT lo_create(0)", DENIED),
    "a large object of bytes": ("SELECT lo_from_bytea(0, 'x')", DENIED),
    "a file": ("COPY (SELECT 1) TO '/tmp/out'", DENIED),
    "a program": ("COPY (SELECT 1) TO PROGRAM 'id'", DENIED),
    "reading a file": ("SELECT pg_read_file('/etc/passwd')", DENIED),
    "listing a folder": ("SELECT pg_ls_dir('.')", DENIED),
    "an extension": ("CREATE EXTENSION dblink", DENIED),
    "a language": ("DO LANGUAGE plpython3u 'pass'", "42704"),
    "ending a session": (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'trails_app'", DENIED,
    ),
    "more connections": ("ALTER ROLE CURRENT_USER CONNECTION LIMIT 1000", DENIED),
    "a role": ("CREATE ROLE another", DENIED),
    "membership": ("GRANT trails_app TO CURRENT_USER", DENIED),
    "a password": ("SELECT * FROM pg_catalog.pg_authid", DENIED),
    "a sealed key": ("SELECT sealed_secret FROM trails.signing_keys", DENIED),
    "more room on disk": ("SET temp_file_limit = -1", DENIED),
    "replication": ("SELECT pg_create_logical_replication_slot('x', 'pgoutput')", DENIED),
    "a trigger": ("ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL", DENIED),
    "a policy": ("DROP POLICY auditor_reads ON trails.agent_audit_trails", DENIED),
    "the tenant's setting": ("SELECT set_config('trails.tenants', '{other}', false)", SEES_OWN),
    "the slug's setting": ("SELECT set_config('trails.slug', 'other', false)", SEES_OWN),
    "all tenants' setting": ("SELECT set_config('trails.all_tenants', 'listed', false)", SEES_OWN),
    "another search path": ("SET search_path = pg_temp, public, trails", SEES_OWN),
    "an advisory lock": ("SELECT pg_advisory_lock(1)", DENIED),
    "a lock if there is one": ("SELECT pg_try_advisory_xact_lock_shared(1, 2)", DENIED),
    "a message in the log of writes": ("SELECT pg_logical_emit_message(false, 'x', 'y')", DENIED),
    "a lock that readers take": ("LOCK TABLE trails.agent_audit_trails IN ACCESS SHARE MODE", SEES_OWN),
    "a message": ("NOTIFY trails, 'x'", SEES_OWN),
    "no time-out": ("SET statement_timeout = 0", SEES_OWN),
    "sharing rows for longer": ("SELECT 1 FROM trails.agent_audit_trails FOR SHARE", DENIED),
    "a lock that writers take": ("LOCK TABLE trails.agent_audit_trails IN ROW EXCLUSIVE MODE", DENIED),
    "ending a query": (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'trails_app'", DENIED,
    ),
    "a file for a table": ("COPY trails.agents FROM '/etc/passwd'", DENIED),
    "a program for a table": ("COPY trails.agents FROM PROGRAM 'id'", DENIED),
    "a file for a large object": ("SELECT lo_import('/etc/passwd')", DENIED),
    "a large object for a file": ("SELECT lo_export(1, '/tmp/out')", DENIED),
    "looking at a file": ("SELECT pg_stat_file('/etc/passwd')", DENIED),
    "the log's files": ("SELECT pg_ls_logdir()", DENIED),
    "how files are set up": ("SELECT * FROM pg_hba_file_rules", DENIED),
    "a prepared transaction": ("PREPARE TRANSACTION 'x'", "55000"),
    "no end": ("ALTER ROLE CURRENT_USER VALID UNTIL 'infinity'", DENIED),
    "another name": (_named("ALTER ROLE %I RENAME TO another"), "0A000"),
    "more rights": ("ALTER ROLE CURRENT_USER CREATEROLE", DENIED),
    "settings of all": ("ALTER ROLE ALL SET statement_timeout = 1", DENIED),
    "settings of the database": (_named("ALTER DATABASE %I SET work_mem = 64", "database"), DENIED),
    "settings of the server": ("ALTER SYSTEM SET fsync = off", "25001"),
    "handing on what it reads": ("GRANT SELECT ON trails.agents TO PUBLIC", SEES_OWN),
    "handing itself on": (_named("GRANT %I TO trails_app"), DENIED),
    "a replica's rights": ("SET session_replication_role = replica", DENIED),
    "no log": ("SET log_statement = 'none'", DENIED),
    "new settings for all": ("SELECT pg_reload_conf()", DENIED),
    "another file of writes": ("SELECT pg_switch_wal()", DENIED),
    "no statistics": ("SELECT pg_stat_reset()", DENIED),
    "a comment": ("COMMENT ON TABLE trails.agents IS 'x'", DENIED),
    "an index": ("CREATE INDEX ON trails.agents (agent_id)", DENIED),
    "an index again": ("REINDEX TABLE trails.agents", DENIED),
    "a publication": ("CREATE PUBLICATION p FOR TABLE trails.agents", DENIED),
    "an operator": ("CREATE OPERATOR public.@@@ (LEFTARG = text, FUNCTION = upper)", DENIED),
    "a trusted extension": ("CREATE EXTENSION pg_trgm", DENIED),
    "another database": ("CREATE DATABASE mine", "25001"),
    "a cursor that stays": ("DECLARE c CURSOR WITH HOLD FOR SELECT * FROM agent_audit_trails", SEES_OWN),
    "a snapshot for others": ("SELECT pg_export_snapshot()", SEES_OWN),
    "hearing messages": ("LISTEN trails", SEES_OWN),
    "much memory": ("SET work_mem = '2GB'", SEES_OWN),
    "no end of an open transaction": ("SET idle_in_transaction_session_timeout = 0", SEES_OWN),
    "other settings for its sessions": ("ALTER ROLE CURRENT_USER SET statement_timeout = 0", SEES_OWN),
    "another password for itself": ("ALTER ROLE CURRENT_USER PASSWORD 'another password'", SEES_OWN),
    "giving away what is its own": ("DROP OWNED BY CURRENT_USER", SEES_OWN),
    "a block of code": ("DO 'BEGIN PERFORM count(*) FROM trails.agent_audit_trails; END'", SEES_OWN),
}  # fmt: skip


@pytest.fixture
async def tenants(pool: Pool, tenant: UUID, other_tenant: UUID) -> tuple[UUID, UUID]:
    """Two tenants with records."""
    await started_chain(pool, tenant, records=2)
    await started_chain(pool, other_tenant, records=3)
    return tenant, other_tenant


def made(database: Database, tenant: UUID, name: str = "audit", until: datetime | None = None) -> str:
    """The URL of a new login."""
    login = SqlLogin(sql_logins.new_login(), name, NOW, valid_until=until)
    sql_logins.create(database.admin_url, login, tenant, PASSWORD)
    return migrate.with_login(database.admin_url, login.login, PASSWORD)


@asynccontextmanager
async def logged_in(database: Database, tenant: UUID) -> AsyncIterator[asyncpg.Connection]:
    """A new login's connection; no login is left at the end."""
    connection = await asyncpg.connect(made(database, tenant))
    try:
        yield connection
    finally:
        await connection.close()
        _forget(database)


@pytest.fixture
async def auditor(database: Database, tenants: tuple[UUID, UUID]) -> AsyncIterator[asyncpg.Connection]:
    """Logged in as an auditor of the first tenant."""
    async with logged_in(database, tenants[0]) as connection:
        yield connection


def _forget(database: Database) -> None:
    with psycopg.connect(database.admin_url, autocommit=True) as admin:
        for (login,) in admin.execute("SELECT login FROM trails.sql_logins").fetchall():
            admin.execute(f'DROP ROLE IF EXISTS "{login}"')


async def seen(connection: asyncpg.Connection) -> set[UUID]:
    """Tenants of which any readable table shows a row."""
    found = set[UUID]()
    for table in (*READABLE, "signing_keys"):
        found |= {row["tenant_id"] for row in await connection.fetch(f"SELECT tenant_id FROM trails.{table}")}
    return found


async def test_a_login_sees_its_tenant_and_no_other(
    auditor: asyncpg.Connection, tenants: tuple[UUID, UUID]
) -> None:
    assert await seen(auditor) == {tenants[0]}
    assert await auditor.fetchval("SELECT count(*) FROM agent_audit_trails") == 2


async def test_p08_every_view_shows_its_tenants_rows_alone(
    auditor: asyncpg.Connection,
    admin: asyncpg.Connection,
    tenants: tuple[UUID, UUID],
    subtests: pytest.Subtests,
) -> None:
    for view in VIEWS:
        with subtests.test(view=view):
            shown = await auditor.fetch(f"SELECT tenant_id FROM {view}")
            everything = await admin.fetch(f"SELECT tenant_id FROM trails.{view}")
            assert {row["tenant_id"] for row in shown} <= {tenants[0]}
            assert len(shown) == sum(row["tenant_id"] == tenants[0] for row in everything)


async def test_what_is_no_auditors_business_is_not_readable(
    auditor: asyncpg.Connection, subtests: pytest.Subtests
) -> None:
    for table in HIDDEN:
        with subtests.test(table=table), pytest.raises(asyncpg.InsufficientPrivilegeError):
            await auditor.fetch(f"SELECT * FROM trails.{table}")


async def test_every_table_and_view_is_one_of_these(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch(
        "SELECT relname FROM pg_class"
        " WHERE relnamespace = 'trails'::regnamespace AND relkind IN ('r', 'p', 'v')"
    )
    assert {row["relname"] for row in rows} == {*VIEWS, *READABLE, *HIDDEN, "signing_keys"}


async def test_no_way_out_leads_further(
    database: Database, admin: asyncpg.Connection, tenants: tuple[UUID, UUID], subtests: pytest.Subtests
) -> None:
    """Each is tried by a login of its own."""
    for way, (statement, expected) in WAYS.items():
        with subtests.test(way=way):
            async with logged_in(database, tenants[0]) as auditor:
                assert await tried(auditor, admin, tenants, statement) == expected


async def tried(
    auditor: asyncpg.Connection, admin: asyncpg.Connection, tenants: tuple[UUID, UUID], statement: str
) -> str | None:
    """The SQLSTATE that a statement comes to, None where it is let in; it changes nothing."""
    before = await count(admin)
    rights = await admin.fetch(RIGHTS)
    await auditor.execute("SET default_transaction_read_only = off")
    try:
        async with auditor.transaction():
            await auditor.execute(statement.format(other=tenants[1]))
            said = None
            assert await seen(auditor) == {tenants[0]}
    except asyncpg.PostgresError as error:
        said = error.sqlstate
    assert await count(admin) == before
    assert await admin.fetch(RIGHTS) == rights
    await auditor.execute("RESET row_security")
    assert await seen(auditor) == {tenants[0]}
    return said


async def test_other_sessions_and_other_tenants_values_are_not_shown(
    auditor: asyncpg.Connection, admin: asyncpg.Connection
) -> None:
    await admin.execute("ANALYZE")
    assert await admin.fetchval("SELECT count(*) FROM pg_stats WHERE schemaname = 'trails'") > 0
    # Statistics hold values of all tenants; under row security nobody but the owner reads them.
    assert await auditor.fetchval("SELECT count(*) FROM pg_stats WHERE schemaname = 'trails'") == 0
    others = "FROM pg_stat_activity WHERE usename IS DISTINCT FROM current_user AND state IS NOT NULL"
    assert await admin.fetchval(f"SELECT count(*) {others}") > 0
    assert await auditor.fetchval(f"SELECT count(*) {others}") == 0


async def test_a_plan_counts_others_rows_and_shows_none(auditor: asyncpg.Connection) -> None:
    """What PostgreSQL cannot be kept from telling, as the guides say."""
    for way in ("indexscan", "bitmapscan", "indexonlyscan"):
        await auditor.execute(f"SET enable_{way} = off")
    plan = "EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) SELECT * FROM agent_audit_trails"
    told = "\n".join(row[0] for row in await auditor.fetch(plan))
    assert "Rows Removed by Filter: 3" in told
    assert "agent-" not in told


async def test_a_session_begins_read_only_with_time_outs(auditor: asyncpg.Connection) -> None:
    for name, value in {**sql_logins.SETTINGS, **sql_logins.LIMITS}.items():
        shown = await auditor.fetchval("SELECT current_setting($1)", name)
        assert await auditor.fetchval(_SAME.format(name=name, value=value)) is True or shown == value
    with pytest.raises(asyncpg.PostgresError) as caught:
        await auditor.execute("CREATE TEMP TABLE mine (a int)")
    assert caught.value.sqlstate in {READ_ONLY, DENIED}


_SAME = "SELECT current_setting('{name}') IN ('{value}', '1min', '1GB', 'on')"


async def test_a_login_has_so_many_connections_and_not_one_more(
    database: Database, tenants: tuple[UUID, UUID]
) -> None:
    url = made(database, tenants[0])
    held = [await asyncpg.connect(url) for _ in range(CONNECTIONS)]
    with pytest.raises(asyncpg.TooManyConnectionsError):
        await asyncpg.connect(url)
    for connection in held:
        await connection.close()
    _forget(database)


async def test_a_login_that_expired_or_was_dropped_is_none(
    database: Database, tenants: tuple[UUID, UUID]
) -> None:
    late = made(database, tenants[0], "late", datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(late)
    url = made(database, tenants[0])
    connection = await asyncpg.connect(url)
    role = await connection.fetchval("SELECT current_user")
    sql_logins.drop(database.admin_url, role)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(url)
    listed = sql_logins.logins(database.admin_url, tenants[0])
    assert {(login.name, login.exists) for login in listed} == {("late", True), ("audit", False)}
    assert sql_logins.logins(database.admin_url, tenants[1]) == []
    with pytest.raises(NotFoundError):
        sql_logins.drop(database.admin_url, role)
    with pytest.raises(NotFoundError):
        sql_logins.drop(database.admin_url, "trails_app")
    _forget(database)


async def test_a_login_that_granted_something_can_be_dropped(
    database: Database, tenants: tuple[UUID, UUID]
) -> None:
    connection = await asyncpg.connect(made(database, tenants[0]))
    await connection.execute("SET default_transaction_read_only = off")
    await connection.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC")
    sql_logins.drop(database.admin_url, await _role(connection))
    [login] = sql_logins.logins(database.admin_url, tenants[0])
    assert login.exists is False


async def _role(connection: asyncpg.Connection) -> str:
    role = str(await connection.fetchval("SELECT current_user"))
    await connection.close()
    return role


async def test_a_role_that_is_registered_nowhere_sees_nothing(
    database: Database, admin: asyncpg.Connection, tenants: tuple[UUID, UUID]
) -> None:
    del tenants
    await admin.execute(f"CREATE ROLE a_stranger LOGIN PASSWORD '{PASSWORD}' IN ROLE trails_auditor")
    try:
        stranger = await asyncpg.connect(migrate.with_login(database.admin_url, "a_stranger", PASSWORD))
        assert await seen(stranger) == set()
        await stranger.close()
    finally:
        await admin.execute("DROP ROLE a_stranger")


async def test_the_same_role_twice_is_refused_and_leaves_nothing(
    database: Database, admin: asyncpg.Connection, tenants: tuple[UUID, UUID]
) -> None:
    login = SqlLogin(sql_logins.new_login(), "audit", NOW)
    sql_logins.create(database.admin_url, login, tenants[0], PASSWORD)
    with pytest.raises(ConflictError):
        sql_logins.create(database.admin_url, login, tenants[1], PASSWORD)
    assert await admin.fetchval("SELECT count(*) FROM trails.sql_logins") == 1
    sql_logins.drop(database.admin_url, login.login)
    with pytest.raises(ConflictError):
        sql_logins.create(database.admin_url, login, tenants[1], PASSWORD)
    assert await admin.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", login.login) == 0


async def test_the_service_makes_no_logins(database: Database, tenants: tuple[UUID, UUID]) -> None:
    with pytest.raises(StartupError, match="role that may create roles"):
        made(as_the_service(database), tenants[0])


def as_the_service(database: Database) -> Database:
    """The same, with the service's role for an administrator."""
    return Database(database.app_url, database.app_url, database.server)


async def test_appends_go_on_beside_whatever_a_login_holds(
    auditor: asyncpg.Connection, pool: Pool, tenants: tuple[UUID, UUID]
) -> None:
    """A long read and a table lock in one open transaction."""
    async with auditor.transaction():
        await auditor.execute("LOCK TABLE trails.agent_audit_trails IN ACCESS SHARE MODE")
        await auditor.fetch("SELECT * FROM agent_audit_trails")
        await started_chain(pool, tenants[0], records=2, agent_id="agent-2")
        await started_chain(pool, tenants[1], records=2, agent_id="agent-2")
    assert await auditor.fetchval("SELECT count(*) FROM agent_audit_trails") == 4


async def test_a_login_holds_up_a_change_of_the_table_and_appends_go_on_when_it_gives_up(
    auditor: asyncpg.Connection, owner: asyncpg.Connection, pool: Pool, tenants: tuple[UUID, UUID]
) -> None:
    """Who waits for the table to himself makes others wait: migrations do so for a bounded time."""
    async with auditor.transaction():
        await auditor.fetch("SELECT * FROM agent_audit_trails")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await _changed_while(owner, lambda: started_chain(pool, tenants[0], records=2, agent_id="late"))
        assert await auditor.fetchval("SELECT count(*) FROM agent_audit_trails") == 2 + 2


async def _changed_while(owner: asyncpg.Connection, append: Callable[[], Awaitable[object]]) -> None:
    async with owner.transaction():
        await owner.execute("SET LOCAL lock_timeout = '500ms'")
        change = owner.execute("ALTER TABLE trails.agent_audit_trails ADD COLUMN mine int")
        changed, _ = await asyncio.gather(change, append(), return_exceptions=True)
        assert isinstance(changed, Exception), "the login's lock did not count"
        raise changed
