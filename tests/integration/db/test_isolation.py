"""Tenants never see each other: row security with a setting that lives as long as its transaction."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

import db.ledger
import db.spans
from app.errors import ConflictError, UnavailableError
from db.ledger import TenantRow, TrailRow
from db.pool import Pool, create_pool, tenant_transaction
from db.spans import Sight
from db.sql import statements
from tests.support.postgres import Database
from tests.support.rows import NOW, Maker, count, started_chain

ROOT = Path(__file__).resolve().parents[3]
TABLES = ("agent_audit_trails", "agents", "signing_keys", "tenants")


async def test_p07_row_security_is_enabled_and_forced_on_every_table_with_tenant_rows(
    admin: asyncpg.Connection,
) -> None:
    rows = await admin.fetch(
        "SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity FROM pg_class c "
        "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' "
        "WHERE c.relnamespace = 'trails'::regnamespace AND c.relkind IN ('r', 'p')"
    )
    assert {row["relname"] for row in rows} >= set(TABLES)
    assert all(row["relrowsecurity"] and row["relforcerowsecurity"] for row in rows)


@pytest.mark.usefixtures("maker")
async def test_p07_the_owner_sees_nothing_either(owner: asyncpg.Connection) -> None:
    assert [await count(owner, table) for table in TABLES] == [0, 0, 0, 0]


async def test_a_transaction_sees_exactly_the_tenants_it_names(
    pool: Pool, tenant: UUID, other_tenant: UUID
) -> None:
    await started_chain(pool, tenant, records=2)
    await started_chain(pool, other_tenant, records=3)
    seen = {}
    for named in ((tenant,), (other_tenant,), (tenant, other_tenant), (uuid4(),), ()):
        async with tenant_transaction(pool, *named) as connection:
            seen[named] = [await count(connection, table) for table in TABLES]
    assert seen[(tenant,)] == [2, 1, 1, 1]
    assert seen[(other_tenant,)] == [3, 1, 1, 1]
    assert seen[(tenant, other_tenant)] == [5, 2, 2, 2]
    assert list(seen.values())[3:] == [[0, 0, 0, 0]] * 2


async def test_a_row_of_a_tenant_that_is_not_named_is_refused(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, other_tenant: UUID
) -> None:
    before = await count(admin)
    columns = db.ledger._columns([maker.row()], TrailRow)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await pool.execute(db.ledger._TRAIL["append"], str(other_tenant), *columns)
    async with tenant_transaction(pool, other_tenant) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(
                "INSERT INTO trails.agents VALUES ($1, 'x', $2, true, now())", maker.tenant_id, uuid4()
            )
    assert await count(admin) == before


async def test_p11_the_setting_never_outlives_its_transaction(
    database: Database, tenant: UUID, other_tenant: UUID
) -> None:
    """One connection, used in turn by two tenants, by work without a tenant, and with errors between."""
    single = await create_pool(database.app_url, min_size=1, max_size=1)
    try:
        chains = {named: await started_chain(single, named) for named in (tenant, other_tenant)}
        for turn in range(100):
            named = (tenant, other_tenant)[turn % 2]
            with pytest.raises(ZeroDivisionError):
                await fail_after_looking(single, named)
            await db.ledger.append(single, [chains[named].row()])
            assert not await single.fetchval("SELECT current_setting('trails.tenants', true)")
            assert await single.fetchval("SELECT count(*) FROM trails.agent_audit_trails") == 0
    finally:
        await single.close()


async def test_p11_each_statement_of_ours_names_tenants_for_its_transaction_alone(
    app: asyncpg.Connection, tenant: UUID
) -> None:
    """On a bare connection, which no pool resets."""
    maker = Maker(tenant)
    await db.ledger.append(app, maker.rows(1), chains=[maker.chain])
    assert await app.fetchval("SELECT current_setting('trails.tenants')") == ""
    await db.ledger.append(app, [maker.row()])
    assert await app.fetchval("SELECT current_setting('trails.tenants')") == ""
    for name, setting in (("name_tenants", "trails.tenants"), ("name_slug", "trails.slug")):
        async with app.transaction():
            await app.execute(statements("session")[name], str(tenant))
            assert await app.fetchval("SELECT current_setting($1)", setting) == str(tenant)
        assert await app.fetchval("SELECT current_setting($1)", setting) == ""


async def test_p11_a_question_about_spans_leaves_a_session_that_needs_no_reset(
    database: Database, tenant: UUID, other_tenant: UUID
) -> None:
    """What another caller had set is reset all the same, on the return that follows."""
    single = await create_pool(database.app_url, min_size=1, max_size=1)
    try:
        await single.execute("SELECT 1")
        for named in (tenant, other_tenant) * 2:
            async with single.acquire() as connection:
                await connection.execute("SET application_name = 'changed'")
            assert await db.spans.ends(single, named, [(b"t" * 16, b"s" * 8)], Sight(uuid4(), None)) == []
            assert not await single.fetchval("SELECT current_setting('trails.tenants', true)")
            assert await single.fetchval("SELECT current_setting('application_name')") == "trails"
            assert await single.fetchval("SELECT count(*) FROM trails.agent_audit_trails") == 0
            async with single.acquire() as connection:
                await connection.execute("SET application_name = 'kept'")
                connection.leave_untouched()  # type: ignore[attr-defined]  # as the question does
            assert await single.fetchval("SELECT current_setting('application_name')") == "kept"
            assert await single.fetchval("SELECT current_setting('application_name')") == "trails"
    finally:
        await single.close()


async def fail_after_looking(pool: Pool, named: UUID) -> None:
    async with tenant_transaction(pool, named) as connection:
        rows = await connection.fetch("SELECT DISTINCT tenant_id FROM trails.agents")
        assert [row["tenant_id"] for row in rows] == [named]
        raise ZeroDivisionError


async def test_p11_a_session_setting_is_undone_on_return_to_the_pool(database: Database) -> None:
    single = await create_pool(database.app_url, min_size=1, max_size=1, command_timeout=7.0)
    try:
        async with single.acquire() as connection:
            await connection.execute(
                "SET trails.tenants = 'x'; SET statement_timeout = 0; SET lock_timeout = 0"
            )
        row = await single.fetchrow(
            "SELECT current_setting('trails.tenants', true) AS tenants,"
            " current_setting('statement_timeout') AS statement, current_setting('lock_timeout') AS lock,"
            " current_setting('idle_in_transaction_session_timeout') AS idle"
        )
        assert row is not None
        assert dict(row) == {"tenants": "", "statement": "7s", "lock": "5s", "idle": "30s"}
    finally:
        await single.close()


SESSION_SETTING = re.compile(
    r"set_config\([^)]*,\s*false\)|pg_(try_)?advisory_lock|[\"']SET (?!LOCAL|TRANSACTION)", re.IGNORECASE
)
COMMENT = re.compile(r"--.*")


def sets_for_a_session(path: Path) -> bool:
    """Whether a source holds a session-level setting or lock; a function's own SET clause is neither."""
    text = path.read_text("utf-8")
    statements = COMMENT.sub("", text).split(";") if path.suffix == ".sql" else []
    return bool(SESSION_SETTING.search(text)) or any(
        re.match(r"\s*SET (?!LOCAL|TRANSACTION)", statement) for statement in statements
    )


