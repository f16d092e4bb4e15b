"""What SQL shows one tenant of another: over everything that the catalog has (cases P05, P07, P08, P13)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import pytest

from db.checks import expected_catalog
from db.migrate import with_login
from tests.isolation.catalog import DENIED, leaks, relations, seen
from tests.isolation.world import PASSWORD, Tenant, World
from tests.support.pgbouncer import running_pooler
from tests.support.postgres import Database

KNOWN: Final = {
    name.removeprefix("relation "): definition
    for name, definition in expected_catalog().items()
    if name.startswith("relation ")
}
SECURED: Final = sorted(name for name, definition in KNOWN.items() if "row security t" in definition)
VIEWS: Final = sorted(name for name, definition in KNOWN.items() if definition.startswith("kind v"))

DEFINERS: Final[dict[str, str]] = {
    "refresh_statistics_v1": "it reads no row, and answers with the name of a table at most",
}
"""Functions that run with their owner's rights, and why that shows nobody another tenant."""

LOGINS: Final = ("app", "auditor")
NO_TENANT: Final = (None, "")
"""``trails.tenants`` before it was ever set, and after a transaction that had set it (case P13)."""


@asynccontextmanager
async def login(database: Database, of: Tenant, who: str, url: str | None = None) -> AsyncIterator[Any]:
    """A connection of the service, or of the tenant's SQL login."""
    url = url or database.app_url
    if who == "auditor":
        url = with_login(database.admin_url, of.ids.login, PASSWORD)
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def superuser(database: Database) -> AsyncIterator[Any]:
    """A connection that sees everything."""
    connection = await asyncpg.connect(database.admin_url)
    try:
        yield connection
    finally:
        await connection.close()


def setting_of(world: World, who: str) -> str | None:
    """What names the tenant: the setting for the service, the login itself for an auditor."""
    return world.mine.ids.tenant_id if who == "app" else None


# --- that there is something to see ----------------------------------------------------------------------


async def test_the_world_fills_every_table_and_view_for_both_tenants(shared: Database, world: World) -> None:
    """Else nothing would be proven of it: a new table must be filled in ``tests.isolation.world``."""
    async with superuser(shared) as admin:
        for relation in await relations(admin):
            if relation.is_tenants:
                for tenant in (world.mine, world.theirs):
                    question = f"SELECT count(*) FROM trails.{relation.name} WHERE tenant_id = $1"
                    assert await admin.fetchval(question, tenant.ids.tenant_id) > 0, relation.name


async def test_every_relation_that_the_migrations_make_is_looked_at(shared: Database) -> None:
    async with superuser(shared) as admin:
        found = {relation.name for relation in await relations(admin)}
    assert found == KNOWN.keys()
    assert len(SECURED) > 5
    assert len(VIEWS) > 5


@pytest.mark.parametrize("who", LOGINS)
async def test_p08_each_relation_shows_exactly_the_tenants_own_rows(
    shared: Database, world: World, who: str
) -> None:
    """All that it may read at all: as many, and the same, as a superuser finds with the tenant in WHERE."""
    readable = []
    async with superuser(shared) as admin, login(shared, world.mine, who) as connection:
        for relation in await relations(admin):
            own = await seen(connection, setting_of(world, who), _rows(relation.name))
            if own and relation.is_tenants:
                readable.append(relation.name)
                question = f"{_rows(relation.name)} WHERE tenant_id = $1"
                assert own == await admin.fetchval(question, world.mine.ids.tenant_id), relation.name
    assert set(readable) >= {*VIEWS, "agent_audit_trails", "agents", "sendings"}


def _rows(relation: str) -> str:
    """Its rows, without how long something has been waiting by now."""
    row = "(to_jsonb(x) - 'waited' - 'waited_secs')::text"
    return f"SELECT array_agg({row} ORDER BY {row}) FROM trails.{relation} AS x"


# --- and that nobody sees it -------------------------------------------------------------------------------


@pytest.mark.parametrize("who", LOGINS)
async def test_p07_p08_a_tenant_sees_no_row_of_another(shared: Database, world: World, who: str) -> None:
    async with login(shared, world.mine, who) as connection:
        assert await leaks(connection, world.theirs.marks, tenant=setting_of(world, who)) == []


