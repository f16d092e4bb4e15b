"""The start-up checks find each kind of meddling with the catalog, and nothing in a sound one."""

from __future__ import annotations

import asyncpg
import pytest

from app.errors import StartupError
from db.checks import check_catalog, check_server, check_start

TRAIL = "trails.agent_audit_trails"

MEDDLING = {
    "trigger off": (
        f"ALTER TABLE {TRAIL} DISABLE TRIGGER check_append",
        "trigger agent_audit_trails.check_append",
    ),
    "trigger not always": (
        f"ALTER TABLE {TRAIL} ENABLE TRIGGER refuse_change_row",
        "trigger agent_audit_trails.refuse_change_row",
    ),
    "trigger dropped": ("DROP TRIGGER check_append ON " + TRAIL, "trigger agent_audit_trails.check_append"),
    "trigger of the registry off": (
        "ALTER TABLE trails.agents DISABLE TRIGGER ALL",
        "trigger agents.refuse_change_row",
    ),
    "trigger added": (
        (
            "CREATE FUNCTION trails.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            f"CREATE TRIGGER swallow BEFORE INSERT ON {TRAIL} FOR EACH ROW EXECUTE FUNCTION trails.f()"
        ),
        "trigger agent_audit_trails.swallow",
    ),
    "function replaced": (
        (
            "CREATE OR REPLACE FUNCTION trails.check_append_v1() RETURNS trigger LANGUAGE plpgsql"
            " SET search_path = pg_catalog SET enable_seqscan = off AS 'BEGIN RETURN NULL; END'"
        ),
        "function check_append_v1()",
    ),
    "function with another search path": (
        "ALTER FUNCTION trails.check_append_v1() SET search_path = public",
        "function check_append_v1()",
    ),
    "function with its owner's rights": (
        "ALTER FUNCTION trails.refuse_change_v1() SECURITY DEFINER",
        "function refuse_change_v1()",
    ),
    "CHECK dropped": (
        f"ALTER TABLE {TRAIL} DROP CONSTRAINT trail_hash",
        "constraint agent_audit_trails.trail_hash",
    ),
    "CHECK that says nothing": (
        (
            f"ALTER TABLE {TRAIL} DROP CONSTRAINT trail_mirror;"
            f"ALTER TABLE {TRAIL} ADD CONSTRAINT trail_mirror CHECK (true)"
        ),
        "constraint agent_audit_trails.trail_mirror",
    ),
    "CHECK not validated": (
        (
            f"ALTER TABLE {TRAIL} DROP CONSTRAINT trail_well_formed;"
            f"ALTER TABLE {TRAIL} ADD CONSTRAINT trail_well_formed CHECK (trails.well_formed_v1(seq, kind,"
            " created_at, signature, session_id, log_uuid, idempotency_key, trace_data) IS TRUE) NOT VALID"
        ),
        "constraint agent_audit_trails.trail_well_formed",
    ),
    "primary key dropped": (
        f"ALTER TABLE {TRAIL} DROP CONSTRAINT trail_pkey",
        "constraint agent_audit_trails.trail_pkey",
    ),
    "unique index dropped": (
        "DROP INDEX trails.trail_idempotency_key",
        "index agent_audit_trails.trail_idempotency_key",
    ),
    "unique index that is not unique": (
        (
            "DROP INDEX trails.trail_idempotency_key; CREATE INDEX trail_idempotency_key"
            f" ON {TRAIL} (tenant_id, log_uuid, idempotency_key) WHERE idempotency_key IS NOT NULL"
        ),
        "index agent_audit_trails.trail_idempotency_key",
    ),
    "unique index over fewer rows": (
        (
            "DROP INDEX trails.trail_idempotency_key; CREATE UNIQUE INDEX trail_idempotency_key"
            f" ON {TRAIL} (tenant_id, log_uuid, idempotency_key) WHERE idempotency_key < ''"
        ),
        "index agent_audit_trails.trail_idempotency_key",
    ),
    "unique index that is not valid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'trails.agents_pkey'::regclass",
        "index agents.agents_pkey",
    ),
    "unique index that no append keeps up": (
        "UPDATE pg_index SET indisready = false WHERE indexrelid = 'trails.trail_idempotency_key'::regclass",
        "index agent_audit_trails.trail_idempotency_key",
    ),
    "index that no append keeps up": (
        "UPDATE pg_index SET indisready = false WHERE indexrelid = 'trails.trail_actions'::regclass",
        "index agent_audit_trails.trail_actions",
    ),
    "index that forbids rows": (
        f"CREATE UNIQUE INDEX one_record ON {TRAIL} (tenant_id)",
        "index agent_audit_trails.one_record",
    ),
    "setting of the database": (
        (
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',"
            " current_database()); END $$"
        ),
        "setting synchronous_commit of every role in this database",
    ),
    "mirror no longer generated": (
        f"ALTER TABLE {TRAIL} ALTER COLUMN trace_data DROP EXPRESSION",
        "column agent_audit_trails.trace_data",
    ),
    "column nullable": (
        f"ALTER TABLE {TRAIL} ALTER COLUMN hash DROP NOT NULL",
        "column agent_audit_trails.hash",
    ),
    "column added": (f"ALTER TABLE {TRAIL} ADD COLUMN note text", "column agent_audit_trails.note"),
    "row security off": (
        f"ALTER TABLE {TRAIL} DISABLE ROW LEVEL SECURITY",
        "relation agent_audit_trails",
    ),
    "row security not forced": ("ALTER TABLE trails.agents NO FORCE ROW LEVEL SECURITY", "relation agents"),
    "policy dropped": ("DROP POLICY app_reads ON trails.agents", "policy agents.app_reads"),
    "policy widened": (
        f"ALTER POLICY app_reads ON {TRAIL} USING (true)",
        "policy agent_audit_trails.app_reads",
    ),
    "policy added": (
        f"CREATE POLICY everyone ON {TRAIL} USING (true)",
        "policy agent_audit_trails.everyone",
    ),
    "rule": (
        f"CREATE RULE forget AS ON INSERT TO {TRAIL} DO INSTEAD NOTHING",
        "rule agent_audit_trails.forget",
    ),
    "child table": (
        f"CREATE TABLE public.child () INHERITS ({TRAIL})",
        "inheritance public.child of trails.agent_audit_trails",
    ),
    "table not logged": (f"ALTER TABLE {TRAIL} SET UNLOGGED", "relation agent_audit_trails"),
    "table of another owner": (f"ALTER TABLE {TRAIL} OWNER TO CURRENT_USER", "relation agent_audit_trails"),
    "privilege granted": (
        f"GRANT DELETE ON {TRAIL} TO trails_auditor",
        "grant DELETE on agent_audit_trails to trails_auditor",
    ),
    "privilege on a column": (
        f"GRANT UPDATE (actor) ON {TRAIL} TO PUBLIC",
        "grant UPDATE on agent_audit_trails.actor to PUBLIC",
    ),
    "privilege on the schema": (
        "GRANT CREATE ON SCHEMA trails TO PUBLIC",
        "grant CREATE on schema trails to PUBLIC",
    ),
    "view with its owner's rights": (
        "ALTER VIEW trails.trace_nodes RESET (security_invoker)",
        "relation trace_nodes",
    ),
    "view that leaves rows out": (
        (
            "CREATE OR REPLACE VIEW trails.chain_check WITH (security_invoker = true) AS"
            " SELECT * FROM trails.chain_check_v2() AS v WHERE v.ok"
        ),
        "view chain_check",
    ),
    "view over something else": (
        (
            "CREATE FUNCTION public.chain_check_v2() RETURNS SETOF trails.chain_check LANGUAGE sql AS"
            " 'SELECT * FROM trails.chain_check_v2() WHERE ok';"
            "CREATE OR REPLACE VIEW trails.chain_check WITH (security_invoker = true) AS"
            " SELECT * FROM public.chain_check_v2() AS v"
        ),
        "view chain_check",
    ),
    "view that says something else in a column": (
        (
            "CREATE OR REPLACE VIEW trails.approvals WITH (security_invoker = true) AS"
            " SELECT v.tenant_id, v.agent_id, v.log_uuid, v.action_id, v.tool, v.input, v.cost, v.session_id,"
            " v.requested_at, v.decided_at, v.waited, v.decision, v.note AS decided_by, v.decided_by AS note,"
            " v.joins, v.seq, v.waited_secs FROM trails.approvals_v2() AS v"
        ),
        "view approvals",
    ),
    "view of another owner": ("ALTER VIEW trails.scars OWNER TO CURRENT_USER", "relation scars"),
    "view dropped": ("DROP VIEW trails.corrections", "view corrections"),
    "column of a view with a default": (
        "ALTER VIEW trails.scars ALTER COLUMN reason SET DEFAULT 'none'",
        "column scars.reason",
    ),
    "rule of a view": (
        "CREATE RULE forget AS ON INSERT TO trails.scars DO INSTEAD NOTHING",
        "rule scars.forget",
    ),
    "view that takes rows": (
        "GRANT INSERT ON trails.scars TO trails_auditor",
        "grant INSERT on scars to trails_auditor",
    ),
    "view that the auditors cannot read": (
        "REVOKE SELECT ON trails.sessions FROM trails_auditor",
        "grant SELECT on sessions to trails_auditor",
    ),
    "function of a view that the service cannot call": (
        "REVOKE EXECUTE ON FUNCTION trails.instant_v1(text) FROM trails_app",
        "grant EXECUTE on instant_v1(written text) to trails_app",
    ),
    "function of a view replaced": (
        (
            "CREATE OR REPLACE FUNCTION trails.error_v1(outputs jsonb) RETURNS text LANGUAGE plpgsql"
            " IMMUTABLE PARALLEL SAFE AS 'BEGIN RETURN NULL; END'"
        ),
        "function error_v1(outputs jsonb)",
    ),
    "function that is said not to leak": (
        "ALTER FUNCTION trails.error_v1(jsonb) LEAKPROOF",
        "function error_v1(outputs jsonb)",
    ),
    "function that is no longer asked": (
        "ALTER FUNCTION trails.error_v1(jsonb) STRICT",
        "function error_v1(outputs jsonb)",
    ),
    "object added": ("CREATE VIEW trails.all_rows AS SELECT 1 AS n", "relation all_rows"),
}


