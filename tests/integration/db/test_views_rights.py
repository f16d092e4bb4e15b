"""Whose rows a view shows, that no document breaks one, and that each says what it is.

Views are found in the catalog, never listed here: one that is added is tested the same day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import db.ledger
from app.trace.node import action_node_id
from db.pool import Pool, tenant_setting
from tests.support.rows import Maker, register_tenant, started_chain
from tests.support.view_rows import SESSION, fragment, node, node_id, raw_row, send

VIEWS = """
    SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = 'trails' AND c.relkind IN ('v', 'm') ORDER BY 1
"""


async def views(connection: asyncpg.Connection) -> list[str]:
    found = [row[0] for row in await connection.fetch(VIEWS)]
    assert len(found) >= 11
    return found


async def fill(pool: Pool, tenant: UUID) -> Maker:
    """A chain that gives every view rows: a whole guarded life, a failed call and its correction."""
    maker = await started_chain(pool, tenant)
    policy = {"policy": {"budget": 5, "scar_limit": 3, "tools": {}}}
    guarded = node("mail", "root", status="failed") | {
        "node_id": str(action_node_id(maker.log_uuid, "act-1"))
    }
    asked = {
        "action_id": "act-1",
        "tool": "mail",
        "input": {"to": "x"},
        "cost": 5,
        "session_id": str(SESSION),
    }
    rows = [
        maker.row("policy", policy),
        maker.row("action_requested", asked),
        maker.row("approval_required", {"action_id": "act-1"}),
        maker.row("action_allowed", {"action_id": "act-1", "approved_by": "alice", "cost": 5}),
        maker.row(
            "outcome", {**fragment(guarded), "action_id": "act-1", "status": "failure", "detail": "no"}
        ),
        maker.row("scar", {"severity": "minor", "reason": "action failed: no", "action_id": "act-1"}),
        maker.row("action_requested", asked | {"action_id": "act-2"}),
        maker.row("approval_required", {"action_id": "act-2"}),
        maker.row("claim_refused", {"action_id": "act-2", "by": "mailer", "reason": {"code": "not_allowed"}}),
        maker.row("event", {"type": "deployed", "data": 1, "occurred_at": "2026-01-01T00:00:00Z"}),
        maker.row("terminated", {"reason": "incident", "by": "ops"}),
    ]
    await db.ledger.append(pool, rows)
    await send(pool, maker, node("root", None, "AGENT"), node("f", "root", status="failed", name="t"))
    await send(pool, maker, node("fix", "f", "SELF_CORRECTION"), node("end", "root", "OUTPUT"))
    await send(pool, maker, node("draft", "root", "LLM_CALL", metadata={"model": "m", "tokens": 1}))
    return maker


async def all_rows(connection: asyncpg.Connection, view: str, where: str = "") -> list[str]:
    """All that a view shows, but for what grows from one look to the next."""
    rows = [dict(row) for row in await connection.fetch(f"SELECT * FROM trails.{view} {where}")]
    return sorted(repr(sorted(item for item in row.items() if "waited" not in item[0])) for row in rows)


# --- P08 ------------------------------------------------------------------------------------------------


async def test_p08_every_view_runs_with_the_rights_of_whoever_asks(admin: asyncpg.Connection) -> None:
    names = await views(admin)
    invoker = await admin.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'trails'::regnamespace AND relkind IN ('v', 'm')"
        " AND relkind = 'v' AND 'security_invoker=true' = ANY (reloptions) ORDER BY 1"
    )
    assert [row[0] for row in invoker] == names
    definers = await admin.fetch(
        "SELECT proname FROM pg_proc"
        " WHERE pronamespace = 'trails'::regnamespace AND (prosecdef OR proleakproof)"
    )
    assert [row[0] for row in definers] == ["refresh_statistics_v1"], "reads no row"


async def test_p08_a_view_shows_exactly_the_rows_that_the_role_may_read(
    pool: Pool, tenant: UUID, other_tenant: UUID, app: asyncpg.Connection, admin: asyncpg.Connection
) -> None:
    for each in (tenant, other_tenant):
        await fill(pool, each)
    for name in await views(admin):
        everything = await all_rows(admin, name)
        own = await all_rows(admin, name, f"WHERE tenant_id = '{tenant}'")
        foreign = await all_rows(admin, name, f"WHERE tenant_id = '{other_tenant}'")
        assert own, f"{name} shows nothing that could leak"
        assert sorted(own + foreign) == everything
        assert await seen(app, name) == []
        assert await seen(app, name, tenant) == own
        assert await seen(app, name, other_tenant) == foreign
        assert await seen(app, name, tenant, other_tenant) == everything


async def seen(app: asyncpg.Connection, name: str, *tenants: UUID) -> list[str]:
    """What the service's role sees in a transaction for these tenants."""
    async with app.transaction():
        await app.execute("SELECT set_config('trails.tenants', $1, true)", tenant_setting(*tenants))
        return await all_rows(app, name)


