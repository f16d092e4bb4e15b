"""A database with two agents in it, and running ``trails serve`` processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

import db.ledger
from app.chain.link import seal_all
from app.chain.record import Draft
from app.guard.fields import as_object
from app.ledger import Ledger
from app.ledger.mirror import row_of
from app.principal import Permission
from db.pool import create_pool
from tests.support.cli import Result, run_trails, verify
from tests.support.jobs import shared_work
from tests.support.ledgers import MASTER_KEY, Caller, posted
from tests.support.postgres import Database, Server, fresh_database
from tests.support.server import server, servers, start_server

__all__ = ["server", "servers", "start_server"]

TRAIL = "trails.agent_audit_trails"


class Trail(msgspec.Struct, frozen=True):
    """A database with the chains of ``scout`` (15 records) and ``other`` (4) of the default tenant."""

    database: Database
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment of an auditor who has the master key and sees every tenant."""
        return self.with_url(self.database.admin_url)

    def with_url(self, url: str, *, master_key: bytes | None = MASTER_KEY) -> dict[str, str]:
        """The environment of somebody else."""
        env = {"TRAILS_DATABASE_URL": url, "TRAILS_DATA_DIR": str(self.folder / "data")}
        return env if master_key is None else {**env, "TRAILS_MASTER_KEY": master_key.hex()}

    def verify(self, *arguments: object, env: dict[str, str] | None = None, compare: bool = True) -> Result:
        """``trails verify`` on the database, in its three forms; and shared by workers, which must agree."""
        env = self.env if env is None else env
        found = verify(*arguments, "--jobs", 1, env=env)
        if compare and "--record" not in arguments:  # which changes what the next one finds
            with shared_work():
                shared = run_trails("verify", *arguments, "--jobs", 3, "--json", env=env)
            assert (shared.code, shared.json) == (found.code, found.json), shared.out
        return found

    def trails(self, *arguments: object) -> Result:
        """Any ``trails`` command on the database."""
        return run_trails(*arguments, env=self.env)

    def head(self, agent_id: str = "scout") -> str:
        """The head of a chain as ``seq:hash``."""
        row = self.fetch(
            f"SELECT seq || ':' || hash FROM {TRAIL} WHERE agent_id = %s ORDER BY seq DESC LIMIT 1",
            agent_id,
        )
        return str(row[0][0])

    def fetch(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        """A superuser's query."""
        with psycopg.connect(self.database.admin_url) as connection:
            return connection.execute(statement.encode(), arguments).fetchall()

    def take_snapshots(self, forged: str | None = None) -> None:
        """A snapshot every four records of ``scout``; at last one that is false, or that nothing vouches for.

        Args:
            forged: which fault the last one is: fold or kind.
        """
        asyncio.run(_take_snapshots(self.database.app_url, forged))

    def tamper(self, *statements: str, drop_checks: bool = False) -> None:
        """A superuser's statements with all triggers off, which are switched on again afterwards."""
        with psycopg.connect(self.database.admin_url) as connection:
            connection.execute(f"ALTER TABLE {TRAIL} DISABLE TRIGGER ALL".encode())
            connection.execute(b"ALTER TABLE trails.agents DISABLE TRIGGER ALL")
            connection.execute(b"ALTER TABLE trails.signing_keys DISABLE TRIGGER ALL")
            if drop_checks:
                for name in self._checks(connection):
                    connection.execute(f"ALTER TABLE {TRAIL} DROP CONSTRAINT {name}".encode())
            for statement in statements:
                connection.execute(statement.encode())
            for table in (TRAIL, "trails.agents", "trails.signing_keys"):
                for trigger in self._triggers(connection, table):
                    connection.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}".encode())

    def _triggers(self, connection: psycopg.Connection[Any], table: str) -> list[str]:
        rows = connection.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND NOT tgisinternal", (table,)
        )
        return [row[0] for row in rows]

    def _checks(self, connection: psycopg.Connection[Any]) -> list[str]:
        rows = connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'", (TRAIL,)
        )
        return [row[0] for row in rows]


@pytest.fixture(scope="session")
def filled(postgres: Server, template: NoopExecutor) -> Iterator[str]:
    """The name of a database with two agents, for clones."""
    with fresh_database(postgres, template.template_dbname) as database:
        asyncio.run(_fill(database.app_url))
        yield database.name


@pytest.fixture
def trail(postgres: Server, filled: str, tmp_path: Path) -> Iterator[Trail]:
    """A database with two agents, of this test alone."""
    with fresh_database(postgres, filled) as database:
        yield Trail(database, tmp_path)


async def _fill(url: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        scout, other = Caller(ledger, "scout"), Caller(ledger, "other")
        await scout.create(key="made once")
        for number in range(4):
            value = {
                "q": f"ümlaut {number}",
                "half": 0.5,
                "tiny": 1e-7,
                "huge": 1e300,
                "long": 10**30,
                "yes": True,
            }
            decision = await scout.ask("search", value, key=f"ask {number}")
            await scout.report(decision.action_id, "failure" if number == 1 else "success", "done")
        await other.create()
        await other.ask("search")
        await ledger.close()


async def _take_snapshots(url: str, forged: str | None) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY, snapshot_every=4)
        scout = Caller(ledger, "scout")
        for number in range(6):
            await scout.ask("search", {"n": number})
            await scout.post(posted({"type": "t"}))
        chain = await ledger._chain(scout.may(Permission.READ_STATUS))
        if forged:
            draft = chain.snapshot()
            payload = {**draft.payload, "state": {**as_object(draft.payload["state"], "state"), "allowed": 0}}
            keys = await ledger._keystore.of(chain.id.tenant_id)
            drafts = [Draft(draft.kind, payload, draft.actor)]
            if forged == "kind":
                drafts.insert(0, Draft("unheard-of", {}, "scout"))
            records = seal_all(drafts, chain.head, 0, keys.newest)
            rows = [row_of(chain.id, record, keys.newest.public.key_id) for record in records]
            await db.ledger.append(pool, rows)
        await ledger.close()
