"""``trails verify`` on the index of sendings: what it says must be what the records hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from app.chain.record import Draft
from app.ledger import Ledger
from app.ledger.post import Entry
from db.pool import create_pool
from tests.integration.cli.conftest import Trail
from tests.support.cli import faults
from tests.support.ledgers import MASTER_KEY, Caller
from tests.support.view_rows import Json, fragment, node

SENT = (
    "INSERT INTO trails.sendings (tenant_id, session_id, node_id, log_uuid, seq, guarded, tool, status)"
    " SELECT {} FROM trails.sendings WHERE seq = 15"
)
ROW = "tenant_id, session_id, {node_id}, log_uuid, {seq}, {guarded}, {tool}, {status}"


def row(**members: str) -> str:
    """The row of record 15 with some members changed."""
    names = ("node_id", "seq", "guarded", "tool", "status")
    return ROW.format(**{name: members.get(name, name) for name in names})


STRAYS: dict[str, tuple[Sequence[str], str]] = {
    "a node of nowhere": ([SENT.format(row(node_id="gen_random_uuid()"))], "does not hold all of them"),
    "a record that is not there": ([SENT.format(row(seq="999"))], "is not there"),
    "another session": (
        [SENT.format(row().replace("session_id", "log_uuid", 1))],
        "does not hold all of them",
    ),
    "another status": (["UPDATE trails.sendings SET status = 'success' WHERE seq = 15"], "does not hold"),
    "another tool": (["UPDATE trails.sendings SET tool = NULL WHERE seq = 15"], "does not hold"),
    "the guard's word": (["UPDATE trails.sendings SET guarded = true WHERE seq = 15"], "does not hold"),
    "less than it should": (
        ["DELETE FROM trails.sendings WHERE seq = 16"],
        "does not name record 16 of chain",
    ),
    "nothing": (["DELETE FROM trails.sendings"], "does not name record 15 of chain"),
}


def meddle(trail: Trail, *statements: str) -> None:
    """A superuser's statements on the index with its triggers off, which are switched on again afterwards."""
    with psycopg.connect(trail.database.admin_url) as connection:
        connection.execute(b"ALTER TABLE trails.sendings DISABLE TRIGGER ALL")
        for statement in statements:
            connection.execute(statement.encode())
        for name in ("check_sendings", "refuse_change_row", "refuse_change_statement"):
            connection.execute(f"ALTER TABLE trails.sendings ENABLE ALWAYS TRIGGER {name}".encode())


async def post(url: str) -> None:
    """Two records of one session in the chain of ``scout`` (15 and 16), one in that of ``other``."""
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        await Caller(ledger, "scout").post(entry(node("a", status="failed"), {"node_type": "TOOL_CALL"}))
        await Caller(ledger, "scout").post(entry(node("a", status="success"), node("b", None, "PLANNING")))
        await Caller(ledger, "other").post(entry(node("c", status="x" * 65, name="n" * 1025)))
        await ledger.close()


def entry(*nodes: Json) -> Entry:
    payload: Any = fragment(*nodes)
    return Entry(Draft("trace", payload, "operator"))


@pytest.mark.parametrize("kind", STRAYS)
def test_what_the_index_of_sendings_says_wrongly_is_named(trail: Trail, kind: str) -> None:
    asyncio.run(post(trail.database.app_url))
    assert trail.fetch("SELECT count(*) FROM trails.sendings") == [(4,)]
    assert trail.verify().code == 0
    statements, said = STRAYS[kind]
    meddle(trail, *statements)
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [])
    findings = result.json["findings"]
    assert {finding["what"] for finding in findings} == {"chain default/scout"}
    assert said in findings[0]["reason"]
    assert trail.verify("--agent", "scout").json["findings"] == findings
    assert trail.verify("--agent", "other").code == 0


def test_a_record_that_two_chains_at_once_left_out_is_no_finding(trail: Trail) -> None:
    """Each sees the other's record only from its next one on; that shows a row more at most."""
    asyncio.run(post(trail.database.app_url))
    meddle(trail, "DELETE FROM trails.sendings WHERE seq < 15")
    assert trail.verify().code == 0
