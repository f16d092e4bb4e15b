"""Verifying from the console: in the background, on record, with a verdict that says where and why."""

from __future__ import annotations

import datetime as dt
import re
import time
from html import unescape

import psycopg
import pytest

from app.console.verifying import MEANINGS
from app.errors import ChainError
from tests.integration.console.browser import Visit
from tests.integration.console.conftest import key_of
from tests.integration.console.test_agent_pages import administrative
from tests.integration.http.client import Client
from tests.support.ledgers import TABLE
from tests.support.postgres import Database
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

SCOUT = "agent_id = 'scout'"
SECONDS = 20.0


def tamper(database: Database, *statements: str) -> None:
    """A superuser's statements, with nothing that hinders them."""
    with psycopg.connect(database.admin_url) as admin:
        admin.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER ALL".encode())
        query = "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
        for (name,) in admin.execute(query.encode(), [TABLE]).fetchall():
            admin.execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT {name}".encode())
        for statement in statements:
            admin.execute(statement.encode())


def verified(visit: Visit, agent: str = "scout") -> str:
    """Presses the button and looks until there is a verdict; the page."""
    begun = visit.post(f"/agents/{agent}/verify", {"csrf": visit.csrf(f"/agents/{agent}/verify")})
    assert begun.status == 303, begun.text
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        html = visit.get(begun.headers["location"]).text
        if "/progress" not in html:
            return html
    raise AssertionError("no verdict came")


def faults(html: str) -> list[tuple[str, str]]:
    """Record and class of each fault of a page."""
    rows = re.findall(
        r'<td class="number">(.*?)</td>\s*<td><span class="tag bad">([a-z]+)</span>', html, re.DOTALL
    )
    return [(re.sub("<[^>]*>", "", place).strip(), kind) for place, kind in rows]


@pytest.fixture
def filled(operator: Client) -> Client:
    """An agent with some records."""
    operator.create("scout")
    listed = [{"type": "tick", "data": f"value {number}"} for number in range(12)]
    assert operator.post("/v1/agents/scout/events", {"events": listed}).status == 200
    return operator


def assert_tells_when(html: str) -> None:
    """A verdict is one of a moment: the page that shows it later says of which."""
    found = re.search(r'Ended <time datetime="([^"]+)"[^>]*>[^<]+ UTC</time>', html)
    assert found is not None
    assert abs(dt.datetime.fromisoformat(found[1]).timestamp() - time.time()) < 600


def test_a_sound_chain_is_called_intact_up_to_what_is_known(signed_in: Visit, filled: Client) -> None:
    html = verified(signed_in)
    status = filled.get("/v1/agents/scout").json
    assert "Intact." in html
    assert "14 records verified" in html
    assert "complete up to what this database knows" in html
    assert_tells_when(html)
    assert f"{status['head']['seq']}:{status['head']['hash']}" in html
    [told] = administrative(filled, "verified")
    assert (told["agent_id"], told["intact"], told["length"]) == ("scout", True, 14)
    assert "Intact." in signed_in.get("/agents/scout/verify").text


COPIED = (
    "tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at, prev_hash, hash, signature, "
    "key_id, signed_text"
)
SWAPPED = "signed_text, hash, signature, kind, actor, prev_hash, session_id, created_at, idempotency_key"
PAIRS = ", ".join(f"{name} = o.{name}" for name in SWAPPED.split(", "))

COPIES = {
    "content": (
        5,
        f"UPDATE {TABLE} SET signed_text = replace(signed_text, 'value', 'VALUE') WHERE {SCOUT} AND seq = 5",
    ),
    "mirror": (5, f"UPDATE {TABLE} SET actor = 'another' WHERE {SCOUT} AND seq = 5"),
    "order": (5, f"DELETE FROM {TABLE} WHERE {SCOUT} AND seq = 5"),
    "signature": (
        4,
        (
            f"UPDATE {TABLE} AS t SET signature = o.signature FROM {TABLE} AS o WHERE t.{SCOUT} AND t.seq = 4"
            " AND o.log_uuid = t.log_uuid AND o.seq = 3"
        ),
    ),
    "fork": (
        5,
        (
            f"ALTER TABLE {TABLE} DROP CONSTRAINT trail_pkey; INSERT INTO {TABLE} ({COPIED}) "
            f"SELECT {COPIED} FROM {TABLE} WHERE {SCOUT} AND seq = 5"
        ),
    ),
}