@pytest.mark.parametrize("tenant", NO_TENANT)
async def test_p13_without_a_tenant_the_service_sees_no_row(
    shared: Database, world: World, tenant: str | None
) -> None:
    marks = (*world.mine.marks, *world.theirs.marks)
    async with login(shared, world.mine, "app") as connection:
        assert await leaks(connection, marks, tenant=tenant) == []
        for relation in await relations(connection):
            if relation.is_tenants:
                assert await seen(connection, tenant, f"SELECT count(*) FROM trails.{relation.name}") == 0


@pytest.mark.parametrize("setting", ["", "theirs"])
async def test_p13_no_setting_shows_an_auditor_more(shared: Database, world: World, setting: str) -> None:
    named = world.theirs.ids.tenant_id if setting else ""
    async with login(shared, world.mine, "auditor") as connection:
        assert await leaks(connection, world.theirs.marks, tenant=named) == []


@pytest.mark.parametrize("text", [" ", ",", "x", "00000000-0000-0000-0000-000000000000", "{}", "null"])
async def test_p13_a_setting_that_names_nobody_shows_nothing(
    shared: Database, world: World, text: str
) -> None:
    """A text that is no list of ids is an error of the statement, never a row."""
    async with login(shared, world.mine, "app") as connection:
        for relation in await relations(connection):
            if relation.is_tenants:
                try:
                    found = await seen(connection, text, f"SELECT count(*) FROM trails.{relation.name}")
                except asyncpg.DataError:
                    continue
                assert found == 0, relation.name


async def test_p05_no_partition_leads_around_row_security(shared: Database, world: World) -> None:
    """None today; one that comes must have forced row security of its own, or be out of reach."""
    async with superuser(shared) as admin:
        children = await admin.fetch(
            "SELECT c.oid::regclass::text AS name, c.relrowsecurity AND c.relforcerowsecurity AS secured,"
            "       array(SELECT r FROM unnest(ARRAY['trails_app', 'trails_auditor', $1]) AS r"
            "              WHERE has_table_privilege(r, c.oid, 'SELECT, INSERT, UPDATE, DELETE')) AS reach"
            "  FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
            " WHERE c.relkind IN ('r', 'p', 'f')",
            world.mine.ids.login,
        )
    assert [row["name"] for row in children if row["reach"] and not row["secured"]] == []


# --- nor writes it ---------------------------------------------------------------------------------------


async def test_p07_no_row_of_another_tenant_can_be_written(shared: Database, world: World) -> None:
    """Whether it is there already or not, the answer is the same: privilege or row security refuses it."""
    async with superuser(shared) as admin, login(shared, world.mine, "app") as connection:
        for relation in await relations(admin):
            if not relation.is_tenants or relation.is_view:
                continue
            row = await admin.fetchval(
                f"SELECT to_jsonb(x) FROM trails.{relation.name} AS x WHERE tenant_id = $1 LIMIT 1",
                world.theirs.ids.tenant_id,
            )
            columns = ", ".join(await _writable(admin, relation.name))
            changed = "jsonb_set($1, '{tenant_id}', to_jsonb($2::text))"
            states = set()
            for tenant_id in (world.theirs.ids.tenant_id, world.nobody.tenant_id):
                statement = (
                    f"INSERT INTO trails.{relation.name} ({columns}) SELECT {columns}"
                    f" FROM jsonb_populate_record(NULL::trails.{relation.name}, {changed})"
                )
                states.add(await _refusal(connection, world, statement, row, tenant_id))
            assert states == {DENIED}, relation.name
            for statement in (
                f"UPDATE trails.{relation.name} SET tenant_id = tenant_id WHERE tenant_id = $1",
                f"DELETE FROM trails.{relation.name} WHERE tenant_id = $1",
            ):
                state = await _refusal(connection, world, statement, world.theirs.ids.tenant_id)
                is_kept_by_trigger = (relation.name, statement[:6]) == ("waiting_actions", "DELETE")
                assert state == ("DELETE 0" if is_kept_by_trigger else DENIED), (relation.name, statement)


async def _writable(admin: Any, relation: str) -> list[str]:
    rows = await admin.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = ('trails.' || $1)::regclass AND attnum > 0"
        " AND NOT attisdropped AND attgenerated = '' AND attidentity <> 'a' ORDER BY attnum",
        relation,
    )
    return [row["attname"] for row in rows]


