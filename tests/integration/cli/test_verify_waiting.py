"""``trails verify`` on the index of what waits for a person: what it says must be what the records say."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from app.ledger import Ledger
from db.pool import create_pool
from tests.integration.cli.conftest import Trail
from tests.support.cli import faults
from tests.support.ledgers import MASTER_KEY, Caller

ROWS = "trails.waiting_actions"
OF_RECORD = (
    f"INSERT INTO {ROWS} SELECT tenant_id, log_uuid, trace_data ->> 'action_id', seq, created_at"
    " FROM trails.agent_audit_trails"
    " WHERE kind = 'approval_required' AND trace_data ->> 'action_id' = 'act-2'"
)
STRAYS: dict[str, tuple[str, str]] = {
    "nothing": (f"DELETE FROM {ROWS}", "does not name action act-1, held by record 3 of chain"),
    "an action that nobody asked for": (
        f"INSERT INTO {ROWS} SELECT tenant_id, log_uuid, 'act-9', seq, held_at FROM {ROWS}",
        "names action act-9 as held by record 3 of chain",
    ),
    "one that was decided": (OF_RECORD, "and a decision is on record"),
    "another record": (f"UPDATE {ROWS} SET seq = seq + 1", "as held by record 4 of chain"),
    "a record that is not there": (f"UPDATE {ROWS} SET seq = 999", "which does not hold it so"),
    "another time": (f"UPDATE {ROWS} SET held_at = 'infinity'", "which does not hold it so"),
}


def meddle(trail: Trail, statement: str) -> None:
    """A superuser's statement on the index with its triggers off, which are switched on again afterwards."""
    with psycopg.connect(trail.database.admin_url) as connection:
        connection.execute(f"ALTER TABLE {ROWS} DISABLE TRIGGER ALL".encode())
        connection.execute(statement.encode())
        for name in ("check_waiting", "refuse_change_statement"):
            connection.execute(f"ALTER TABLE {ROWS} ENABLE ALWAYS TRIGGER {name}".encode())


async def hold(url: str) -> None:
    """Three actions of ``mailer`` that were held: one waits, asked for twice; the others were decided."""
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        mailer = Caller(ledger, "mailer")
        await mailer.create()
        for to in ("a", "b", "c", "a"):
            await mailer.ask("email", {"to": to})
        await mailer.approve("act-2")
        await mailer.reject("act-3")
        await ledger.close()


@pytest.mark.parametrize("kind", STRAYS)
def test_what_the_index_of_what_waits_says_wrongly_is_named(trail: Trail, kind: str) -> None:
    asyncio.run(hold(trail.database.app_url))
    assert trail.fetch(f"SELECT action_id FROM {ROWS}") == [("act-1",)]
    assert trail.verify().code == 0
    statement, said = STRAYS[kind]
    meddle(trail, statement)
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [])
    [finding] = result.json["findings"]
    assert finding["what"] == "chain default/mailer"
    assert said in finding["reason"]
    assert trail.verify("--agent", "mailer").json["findings"] == [finding]
    assert trail.verify("--agent", "other").code == 0
