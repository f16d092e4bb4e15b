"""Nobody changes the past: not the service, not the owner, not a superuser, and each refusal says why."""

from __future__ import annotations

import asyncpg
import pytest

from app.errors import StartupError
from db.checks import check_role
from db.schema import metadata
from tests.support.postgres import Database
from tests.support.rows import count

CHANGING = {"waiting_actions", "webhook_progress"}
"""No evidence: what waits for a person, and how far webhooks are. These rows end or move on."""

TABLES = sorted({table.name for table in metadata.tables.values()} - CHANGING)
"""Every other table of ours that the schema knows."""

CHANGES = (
    "TRUNCATE trails.{table}",
    "TRUNCATE trails.{table} CASCADE",
    "DELETE FROM trails.{table}",
    "DELETE FROM trails.{table} WHERE false",
    "UPDATE trails.{table} SET tenant_id = tenant_id",
    "UPDATE trails.{table} SET tenant_id = gen_random_uuid() WHERE false",
)

UPSERT = """
INSERT INTO trails.tenants (tenant_id, slug, name, created_at)
SELECT tenant_id, slug, 'taken over', created_at FROM trails.tenants
ON CONFLICT (tenant_id) DO UPDATE SET name = excluded.name
"""

MERGE = """
MERGE INTO trails.agents AS a USING (SELECT 1) AS x ON true
WHEN MATCHED THEN UPDATE SET guarded = false
"""


@pytest.mark.parametrize("role", ["owner", "superuser"])
@pytest.mark.usefixtures("maker")
async def test_p01_owner_and_superuser_are_refused_by_the_rule(
    admin: asyncpg.Connection, owner: asyncpg.Connection, role: str, subtests: pytest.Subtests
) -> None:
    connection = owner if role == "owner" else admin
    before = await count(admin)
    for table in TABLES:
        with subtests.test(table=table):
            for change in CHANGES:
                with pytest.raises(asyncpg.PostgresError, match="append-only") as caught:
                    await connection.execute(change.format(table=table))
                assert (caught.value.sqlstate, caught.value.constraint_name) == ("TR001", "append_only")
                assert caught.value.table_name == table
            assert await count(admin) == before > 0