async def _refusal(connection: Any, world: World, statement: str, *values: Any) -> str:
    """The SQLSTATE of a statement that is tried for the tenant; ``done`` when it is let in."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("SELECT set_config('trails.tenants', $1, true)", world.mine.ids.tenant_id)
        return str(await connection.execute(statement, *values))
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    finally:
        await transaction.rollback()


# --- functions -------------------------------------------------------------------------------------------

_FUNCTIONS: Final = """
SELECT p.oid::regprocedure::text AS signature, p.proname::text AS name, p.proretset,
       array(SELECT format_type(a.t, NULL)
               FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (t, n) ORDER BY a.n) AS arguments
  FROM pg_catalog.pg_proc AS p
 WHERE p.pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'trails')
   AND p.prorettype <> 'trigger'::regtype AND p.prokind = 'f'
   AND has_function_privilege(current_user, p.oid, 'EXECUTE')
 ORDER BY 1
"""


def values_of(type_: str, tenant: Tenant) -> list[Any]:
    """Arguments of a type that name something of a tenant."""
    ids = tenant.ids
    trees = f'{{"trace_tree": [{{"node_id": "{ids.session_id}", "name": "{ids.slug}"}}]}}'
    known: dict[str, list[Any]] = {
        "uuid": [ids.tenant_id, ids.session_id, *tenant.log_uuids[:2]],
        "text": [ids.agent_id, "search"],
        "jsonb": [trees],
        "bigint": [1],
        "integer": [1],
        "boolean": [True],
        "text[]": [[ids.agent_id]],
        "uuid[]": [[ids.tenant_id]],
        "bigint[]": [[1]],
        "bytea": [bytes.fromhex(ids.trace_id)],
        "timestamp with time zone": [None],
    }
    return known[type_]


@pytest.mark.parametrize("who", LOGINS)
async def test_p08_no_function_tells_of_another_tenant(shared: Database, world: World, who: str) -> None:
    """Called with its ids, each answers what it answers of ids that nobody has."""
    nobody = Tenant(world.nobody, {}, tuple(world.nobody.session_id for _ in world.theirs.log_uuids))
    async with login(shared, world.mine, who) as connection:
        functions = await connection.fetch(_FUNCTIONS)
        assert len(functions) > 10
        for function in functions:
            if function["name"] in DEFINERS:
                continue
            names = [f"${n}::{type_}" for n, type_ in enumerate(function["arguments"], 1)]
            question = (
                "SELECT coalesce(array_agg((jsonb_build_object('x', x) #- '{x,waited}'"
                " #- '{x,waited_secs}')::text), '{}')"
                f" FROM trails.{function['name']}({', '.join(names)}) AS x"
            )
            told = [
                [
                    _unnamed(await _answer(connection, setting_of(world, who), question, *values), tenant)
                    for values in itertools.product(
                        *(values_of(type_, tenant) for type_ in function["arguments"])
                    )
                ]
                for tenant in (world.theirs, nobody)
            ]
            assert told[0] == told[1], function["signature"]
            if not function["arguments"]:
                text = str(told[0])
                assert not [mark for mark in world.theirs.marks if mark in text], function["signature"]


async def _answer(connection: asyncpg.Connection, tenant: str | None, question: str, *values: Any) -> Any:
    """What a function says: its value, or the rule that it finds broken."""
    try:
        return await seen(connection, tenant, question, *values)
    except asyncpg.CheckViolationError as error:
        return f"{error.constraint_name}: {error} {error.detail}"


def _unnamed(answer: Any, tenant: Tenant) -> str:
    """An answer without what it was asked with: a function may give back its argument."""
    text = str(answer)
    for mark in (*tenant.log_uuids, tenant.ids.session_id, tenant.ids.agent_id, tenant.ids.slug):
        text = text.replace(mark, "…")
    return text


async def test_p08_functions_with_their_owners_rights_are_known(shared: Database) -> None:
    async with superuser(shared) as admin:
        rows = await admin.fetch(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'trails'::regnamespace AND prosecdef"
        )
    assert {row["proname"] for row in rows} == DEFINERS.keys()


# --- the check itself finds what is weakened ---------------------------------------------------------------


@pytest.mark.parametrize("role", ["superuser", "owner", "bypassrls"])
async def test_p07_the_check_fails_as_a_role_that_row_security_does_not_bind(
    shared: Database, world: World, role: str
) -> None:
    async with superuser(shared) as connection:
        if role != "superuser":
            name = "trails_owner" if role == "owner" else "trails_test_bypass"
            if role == "bypassrls":
                await connection.execute(f"CREATE ROLE {name} BYPASSRLS IN ROLE trails_app")
            try:
                await connection.execute(f"SET ROLE {name}")
                found = await leaks(connection, world.theirs.marks, tenant=world.mine.ids.tenant_id)
            finally:
                await connection.execute("RESET ROLE")
                if role == "bypassrls":
                    await connection.execute(f"DROP ROLE {name}")
        else:
            found = await leaks(connection, world.theirs.marks, tenant=world.mine.ids.tenant_id)
    assert any("who is not bound" in finding for finding in found)
    if role != "owner":
        assert any(finding.startswith("agent_audit_trails: ") for finding in found)


@pytest.mark.parametrize("table", SECURED)
async def test_p07_the_check_finds_a_table_without_row_security(
    shared: Database, world: World, table: str
) -> None:
    """By its rows, wherever the service may read them; by the catalog in any case."""
    async with superuser(shared) as admin:
        await admin.execute(f"ALTER TABLE trails.{table} DISABLE ROW LEVEL SECURITY")
        try:
            async with login(shared, world.mine, "app") as connection:
                found = await leaks(connection, world.theirs.marks, tenant=world.mine.ids.tenant_id)
        finally:
            await admin.execute(f"ALTER TABLE trails.{table} ENABLE ROW LEVEL SECURITY")
    assert f"{table}: has no row security" in found
    assert any(finding.startswith(f"{table}: ") and "rows of others" in finding for finding in found)


@pytest.mark.parametrize("table", SECURED)
async def test_p07_the_check_finds_a_table_that_does_not_bind_its_owner(
    shared: Database, world: World, table: str
) -> None:
    async with superuser(shared) as admin:
        await admin.execute(f"ALTER TABLE trails.{table} NO FORCE ROW LEVEL SECURITY")
        try:
            async with login(shared, world.mine, "app") as connection:
                found = await leaks(connection, world.theirs.marks, tenant=world.mine.ids.tenant_id)
        finally:
            await admin.execute(f"ALTER TABLE trails.{table} FORCE ROW LEVEL SECURITY")
    assert found == [f"{table}: does not bind its owner"]


@pytest.mark.parametrize("view", VIEWS)
async def test_p08_the_check_finds_a_view_with_its_owners_rights(
    shared: Database, world: World, view: str
) -> None:
    """Its owner is a superuser's here: the owner of ours is bound by row security itself."""
    async with superuser(shared) as admin:
        await admin.execute(f"ALTER VIEW trails.{view} RESET (security_invoker)")
        await admin.execute(f"ALTER VIEW trails.{view} OWNER TO CURRENT_USER")
        try:
            async with login(shared, world.mine, "auditor") as connection:
                found = await leaks(connection, world.theirs.marks, tenant=None)
        finally:
            await admin.execute(f"ALTER VIEW trails.{view} OWNER TO trails_owner")
            await admin.execute(f"ALTER VIEW trails.{view} SET (security_invoker = true)")
    assert f"{view}: runs with its owner's rights" in found