@pytest.mark.parametrize("kind", MEDDLING)
async def test_each_kind_of_meddling_is_found(
    admin: asyncpg.Connection, app: asyncpg.Connection, kind: str
) -> None:
    statement, named = MEDDLING[kind]
    await admin.execute(statement)
    found = await check_catalog(app)
    assert named in [finding.object for finding in found], found
    with pytest.raises(StartupError):
        await check_start(app)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("trigger off", "trigger agent_audit_trails.check_append is switched off"),
        (
            "trigger not always",
            "trigger agent_audit_trails.refuse_change_row is switched off in sessions of replication",
        ),
        ("trigger dropped", "trigger agent_audit_trails.check_append is missing"),
        ("row security off", "relation agent_audit_trails differs: row security f, not row security t"),
        (
            "function with its owner's rights",
            "function refuse_change_v1() differs: security definer t, not security definer f",
        ),
        ("column nullable", "column agent_audit_trails.hash differs: it is text collate C, not text"),
    ],
)
async def test_a_finding_names_the_object_first_and_is_short(
    admin: asyncpg.Connection, kind: str, said: str
) -> None:
    await admin.execute(MEDDLING[kind][0])
    [finding] = await check_catalog(admin)
    assert str(finding).startswith(said)
    assert len(str(finding)) < len(said) + 40


