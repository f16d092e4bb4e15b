"""The service behind pgbouncer in transaction mode, where no session can be relied on (case P15)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import asyncpg
import httpx2
import psycopg
import pytest

from app.errors import StartupError
from app.ledger.watch.statistics import StatisticsKeeper
from app.opening import connect, look
from app.settings import Secrets, Settings
from db.cookbook import recipes
from db.pool import Pool, create_pool, tenant_transaction
from tests.integration.http.posting import event, fragment
from tests.support.cli import run_trails
from tests.support.pgbouncer import Pooler, running_pooler
from tests.support.postgres import Database
from tests.support.rows import register_tenant, started_chain
from tests.support.server import MASTER_KEY, ServerProcess, StartServer

ROOT_TOKEN: Final = "root-token-of-the-tests-0123456789abcdef0123"  # noqa: S105  of throw-away servers
SECRETS: Final = Secrets("", bytes.fromhex(MASTER_KEY))

CLIENTS: Final = 4
ROUNDS: Final = 63
REQUESTS_A_ROUND: Final = 8
BUDGET: Final = 40
POLICY: Final = {"budget": BUDGET, "scar_limit": 1_000_000, "tools": {"search": {"cost": 1}}}

SETTINGS: Final = (
    "synchronous_commit",
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
)


# --- who stands between ---------------------------------------------------------------------------------


async def test_p15_a_pooler_is_told_from_the_server_itself(database: Database, pooler: Pooler) -> None:
    assert [(await look(url)).pooled for url in (pooler.app_url, database.app_url)] == [True, False]


async def test_p15_a_pooler_in_session_mode_is_one_too(database: Database) -> None:
    """It drops the settings that a session begins with, or refuses them."""
    with running_pooler(database, mode="session") as between:
        settings = Settings(database_url=between.app_url)
        with pytest.raises(StartupError, match="TRAILS_POOLER=transaction"):
            async with connect(settings, SECRETS):
                pass
        async with connect(Settings(database_url=between.app_url, pooler="transaction"), SECRETS):
            pass


async def test_p15_statistics_are_gathered_through_it(database: Database, pooler: Pooler) -> None:
    with psycopg.connect(database.admin_url, autocommit=True) as admin:
        admin.execute("ALTER TABLE trails.agent_audit_trails SET (autovacuum_enabled = off)")
    async with await create_pool(pooler.app_url, max_size=2, through_pooler=True) as pool:
        await started_chain(pool, await register_tenant(pool, "acme"), records=100)
        assert await StatisticsKeeper(pool).round() == ["agent_audit_trails"]
        assert await StatisticsKeeper(pool).round() == []


def test_p15_without_the_setting_the_service_refuses_to_start(pooler: Pooler, tmp_path: Path) -> None:
    server = ServerProcess(pooler.app_url, tmp_path).start(ready=False)
    assert server.wait() == 1, server.log
    assert "trails: TRAILS_DATABASE_URL leads to a connection pooler" in server.log
    assert "set TRAILS_POOLER=transaction" in server.log
    assert "app-password" not in server.log


async def test_p15_with_the_setting_a_direct_connection_is_served_too(database: Database) -> None:
    async with connect(Settings(database_url=database.app_url, pooler="transaction"), SECRETS) as ledger:
        assert await ledger.administration.tenants()


@pytest.mark.parametrize(
    "command",
    [
        ("migrate",),
        ("run",),
        ("verify",),
        ("query", min(recipes())),
        ("export", "mailer"),
        ("show", "mailer"),
        ("sql-login", "create", "--tenant", "default", "--name", "audit"),
    ],
)
def test_p15_what_relies_on_one_session_asks_for_a_direct_connection(
    database: Database, pooler: Pooler, tmp_path: Path, command: tuple[str, ...]
) -> None:
    env = {
        "TRAILS_DATABASE_URL": pooler.admin_url,
        "TRAILS_POOLER": "transaction",
        "TRAILS_DATA_DIR": str(tmp_path),
        "TRAILS_BIND": "127.0.0.1:0",
        "TRAILS_MASTER_KEY": MASTER_KEY,
    }
    found = run_trails(*command, env=env)
    assert found.code != 0
    assert "needs a direct connection" in found.out + found.err
    with psycopg.connect(database.admin_url) as connection:
        assert connection.execute("SELECT count(*) FROM trails.sql_logins").fetchone() == (0,)


# --- what a transaction begins with, and what is left of it ---------------------------------------------


async def test_p15_p11_settings_come_with_each_transaction_and_end_with_it(
    database: Database, pooler: Pooler
) -> None:
    async with await create_pool(
        pooler.app_url, max_size=3, command_timeout=7.0, through_pooler=True
    ) as pool:
        tenant = await register_tenant(pool, "acme")
        await started_chain(pool, tenant)
        for _ in range(3):
            async with tenant_transaction(pool, tenant) as connection:
                assert await _set(connection) == ("on", "7s", "5s", "30s")
            assert await pool.fetchval("SELECT current_setting('statement_timeout')") == "7s"
            with pytest.raises(ZeroDivisionError):
                await _fail(pool, tenant)
        await _nothing_is_left(pooler.app_url)
    assert [row[0] for row in pooler.console("SHOW POOLS")].count(database.name) >= 1


async def _set(connection: Any) -> tuple[str, ...]:
    return tuple([await connection.fetchval("SELECT current_setting($1)", name) for name in SETTINGS])


async def _fail(pool: Pool, tenant: UUID) -> None:
    async with tenant_transaction(pool, tenant) as connection:
        assert await connection.fetchval("SELECT count(*) FROM trails.agents") == 1
        raise ZeroDivisionError


async def _nothing_is_left(url: str) -> None:
    """Looks at the sessions themselves: both are held at once by transactions that set nothing."""
    bare = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(2)]
    try:
        for connection in bare:
            await connection.execute("BEGIN")
        assert len({await each.fetchval("SELECT pg_backend_pid()") for each in bare}) == 2
        for connection in bare:
            assert not await connection.fetchval("SELECT current_setting('trails.tenants', true)")
            assert await connection.fetchval("SELECT current_setting('statement_timeout')") == "0"
            assert await connection.fetchval("SELECT count(*) FROM trails.agents") == 0
            assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
            assert await connection.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
            await connection.execute("COMMIT")
    finally:
        for connection in bare:
            await connection.close()


async def test_p15_statements_with_values_never_leave_their_session(pooler: Pooler) -> None:
    """Ten at once over two sessions: what one parses, another would execute outside a transaction."""
    async with await create_pool(pooler.app_url, max_size=10, through_pooler=True) as pool:

        async def ask(number: int) -> None:
            for turn in range(20):
                assert await pool.fetchval("SELECT $1::int + $2::int", number, turn) == number + turn
                assert await pool.execute("SELECT $1::int", turn) == "SELECT 1"
                assert await pool.fetch("SELECT generate_series(1, $1::int) AS n", number) is not None
                row = await pool.fetchrow("SELECT $1::text AS t", str(number))
                assert row is not None
                assert row["t"] == str(number)

        await asyncio.gather(*(ask(number) for number in range(10)))


# --- two server processes, four clients, and a schema that is reloaded ----------------------------------


class Race:
    """Requests of two tenants to two servers, in turn, with what they were answered."""

    def __init__(self, servers: list[ServerProcess], tokens: dict[str, str]) -> None:
        self.servers = servers
        self.tokens = tokens
        self.answers: Counter[tuple[str, int]] = Counter()
        self.faults: list[str] = []

    async def client(self, number: int) -> None:
        """One client of one tenant: every kind of request, on its tenant's agents, against both servers."""
        tenant, other = ("acme", "umbrella") if number % 2 else ("umbrella", "acme")
        headers = {"Authorization": f"Bearer {self.tokens[tenant]}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            for turn in range(ROUNDS):
                url = f"{self.servers[(number // 2 + turn) % 2].base_url}/v1"
                agent = f"{url}/agents/bot"
                tool = {"tool": "search", "input": {"of": tenant}}
                for what, asked in (
                    ("ask", http.post(f"{agent}/actions", json=tool)),
                    ("trace", http.post(f"{agent}/traces", json=fragment())),
                    ("event", http.post(f"{agent}/events", json=event(data={"of": tenant}))),
                    ("status", http.get(agent)),
                    ("log", http.get(f"{agent}/log?limit=20&after={turn}")),
                    ("sessions", http.get(f"{url}/sessions?agent=bot")),
                    ("agents", http.get(f"{url}/agents")),
                    ("theirs", http.get(f"{url}/agents/{other}-bot")),
                ):
                    reply = await asked
                    self.answers[what, reply.status_code] += 1
                    if reply.status_code >= 500 or other in reply.text:
                        self.faults.append(f"{what} of {tenant}: {reply.status_code} {reply.text}")


def _reload(database: Database, pooler: Pooler) -> None:
    """What an administrator does: new views, and a pooler that opens its connections again."""
    with psycopg.connect(database.admin_url, autocommit=True) as connection:
        views = connection.execute(
            "SELECT c.oid::regclass::text, pg_get_viewdef(c.oid), array_to_string(c.reloptions, ', ')"
            "  FROM pg_class c WHERE c.relnamespace = 'trails'::regnamespace AND c.relkind = 'v'"
        ).fetchall()
        assert len(views) > 5
        connection.execute("SET ROLE trails_owner")
        for name, definition, options in views:
            connection.execute(f"CREATE OR REPLACE VIEW {name} WITH ({options}) AS {definition}".encode())
        connection.execute("ALTER TABLE trails.agents ALTER COLUMN guarded SET STATISTICS 200")
    pooler.console("RELOAD", "RECONNECT")


async def test_p15_two_servers_race_through_a_pooler_while_the_schema_is_reloaded(
    database: Database, pooler: Pooler, start_server: StartServer, tmp_path: Path
) -> None:
    env = {
        "TRAILS_POOLER": "transaction",
        "TRAILS_ROOT_TOKEN": ROOT_TOKEN,
        "TRAILS_COMMAND_TIMEOUT_SECS": "20",
    }
    servers = [start_server(database_url=pooler.app_url, env=env) for _ in range(2)]
    tokens = {slug: _tenant(servers[0], slug) for slug in ("acme", "umbrella")}
    race = Race(servers, tokens)
    clients = [asyncio.create_task(race.client(number)) for number in range(CLIENTS)]
    wanted = CLIENTS * ROUNDS * REQUESTS_A_ROUND
    for share in (4, 2):
        while race.answers.total() < wanted // share and not all(client.done() for client in clients):
            await asyncio.sleep(0.02)
        await asyncio.to_thread(_reload, database, pooler)
    await asyncio.gather(*clients)

    assert race.faults == []
    assert race.answers.total() == wanted
    each = CLIENTS * ROUNDS
    expected = {
        (what, 200): each for what in ("ask", "trace", "event", "status", "log", "sessions", "agents")
    }
    assert race.answers == {**expected, ("theirs", 404): each}
    for text in [server.log for server in servers] + [pooler.log]:
        assert "prepared statement" not in text
        assert "Traceback" not in text
    sessions = [row for row in pooler.console("SHOW SERVERS") if row[1] == "trails_app"]
    assert 0 < len(sessions) <= 2

    for slug, token in tokens.items():
        status = httpx2.get(
            f"{servers[0].base_url}/v1/agents/bot", headers={"Authorization": f"Bearer {token}"}
        ).json()
        assert (status["spent"], status["remaining"]) == (BUDGET, 0), slug
    env = {
        "TRAILS_DATABASE_URL": database.admin_url,
        "TRAILS_MASTER_KEY": MASTER_KEY,
        "TRAILS_DATA_DIR": str(tmp_path),
    }
    verified = await asyncio.to_thread(run_trails, "verify", env=env)
    assert verified.code == 0, verified.out
    with psycopg.connect(database.admin_url) as connection:
        rows = connection.execute(
            "SELECT t.slug, count(*) FILTER (WHERE r.kind = 'trace'),"
            "       count(*) FILTER (WHERE r.kind = 'event')"
            " FROM trails.agent_audit_trails r JOIN trails.tenants t USING (tenant_id)"
            " WHERE r.agent_id = 'bot' GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert rows == [(slug, each // 2, each // 2) for slug in ("acme", "umbrella")]


def _tenant(server: ServerProcess, slug: str) -> str:
    """A tenant with an agent ``bot`` and one that is named after it; its operator's token."""
    with httpx2.Client(base_url=server.base_url, timeout=30) as http:
        root = {"Authorization": f"Bearer {ROOT_TOKEN}"}
        body = {"slug": slug, "name": slug, "operator": "Ada"}
        made = http.post("/v1/tenants", json=body, headers=root).raise_for_status().json()
        operator = {"Authorization": f"Bearer {made['token']}"}
        for agent_id in ("bot", f"{slug}-bot"):
            agent = {"agent_id": agent_id, "policy": POLICY}
            http.post("/v1/agents", json=agent, headers=operator).raise_for_status()
        return str(made["token"])
