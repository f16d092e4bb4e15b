"""One node after the other beside a session's picture: cheap, and never what does not verify."""

from __future__ import annotations

from typing import Any

import pytest

import db.ledger
import db.sessions
from tests.integration.console.browser import Shown, Visit
from tests.integration.console.reading import text_of
from tests.integration.http.client import Client
from tests.integration.http.posting import SESSION, fragment, node, node_id
from tests.integration.http.serving import Running
from tests.integration.http.test_sessions import TRAIL, tamper
from tests.support.postgres import Database

PLACE = f"/sessions/{SESSION}"


class Reads:
    """How many rows of records the service has asked the database for."""

    def __init__(self) -> None:
        self.of_sessions = 0
        self.alone = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Counts, and lets everything through as it is."""
    counted = Reads()
    whole, alone = db.sessions.rows, db.ledger.rows_of

    async def rows(*given: Any, **named: Any) -> list[db.ledger.TrailRow]:
        found = await whole(*given, **named)
        counted.of_sessions += len(found)
        return found

    async def rows_of(*given: Any, **named: Any) -> list[db.ledger.TrailRow]:
        found = await alone(*given, **named)
        counted.alone += len(found)
        return found

    monkeypatch.setattr(db.sessions, "rows", rows)
    monkeypatch.setattr(db.ledger, "rows_of", rows_of)
    return counted


def post(client: Client, *nodes: dict[str, Any], agent: str = "mailer") -> Any:
    reply = client.post(f"/v1/agents/{agent}/traces", fragment(*nodes))
    assert reply.status == 200, reply.raw
    return reply.json


def beside(visit: Visit, number: int, of: str = "mailer") -> Shown:
    """What a click on a node asks for."""
    return visit.get(f"{PLACE}?node={node_id(number)}&of={of}", HX_Request="true", HX_Target="detail")


@pytest.fixture
def mailer(operator: Client) -> Client:
    """An agent with a session of twenty records."""
    agent = operator.create("mailer", None)
    for number in range(20):
        post(agent, node(number, number - 1 if number else None, name=f"call {number}"))
    return agent


@pytest.mark.usefixtures("mailer")
def test_a_click_verifies_the_nodes_own_record_and_no_other(signed_in: Visit, reads: Reads) -> None:
    assert signed_in.get(f"{PLACE}?node={node_id(3)}").status == 200
    assert (reads.of_sessions, reads.alone) == (20, 1), "the picture and the node beside it"
    for number in (7, 19, 0):
        shown = beside(signed_in, number)
        assert shown.status == 200
        assert f"call {number}</h2>" in shown.text
    assert (reads.of_sessions, reads.alone) == (20, 4)
    path = text_of(beside(signed_in, 3).text)
    assert all(f"call {number} \u203a" in path for number in range(3)), "verified with the picture"
    assert "number 4 , verified" in path


@pytest.mark.usefixtures("mailer")
@pytest.mark.parametrize(
    "change",
    [
        "signed_text = replace(signed_text, 'call 7', 'forged')",
        "actor = 'another'",
        "signature = repeat('0', 128)",
    ],
)
def test_what_was_changed_after_the_picture_was_shown_is_not_shown(
    signed_in: Visit, database: Database, change: str
) -> None:
    assert signed_in.get(PLACE).status == 200
    assert beside(signed_in, 7).status == 200
    tamper(database, f"UPDATE {TRAIL} SET {change} WHERE agent_id = 'mailer' AND seq = 8")
    shown = beside(signed_in, 7)
    assert shown.status == 404
    assert "forged" not in shown.text
    assert "does not verify" in shown.text
    assert beside(signed_in, 6).status == 200
    assert "1 of its 20 records do not verify" in signed_in.get(PLACE).text


def test_what_came_in_since_counts(signed_in: Visit, mailer: Client) -> None:
    assert signed_in.get(PLACE).status == 200
    post(mailer, node(7, 6, name="called anew"))
    shown = text_of(beside(signed_in, 7).text)
    assert "called anew" in shown
    assert "sent it 2 times" in shown
    post(mailer, node(50, None, name="later"))
    assert "later</h2>" in beside(signed_in, 50).text


@pytest.mark.usefixtures("mailer")
def test_what_is_kept_is_one_tenants(signed_in: Visit, service: Running) -> None:
    assert signed_in.get(PLACE).status == 200
    root = Client(service.url, service.root_token)
    made = root.post("/v1/tenants", {"slug": "acme", "name": "Acme", "operator": "Ada"}).json
    stranger = Visit(service.url).sign_in(made["token"])
    assert beside(stranger, 3).status == 404
    own = root.as_(made["token"]).create("mailer", None)
    post(own, node(3, None, name="of another tenant"))
    assert "of another tenant</h2>" in beside(stranger, 3).text
    assert "call 3</h2>" in beside(signed_in, 3).text