async def test_a_refusal_to_start_does_not_list_everything(
    admin: asyncpg.Connection, app: asyncpg.Connection
) -> None:
    await admin.execute("ALTER TABLE trails.agents DISABLE TRIGGER ALL")
    await admin.execute(f"ALTER TABLE {TRAIL} DISABLE TRIGGER ALL")
    with pytest.raises(StartupError, match="; and 4 more, see trails verify"):
        await check_start(app)


async def test_a_sound_database_has_no_findings(app: asyncpg.Connection, admin: asyncpg.Connection) -> None:
    await check_start(app)
    assert await check_catalog(admin) == []


async def test_an_index_more_and_a_reader_more_are_the_administrators_own(
    app: asyncpg.Connection, admin: asyncpg.Connection
) -> None:
    await admin.execute(f"CREATE INDEX by_actor ON {TRAIL} (tenant_id, kind)")
    await admin.execute(f"GRANT SELECT ON {TRAIL} TO PUBLIC")
    assert await check_catalog(app) == []


ROLES = {
    "the owner's rights": ("GRANT trails_owner TO trails_app", "membership of trails_app in trails_owner"),
    "the owner's rights by another role": (
        (
            "CREATE ROLE trails_test_between; GRANT trails_owner TO trails_test_between;"
            " GRANT trails_test_between TO trails_auditor"
        ),
        "membership of trails_auditor in trails_owner",
        # What is granted to the service alone comes with it.
        "grant EXECUTE on refresh_statistics_v1() to trails_auditor",
    ),
    "the rights of all files": (
        "GRANT pg_write_server_files TO trails_app",
        "membership of trails_app in pg_write_server_files",
    ),
    "superuser": ("ALTER ROLE trails_app SUPERUSER", "role trails_app"),
    "no row security": ("ALTER ROLE trails_auditor BYPASSRLS", "role trails_auditor"),
    "tenants by default": (
        "ALTER ROLE trails_app SET trails.tenants = '6a07e448-31e4-4527-8d9b-1c672733f821'",
        "setting trails.tenants of trails_app in every database",
    ),
    "triggers off by default": (
        (
            "DO $$ BEGIN EXECUTE format('ALTER ROLE trails_app IN DATABASE %I SET session_replication_role ="
            " replica', current_database()); END $$"
        ),
        "setting session_replication_role of trails_app in this database",
    ),
    "functions before PostgreSQL's own": (
        "ALTER ROLE ALL SET search_path = trails, public, pg_catalog",
        "setting search_path of every role in every database",
    ),
    "commits that may be lost": (
        "ALTER ROLE ALL SET synchronous_commit = off",
        "setting synchronous_commit of every role in every database",
    ),
}