@pytest.mark.parametrize("statement", [UPSERT, MERGE])
@pytest.mark.usefixtures("maker")
async def test_p01_upserts_and_merges_are_refused(admin: asyncpg.Connection, statement: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await admin.execute(statement)
    assert caught.value.sqlstate == "TR001"


@pytest.mark.usefixtures("maker")
async def test_p01_the_service_has_no_privilege_to_change_anything(
    admin: asyncpg.Connection, app: asyncpg.Connection, subtests: pytest.Subtests
) -> None:
    before = await count(admin)
    for table in TABLES:
        with subtests.test(table=table):
            for change in (*CHANGES, UPSERT, MERGE):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await app.execute(change.format(table=table))
            assert await count(admin) == before > 0


@pytest.mark.usefixtures("maker")
async def test_p01_a_row_trigger_stands_behind_the_statement_trigger(admin: asyncpg.Connection) -> None:
    """Replication applies rows without statements, so that the rows need a guard of their own."""
    await admin.execute("ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER refuse_change_statement")
    for change in (
        "DELETE FROM trails.agent_audit_trails",
        "UPDATE trails.agent_audit_trails SET actor = 'x'",
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await admin.execute(change)
        assert caught.value.sqlstate == "TR001"


P03_ATTEMPTS = (
    "ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL",
    "ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER check_append",
    "ALTER TABLE trails.agent_audit_trails DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE trails.agent_audit_trails NO FORCE ROW LEVEL SECURITY",
    "DROP TRIGGER check_append ON trails.agent_audit_trails",
    "DROP POLICY app_reads ON trails.agent_audit_trails",
    "CREATE POLICY mine ON trails.agent_audit_trails USING (true)",
    "CREATE OR REPLACE FUNCTION trails.check_append_v1() RETURNS trigger LANGUAGE sql AS ''",
    "ALTER FUNCTION trails.check_append_v1() OWNER TO trails_app",
    "DROP FUNCTION trails.refuse_change_v1() CASCADE",
    "ALTER TABLE trails.agent_audit_trails OWNER TO trails_app",
    "ALTER TABLE trails.agent_audit_trails DROP CONSTRAINT trail_hash",
    "ALTER TABLE trails.agent_audit_trails ALTER COLUMN actor TYPE varchar(10)",
    "DROP TABLE trails.agent_audit_trails",
    "DROP SCHEMA trails CASCADE",
    "SET session_replication_role = replica",
    "CREATE RULE forget AS ON INSERT TO trails.agent_audit_trails DO INSTEAD NOTHING",
    "CREATE TRIGGER forget BEFORE INSERT ON trails.agents EXECUTE FUNCTION trails.refuse_change_v1()",
    "CREATE TABLE trails.mine (n integer)",
    "CREATE TABLE trails.child () INHERITS (trails.agent_audit_trails)",
    "CREATE TEMP TABLE agent_audit_trails (n integer)",
    "CREATE SCHEMA mine",
    "SET ROLE trails_owner",
    "GRANT trails_owner TO trails_app",
    "ALTER ROLE trails_app BYPASSRLS",
    "COPY trails.agent_audit_trails FROM PROGRAM 'true'",
    "SELECT * FROM trails.agent_audit_trails FOR UPDATE",
)


async def test_p03_the_service_cannot_switch_the_guard_off(
    app: asyncpg.Connection, subtests: pytest.Subtests
) -> None:
    for attempt in P03_ATTEMPTS:
        with subtests.test(attempt=attempt), pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute(attempt)


async def test_p03_the_service_cannot_grant_itself_more(app: asyncpg.Connection) -> None:
    """GRANT without a grant option only warns; what counts is that nothing was granted."""
    await app.execute("GRANT SELECT ON trails.agent_audit_trails TO PUBLIC")
    await app.execute("GRANT UPDATE, DELETE ON trails.agent_audit_trails TO trails_app")
    held = await app.fetch(
        "SELECT grantee::regrole::text, privilege_type FROM pg_class, aclexplode(relacl)"
        " WHERE oid = 'trails.agent_audit_trails'::regclass AND grantee <> relowner ORDER BY 1, 2"
    )
    assert [tuple(row) for row in held] == [
        ("trails_app", "INSERT"),
        ("trails_app", "SELECT"),
        ("trails_auditor", "SELECT"),
    ]


async def test_p03_the_service_role_passes_the_start_check(app: asyncpg.Connection) -> None:
    await check_role(app)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        ("ALTER ROLE {role} SUPERUSER", r"^role .* is a superuser \(and [0-9]+ more such powers\)"),
        ("ALTER ROLE {role} BYPASSRLS", "BYPASSRLS"),
        ("ALTER ROLE {role} CREATEROLE", "CREATEROLE"),
        ("ALTER ROLE {role} REPLICATION", "REPLICATION"),
        ("GRANT trails_owner TO {role}", "owner"),
        ("GRANT pg_write_all_data TO {role}", "pg_write_all_data"),
        ("GRANT DELETE ON trails.agent_audit_trails TO {role}", "DELETE"),
        ("GRANT TRUNCATE ON trails.agents TO {role}", "TRUNCATE"),
        ("GRANT UPDATE (name) ON trails.tenants TO {role}", "UPDATE"),
        ("GRANT CREATE ON SCHEMA trails TO {role}", "create objects"),
    ],
)
async def test_p03_p07_the_service_refuses_a_role_that_may_too_much(
    database: Database, admin: asyncpg.Connection, make: str, named: str
) -> None:
    role = "too_mighty_" + database.admin_url.rpartition("_")[2]
    await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x' IN ROLE trails_app")
    try:
        await admin.execute(make.format(role=role))
        connection = await login(database, role)
        try:
            with pytest.raises(StartupError, match=named):
                await check_role(connection)
        finally:
            await connection.close()
    finally:
        await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_p07_the_service_refuses_to_be_owner_or_superuser(
    admin: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    for connection in (admin, owner):
        with pytest.raises(StartupError, match="is a superuser"):
            await check_role(connection)


async def login(database: Database, role: str) -> asyncpg.Connection:
    server = database.server
    name = database.admin_url.rpartition("/")[2]
    return await asyncpg.connect(host=server.host, port=server.port, user=role, password="x", database=name)  # noqa: S106


TAKES_ALONG = """
SELECT c.relname FROM pg_catalog.pg_constraint JOIN pg_catalog.pg_class AS c ON c.oid = conrelid
 WHERE contype = 'f' AND (confdeltype NOT IN ('a', 'r') OR confupdtype NOT IN ('a', 'r'))
"""
"""Foreign keys whose rows change with what they refer to: CASCADE, SET NULL, SET DEFAULT."""


async def test_t08_no_foreign_key_takes_rows_along(admin: asyncpg.Connection) -> None:
    assert await admin.fetch(TAKES_ALONG) == []
    async with admin.transaction():  # and one that did would be seen
        await admin.execute(
            "CREATE TABLE trails.leash (tenant_id uuid REFERENCES trails.tenants ON DELETE CASCADE)"
        )
        assert [row[0] for row in await admin.fetch(TAKES_ALONG)] == ["leash"]
        await admin.execute("DROP TABLE trails.leash")