async def test_p08_the_auditors_see_what_a_policy_lets_them_and_nothing_without(
    pool: Pool, tenant: UUID, other_tenant: UUID, admin: asyncpg.Connection
) -> None:
    for each in (tenant, other_tenant):
        await fill(pool, each)
    names = await views(admin)
    own = {name: await all_rows(admin, name, f"WHERE tenant_id = '{tenant}'") for name in names}
    await admin.execute("SET ROLE trails_auditor")
    assert {name: await all_rows(admin, name) for name in names} == {name: [] for name in names}
    await admin.execute("RESET ROLE")
    for table in ("agent_audit_trails", "agents"):
        await admin.execute(
            f"CREATE POLICY one ON trails.{table} FOR SELECT TO trails_auditor USING (tenant_id = '{tenant}')"
        )
    await admin.execute("SET ROLE trails_auditor")
    assert {name: await all_rows(admin, name) for name in names} == own


async def test_views_can_be_read_and_nothing_else(admin: asyncpg.Connection, app: asyncpg.Connection) -> None:
    for name in await views(admin):
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
            await app.execute(f"DELETE FROM trails.{name}")
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
            await app.execute(f"INSERT INTO trails.{name} DEFAULT VALUES")


async def test_every_view_and_every_column_says_what_it_is(admin: asyncpg.Connection) -> None:
    names = await views(admin)
    silent = await admin.fetch(
        "SELECT c.relname, a.attname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE c.relname = ANY ($1) AND c.relnamespace = 'trails'::regnamespace AND a.attnum > 0"
        " AND coalesce(length(col_description(c.oid, a.attnum)), 0) < 4",
        names,
    )
    assert silent == []
    for name in names:
        said = await admin.fetchval("SELECT obj_description($1::text::regclass)", f"trails.{name}")
        assert said is not None, name
        assert said.endswith("."), name


# --- malformed documents ---------------------------------------------------------------------------------

HUGE = "9" * 100_000
DEEP = '{"a":' * 2_000 + "1" + "}" * 2_000
NODES: Sequence[str] = [
    "{}",
    '{"node_id":null,"parent_id":null,"node_type":null,"name":null,"outputs":null,"metadata":null}',
    '{"node_id":5,"parent_id":[1],"node_type":{"a":1},"name":true,"outputs":"failed","metadata":"none"}',
    '{"node_id":{"a":1},"node_type":"TOOL_CALL","outputs":["failed"],"metadata":[]}',
    '{"node_id":"no uuid","parent_id":"no uuid","node_type":"TOOL_CALL","name":[],"outputs":{"status":5}}',
    '{"node_type":"TOOL_CALL","outputs":{"status":"failed","error":[],"detail":{},"reason":7}}',
    '{"node_type":"TOOL_CALL","outputs":{"status":"failed","error":{"message":{"a":1}}},"inputs":'
    + DEEP
    + "}",
]
METADATA: Sequence[str] = [
    *("5", '"text"', "[]", "null", "true", DEEP),
    '{"timestamp":"NaN","duration_ms":"NaN","tokens":"NaN","cost":"NaN"}',
    '{"timestamp":"infinity","duration_ms":"Infinity","tokens":{"input":"-Infinity"},"cost":"1e400"}',
    '{"timestamp":5,"duration_ms":true,"tokens":true,"cost":[1]}',
    '{"timestamp":["2026-01-01T00:00:00Z"],"duration_ms":{},"tokens":[1,2],"cost":{"usd":1}}',
    f'{{"timestamp":{HUGE},"duration_ms":{HUGE},"tokens":{HUGE},"cost":{HUGE}}}',
    f'{{"duration_ms":-{HUGE},"tokens":{{"input":{HUGE},"output":-{HUGE},"total":{HUGE}}},"cost":-{HUGE}}}',
    '{"duration_ms":1e308,"tokens":{"input":9223372036854775807,"output":9223372036854775807},"cost":9e308}',
    '{"duration_ms":1e-400,"tokens":{"input":1e-400,"output":0.5},"cost":1e-16000}',
    '{"timestamp":"9999-12-31T23:59:59.999999Z","duration_ms":999999999999}',
    '{"timestamp":"0001-01-01T00:00:00Z","duration_ms":0}',
    '{"timestamp":"2026-02-30T00:00:00Z"}',
    '{"timestamp":"2016-12-31T23:59:60Z"}',
    '{"timestamp":"9999-12-31T23:59:59-23:59"}',
    '{"timestamp":"0001-01-01T00:00:00+23:59"}',
    '{"timestamp":"2026-01-01 00:00:00Z\\n"}',
    '{"start_time_unix_nano":"99999999999999999999999","end_time_unix_nano":"-1"}',
    f'{{"start_time_unix_nano":{HUGE},"end_time_unix_nano":1e-9}}',
    '{"start_time_unix_nano":"NaN","end_time_unix_nano":{}}',
    '{"nested_in":{"a":1},"model":{"a":1},"action_id":[]}',
]
PAYLOADS: Sequence[str] = [
    "{}",
    '{"action_id":null,"severity":null,"policy":null,"reason":null,"status":null}',
    '{"action_id":5,"tool":{"a":1},"input":null,"cost":"5","severity":7,"policy":[],"reason":[],"status":true}',
    f'{{"action_id":"act-1","cost":{HUGE},"policy":{{"budget":{HUGE},"scar_limit":{HUGE}}},"reason":{DEEP}}}',
    '{"action_id":"act-1","cost":-1e308,"policy":{"budget":"NaN","scar_limit":-1},"late":"yes","joined":"yes"}',
    '{"action_id":"act-1","by":{"a":1},"approved_by":[1],"note":{"a":1},"detail":[],"parent_id":{}}',
    '{"action_id":{"a":1},"severity":"fatal","policy":{"budget":{},"scar_limit":[]},"reason":"text"}',
    '{"action_id":"act-1","tool":"t","remaining":"x","policy":{"tools":{"t":{"approval_ttl_secs":1e400}}}}',
    '{"action_id":"act-1","tool":[],"policy":{"tools":[],"default_rule":{"approval_ttl_secs":9e15}}}',
    '{"type":{"a":1},"data":null,"occurred_at":{"a":1},"digest":[],"tool":{}}',
]
KINDS = (
    *(
        "policy",
        "action_requested",
        "approval_required",
        "action_allowed",
        "action_denied",
        "action_rejected",
    ),
    *("outcome", "scar", "terminated", "trace", "event", "key_rotated", "of another version"),
    *("action_claimed", "claim_refused"),
)