@pytest.mark.parametrize("kind", ROLES)
async def test_each_power_that_a_role_was_given_is_found(admin: asyncpg.Connection, kind: str) -> None:
    statement, *named = ROLES[kind]
    change = admin.transaction()  # roles are the whole cluster's: nothing of this may outlive the test
    await change.start()
    try:
        await admin.execute(statement)
        found = await check_catalog(admin)
    finally:
        await change.rollback()
    assert sorted(finding.object for finding in found) == sorted(named)
    assert await check_catalog(admin) == []


async def test_settings_that_only_bound_or_log_the_work_are_the_administrators_own(
    admin: asyncpg.Connection,
) -> None:
    change = admin.transaction()
    await change.start()
    try:
        await admin.execute("ALTER ROLE trails_app SET statement_timeout = '30s'")
        await admin.execute("ALTER ROLE trails_app SET log_min_duration_statement = '1s'")
        await admin.execute("ALTER ROLE ALL SET work_mem = '8MB'")
        assert await check_catalog(admin) == []
    finally:
        await change.rollback()


async def test_names_that_hide_the_catalogs_do_not_deceive_the_check(admin: asyncpg.Connection) -> None:
    """A function of the same name in the search path of the connection is not what the check calls."""
    await admin.execute("CREATE SCHEMA liar; CREATE TABLE liar.pg_trigger (n integer)")
    await admin.execute(f"ALTER TABLE {TRAIL} DISABLE TRIGGER check_append")
    await admin.execute("SET search_path = liar, pg_catalog")
    assert [finding.object for finding in await check_catalog(admin)] == [
        "trigger agent_audit_trails.check_append"
    ]


async def test_a_session_without_triggers_is_refused(admin: asyncpg.Connection) -> None:
    await admin.execute("SET session_replication_role = replica")
    with pytest.raises(StartupError, match="session_replication_role"):
        await check_server(admin)


async def test_a_server_that_may_lose_commits_is_refused_unless_it_says_that_it_is_disposable(
    admin: asyncpg.Connection,
) -> None:
    if await admin.fetchval("SHOW fsync") == "on":
        pytest.skip("this server is durable; the tests' own is not")
    await check_server(admin)
    await admin.execute("SET trails.disposable = off")
    with pytest.raises(StartupError, match="fsync is off"):
        await check_server(admin)