async def test_p05_the_check_finds_a_partition_and_a_materialised_view(
    populated: Database, world: World
) -> None:
    async with superuser(populated) as admin:
        await admin.execute(
            "CREATE TABLE trails.parted (tenant_id uuid, t text) PARTITION BY LIST (t);"
            "ALTER TABLE trails.parted ENABLE ROW LEVEL SECURITY;"
            "ALTER TABLE trails.parted FORCE ROW LEVEL SECURITY;"
            "CREATE TABLE trails.part PARTITION OF trails.parted FOR VALUES IN ('x');"
            "CREATE MATERIALIZED VIEW trails.kept AS SELECT tenant_id FROM trails.agents;"
            "GRANT SELECT ON trails.parted, trails.part, trails.kept TO trails_app"
        )
        await admin.execute("INSERT INTO trails.parted VALUES ($1, 'x')", world.theirs.ids.tenant_id)
    async with login(populated, world.mine, "app") as connection:
        found = await leaks(connection, world.theirs.marks, tenant=world.mine.ids.tenant_id)
    assert "part: has no row security" in found
    assert {finding.split(":")[0] for finding in found} == {"part", "kept"}


# --- and behind a pooler -----------------------------------------------------------------------------------


async def test_p15_the_check_holds_through_a_pooler(populated: Database, world: World) -> None:
    """Many connections of two tenants over two sessions, each statement of which may be another's next."""
    with running_pooler(populated) as pooler:
        mine, theirs = world.mine, world.theirs
        for own, other in ((mine, theirs), (theirs, mine), (mine, theirs)):
            async with login(populated, own, "app", pooler.app_url) as connection:
                assert await leaks(connection, other.marks, tenant=own.ids.tenant_id) == []
