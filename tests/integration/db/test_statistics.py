"""Statistics of young tables are there as soon as rows are: look-ups go by the right index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

import db.ledger
from app.ledger.watch.statistics import MOST_SECS, ROUND_SECS, StatisticsKeeper
from db.ledger import SpanRow
from db.pool import Pool
from db.sql import statements
from tests.support.rows import Maker, started_chain

TRAIL: Final = "agent_audit_trails"
TRACE: Final = bytes(range(16))
RECORDS: Final = 1_200
"""Of each chain; in all as many as a small service writes in its first minute."""


class World(msgspec.Struct, frozen=True):
    """Two chains of one tenant, whose spans are of one trace."""

    tenant: UUID
    one: UUID
    other: UUID


class Question(msgspec.Struct, frozen=True):
    """A statement of the service, and what it is asked with, as SQL."""

    statement: str
    arguments: tuple[str, ...]

    def of(self, world: World) -> str:
        """The arguments' list."""
        names = msgspec.structs.asdict(world)
        return ", ".join(argument.format(**names) for argument in self.arguments)


QUESTIONS: Final = {
    "head": Question(statements("trail")["head"], ("'{tenant}'", "'{one}'")),
    "a slice of the patrol": Question(
        statements("trail")["records"], ("'{tenant}'", "'{one}'", "600", "32", "262144")
    ),
    "a record": Question(statements("trail")["row_at"], ("'{tenant}'", "'{one}'", "600")),
    "records of spans": Question(
        statements("trail")["rows_of"], ("'{tenant}'", "ARRAY['{one}']::uuid[]", "ARRAY[600]", "NULL")
    ),
    "calls below spans": Question(
        statements("spans")["calls_below"],
        (
            "'{tenant}'", "'{tenant}'", rf"ARRAY['\x{TRACE.hex()}']::bytea[]", "'2020-01-01'", "ARRAY['x']",
            "ARRAY[]::bigint[]", "'{one}'", "'bot'",
        ),
    ),
    "the queue": Question(
        statements("waiting")["queue"],
        ("'{tenant}'", "'1970-01-01'", "'{tenant}'", "''", "100", "NULL"),
    ),
}  # fmt: skip


@pytest.fixture
async def unwatched(admin: asyncpg.Connection) -> None:
    """Autovacuum has not come yet."""
    for table in (TRAIL, "agents", "spans", "sendings", "waiting_actions"):
        await admin.execute(f"ALTER TABLE trails.{table} SET (autovacuum_enabled = off)")