def test_p11_p16_no_source_sets_anything_for_a_session(tmp_path: Path) -> None:
    sources = [
        path
        for folder in ("app", "db", "alembic")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sql"}
    ]
    assert len(sources) > 20
    assert [str(path) for path in sources if sets_for_a_session(path)] == []
    for guilty in ("-- why\nSET x = 1;", "SELECT 1;\n  SET x = 1", "SELECT set_config('a', $1, false)"):
        (tmp_path / "guilty.sql").write_text(guilty)
        assert sets_for_a_session(tmp_path / "guilty.sql")


async def test_p13_after_the_transaction_the_setting_is_empty_and_shows_no_row(
    database: Database, tenant: UUID, pool: Pool
) -> None:
    await started_chain(pool, tenant)
    connection = await asyncpg.connect(database.app_url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT set_config('trails.tenants', $1, true)", str(tenant))
            assert await connection.fetchval("SELECT count(*) FROM trails.agents") == 1
        assert await connection.fetchval("SELECT current_setting('trails.tenants', true)") == ""
        assert [await count(connection, table) for table in TABLES] == [0, 0, 0, 0]
    finally:
        await connection.close()


@pytest.mark.parametrize("slug", ["", " ", "a b", "Acme", "-x", "x" * 64, "ä"])
async def test_p13_a_tenant_without_a_proper_slug_is_refused(pool: Pool, slug: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await db.ledger.add_tenant(pool, TenantRow(uuid4(), slug, "Name", NOW))


@pytest.mark.usefixtures("tenant")
async def test_a_tenant_is_found_by_its_slug_and_no_other_is_seen(pool: Pool, other_tenant: UUID) -> None:
    found = await db.ledger.tenant_by_slug(pool, "umbrella")
    assert found is not None
    assert found.tenant_id == other_tenant
    assert await db.ledger.tenant_by_slug(pool, "nobody") is None
    assert await db.ledger.tenant_by_slug(pool, "") is None
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT set_config('trails.slug', 'umbrella', true)")
        assert await connection.fetchval("SELECT count(*) FROM trails.tenants") == 1
        assert await connection.fetchval("SELECT count(*) FROM trails.agents") == 0


async def test_a_slug_belongs_to_one_tenant(pool: Pool, tenant: UUID) -> None:
    with pytest.raises(ConflictError):
        await db.ledger.add_tenant(pool, TenantRow(uuid4(), "acme", "Another", NOW))
    again = TenantRow(tenant, "acme", "Acme", NOW)
    assert await db.ledger.add_tenant(pool, again) is False


async def test_auditors_see_no_row_until_they_have_a_policy(admin: asyncpg.Connection, maker: Maker) -> None:
    async with admin.transaction():
        await admin.execute("SET LOCAL ROLE trails_auditor")
        await admin.execute("SELECT set_config('trails.tenants', $1, true)", str(maker.tenant_id))
        assert await admin.fetchval("SELECT count(*) FROM trails.agent_audit_trails") == 0


async def test_public_may_nothing(admin: asyncpg.Connection, database: Database) -> None:
    """A login that is in none of our groups reaches neither database nor schema nor tables."""
    name = database.admin_url.rpartition("/")[2]
    role = f"stranger_{name[-12:]}"
    await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        rights = await admin.fetchrow(
            "SELECT has_database_privilege($1, $2, 'CONNECT, TEMP, CREATE') AS database,"
            " has_schema_privilege($1, 'trails', 'USAGE, CREATE') AS schema,"
            " has_table_privilege($1, 'trails.agent_audit_trails', 'SELECT') AS trail,"
            " has_function_privilege($1, 'trails.check_append_v1()', 'EXECUTE') AS function",
            role,
            name,
        )
        assert rights is not None
        assert not any(rights.values())
    finally:
        await admin.execute(f"DROP ROLE {role}")


async def test_a_login_that_is_refused_is_unavailable(database: Database) -> None:
    wrong = database.app_url.replace("app-password", "wrong")
    with pytest.raises(UnavailableError):
        await create_pool(wrong)