def tree(nodes: str) -> str:
    return f'{{"session_id":"{SESSION}","total_nodes":1,"trace_tree":[{nodes}]}}'


def documents() -> list[tuple[str, str]]:
    """Kinds and payloads, each malformed in its own way."""
    identified = f'"node_id":"{node_id("m")}","node_type":"TOOL_CALL","outputs":{{"status":"failed"}}'
    trees = [tree(one) for one in NODES]
    trees += [tree(f'{{{identified},"metadata":{metadata}}}') for metadata in METADATA]
    trees += [tree(f'{{"node_type":"AGENT","metadata":{metadata}}}') for metadata in METADATA]
    trees += [tree(", ".join(NODES)), tree(f"{NODES[5]}, {NODES[5]}"), tree(""), '{"trace_tree":[{}]}']
    guards = [(kind, payload) for kind in KINDS for payload in PAYLOADS]
    return [("trace", text) for text in trees] + [("outcome", text) for text in trees] + guards


async def read_all(app: asyncpg.Connection, tenant: UUID) -> dict[str, list[Any]]:
    async with app.transaction():
        await app.execute("SELECT set_config('trails.tenants', $1, true)", str(tenant))
        return {name: await app.fetch(f"SELECT * FROM trails.{name}") for name in await views(app)}


async def test_no_document_in_a_single_row_breaks_any_view(
    pool: Pool, tenant: UUID, app: asyncpg.Connection
) -> None:
    """Each document stands in a session of sound ones, which must stay readable beside it."""
    maker = await fill(pool, tenant)
    sound = await read_all(app, tenant)
    written = [raw_row(maker, kind, payload) for kind, payload in documents()]
    await db.ledger.append(pool, written)
    found = await read_all(app, tenant)
    for name, rows in sound.items():
        assert len(found[name]) >= len(rows), name
    for name in ("trace_nodes", "tool_calls", "failed_tool_calls", "session_paths"):
        assert {node_id("f"), node_id("m")} <= {row["node_id"] for row in found[name]}, name
    [checked] = {row["ok"] for row in found["chain_check"]}
    assert checked is True


async def test_a_document_alone_breaks_no_view(
    pool: Pool, app: asyncpg.Connection, subtests: pytest.Subtests
) -> None:
    """In a tenant of its own: beside others an error could hide behind a filter that another one passes."""
    for number, document in list(enumerate(documents()))[::5]:
        with subtests.test(number=number):
            tenant = await register_tenant(pool, f"tenant-{number}")
            maker = await started_chain(pool, tenant)
            await db.ledger.append(pool, [raw_row(maker, *document)])
            await read_all(app, tenant)


async def test_sums_and_averages_over_odd_numbers_do_not_overflow(
    pool: Pool, tenant: UUID, app: asyncpg.Connection
) -> None:
    maker = await started_chain(pool, tenant)
    odd = [f'{{"cost":{number},"duration_ms":{number}}}' for number in ("9e308", "-9e308", HUGE, "1e-16000")]
    for metadata in odd * 3:
        await db.ledger.append(pool, [raw_row(maker, "trace", tree(f'{{"metadata":{metadata}}}'))])
    async with app.transaction():
        await app.execute("SELECT set_config('trails.tenants', $1, true)", str(tenant))
        row = await app.fetchrow(
            "SELECT sum(cost), avg(cost), stddev(duration_ms), count(cost), count(*) FROM trails.trace_nodes"
        )
    assert row is not None
    assert row["count"] == 12
    assert row[3] == 9  # the number of 100,000 digits is none that can be summed