async def fill(pool: Pool, tenant: UUID) -> World:
    """Writes as a service does in its first minute."""
    chains = [await started_chain(pool, tenant, name) for name in ("one", "other")]
    for chain in chains:
        rows = [
            chain.row("approval_required", {"action_id": "a"}), *[chain.row() for _ in range(RECORDS)]
        ]  # fmt: skip
        spans = [
            SpanRow(tenant, TRACE, (2 * number + (chain is chains[0])).to_bytes(8), chain.log_uuid, row.seq)
            for number, row in enumerate(rows[:: RECORDS // 50])
        ]
        await db.ledger.append(pool, rows, spans=sorted(spans, key=lambda span: span.span_id))
    return World(tenant, chains[0].log_uuid, chains[1].log_uuid)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A step of a plan and all below it."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


async def ways(connection: asyncpg.Connection, world: World, name: str) -> set[str]:
    """By which indexes the session, as it plans it, reads the trail; a scan of the table is one too."""
    said = json.loads(
        await connection.fetchval(
            f"EXPLAIN (FORMAT JSON) EXECUTE {prepared(name)} ({QUESTIONS[name].of(world)})"
        )
    )
    return {
        step.get("Index Name", step["Node Type"])
        for step in nodes(said[0]["Plan"])
        if step.get("Relation Name") == TRAIL
    }


def prepared(name: str) -> str:
    """What the statement is called in a session."""
    return name.replace(" ", "_")


# --- the right index ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("plans", ["force_generic_plan", "force_custom_plan"])
async def test_look_ups_go_by_the_key_as_soon_as_statistics_are_gathered(
    pool: Pool, app: asyncpg.Connection, tenant: UUID, plans: str
) -> None:
    """Those that a session has planned before there were rows, too."""
    await app.execute(f"SET plan_cache_mode = {plans}")
    await app.execute("SELECT set_config('trails.tenants', $1, false)", str(tenant))
    for name, question in QUESTIONS.items():
        await app.execute(f"PREPARE {prepared(name)} AS {question.statement}")
        await ways(app, World(tenant, uuid4(), uuid4()), name)
    world = await fill(pool, tenant)
    before = {name: await ways(app, world, name) for name in QUESTIONS}
    assert [name for name, found in before.items() if found != {"trail_pkey"}], "what it is for"
    assert TRAIL in await StatisticsKeeper(pool).round()
    after = {name: await ways(app, world, name) for name in QUESTIONS}
    assert after == {name: {"trail_pkey"} for name in QUESTIONS}


# --- when ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unwatched")
async def test_statistics_are_gathered_anew_when_a_table_has_grown_to_four_times_its_size(
    pool: Pool, maker: Maker
) -> None:
    keeper = StatisticsKeeper(pool)
    assert await keeper.round() == [], "three records are no table to plan for"
    await db.ledger.append(pool, maker.rows(100))
    assert await keeper.round() == [TRAIL]
    assert await keeper.round() == []
    await db.ledger.append(pool, maker.rows(100))
    assert await keeper.round() == [], "twice as much is not enough"
    await db.ledger.append(pool, maker.rows(400))
    assert await keeper.round() == [TRAIL]
    assert await keeper.round() == []


async def test_an_index_that_was_made_on_rows_does_not_pass_for_statistics(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    """As the last part of a restore makes all of them: then the number of rows is known, and nothing else."""
    await admin.execute(f"ALTER TABLE trails.{TRAIL} SET (autovacuum_analyze_threshold = 2000000000)")
    await db.ledger.append(pool, maker.rows(100))
    await admin.execute(f"REINDEX TABLE trails.{TRAIL}")
    known = f"SELECT reltuples > 0 FROM pg_class WHERE oid = 'trails.{TRAIL}'::regclass"
    assert await admin.fetchval(known) is True
    assert await StatisticsKeeper(pool).round() == [TRAIL]
    assert await admin.fetchval(f"SELECT count(*) > 0 FROM pg_stats WHERE tablename = '{TRAIL}'") is True


# --- whom it may hinder: nobody ----------------------------------------------------------------------------


@pytest.mark.usefixtures("unwatched")
async def test_a_table_that_autovacuum_is_at_is_left_to_it(
    pool: Pool, admin: asyncpg.Connection, tenant: UUID
) -> None:
    await fill(pool, tenant)
    keeper = StatisticsKeeper(pool)
    async with admin.transaction():
        await admin.execute(f"LOCK TABLE trails.{TRAIL} IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM, ANALYZE
        assert TRAIL not in await keeper.round()
        assert await keeper.round() == [], "it does not come back to it in the same breath"
    assert await keeper.round() == [TRAIL]


@pytest.mark.usefixtures("unwatched")
async def test_a_table_that_is_being_altered_is_not_waited_for_and_failures_are_told_once(
    pool: Pool, admin: asyncpg.Connection, tenant: UUID, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(pool, tenant)
    keeper = StatisticsKeeper(pool)
    async with admin.transaction():
        await admin.execute(f"LOCK TABLE trails.{TRAIL} IN ACCESS EXCLUSIVE MODE")
        for _ in range(2):
            assert await keeper.round() == []
    assert [record.levelname for record in caplog.records if record.name == "trails.statistics"] == [
        "WARNING"
    ]
    assert keeper.pause_secs == 4 * ROUND_SECS <= MOST_SECS
    assert TRAIL in await keeper.round()
    assert keeper.pause_secs == ROUND_SECS


async def test_nobody_but_the_service_may_ask_for_it(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch(
        "SELECT r.rolname FROM pg_roles AS r WHERE r.rolname IN ('trails_app', 'trails_auditor') "
        "AND has_function_privilege(r.oid, 'trails.refresh_statistics_v1()', 'EXECUTE')"
    )
    assert [row["rolname"] for row in rows] == ["trails_app"]
    assert await admin.fetchval(
        "SELECT NOT EXISTS (SELECT FROM pg_proc AS p, aclexplode(p.proacl) AS x "
        "WHERE p.proname = 'refresh_statistics_v1' AND x.grantee = 0)"
    )