@pytest.mark.parametrize("fault", COPIES)
def test_c31_each_kind_of_tampering_is_named_with_its_place_and_what_it_means(
    signed_in: Visit, filled: Client, database: Database, fault: str
) -> None:
    seq, change = COPIES[fault]
    tamper(database, *change.split("; "))
    html = verified(signed_in)
    assert faults(html) == [(str(seq), fault)]
    assert f'href="/agents/scout/log/{seq}"' in html
    assert MEANINGS[fault] in unescape(html)
    assert "Intact" not in html
    assert_tells_when(html)
    [told] = administrative(filled, "verified")
    assert told["intact"] is False
    assert "quarantined" in signed_in.get("/").text
    # The place that the verdict leads to can be looked at, gap or not.
    assert signed_in.get(f"/agents/scout/log/{seq}").status == (404 if fault == "order" else 200)
    assert signed_in.get(f"/agents/scout/log?seq={seq}").status == 200


def test_c31_records_that_changed_places_are_out_of_order(
    signed_in: Visit, filled: Client, database: Database
) -> None:
    del filled
    tamper(
        database,
        f"UPDATE {TABLE} AS t SET {PAIRS} FROM (SELECT * FROM {TABLE}) AS o"
        f" WHERE t.{SCOUT} AND o.{SCOUT} AND t.seq IN (5, 6) AND o.seq = 11 - t.seq",
    )
    assert faults(verified(signed_in))[0] == ("5", "order")


def test_c31_every_class_of_a_failure_has_words() -> None:
    def leaves(kind: type[ChainError]) -> set[str]:
        return {kind.fault}.union(*map(leaves, kind.__subclasses__()))

    assert set(MEANINGS) == leaves(ChainError)


def test_a_chain_that_verifies_again_is_released(
    signed_in: Visit, filled: Client, database: Database
) -> None:
    change = f"UPDATE {TABLE} SET actor = '{{}}' WHERE {SCOUT} AND seq = 5"
    tamper(database, change.format("another"))
    assert faults(verified(signed_in)) == [("5", "mirror")]
    tamper(database, change.format("operator"))
    assert "Intact." in verified(signed_in)
    assert filled.get("/v1/agents/scout").status == 200


def test_a_checkpoint_kept_elsewhere_finds_a_tail_that_was_cut(
    signed_in: Visit, filled: Client, database: Database
) -> None:
    head = filled.get("/v1/agents/scout").json["head"]
    place = f"/agents/scout/verify?checkpoint={head['seq']}:"

    def said(checkpoint: str) -> str:
        found = re.search(r'role="status"><strong>(Yes|No)\.</strong>([^<]*)', signed_in.get(checkpoint).text)
        assert found is not None, checkpoint
        return found[1] + found[2]

    assert said(place + head["hash"]).startswith("Yes The chain still has this record")
    assert "another hash" in said(place + "0" * 64)
    assert said("/agents/scout/verify?checkpoint=x").startswith("No This is no checkpoint")
    tamper(database, f"DELETE FROM {TABLE} WHERE {SCOUT} AND seq >= 10")
    assert "no record 13 any more; its last one is 9" in said(place + head["hash"])


def test_an_auditor_verifies_under_her_own_name(visit: Visit, filled: Client) -> None:
    visit.sign_in(key_of(filled, "auditor", "Grace"))
    assert "Intact." in verified(visit)
    assert [one["actor"] for one in administrative(filled, "verified")] == ["Grace"]
    assert visit.post("/agents/scout/verify", {"csrf": "x"}).status == 403


def test_the_administration_is_verified_like_any_chain(signed_in: Visit, filled: Client) -> None:
    del filled
    assert "Intact." in verified(signed_in, "_administration")


def test_a_run_of_another_process_is_asked_for_again_and_in_the_end_given_up(
    signed_in: Visit, filled: Client
) -> None:
    del filled
    run = "/agents/scout/verify/progress?run=0123456789abcdef"
    assert "Another process" in signed_in.get(run).text
    assert "misses=8" in signed_in.get(run + "&misses=7").text
    lost = signed_in.get(run + "&misses=60").text
    assert "not known any more" in lost
    assert "/progress" not in lost
    assert signed_in.get("/agents/scout/verify?run=<x>").status == 400
