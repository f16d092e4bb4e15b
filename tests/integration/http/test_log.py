"""The log: lines byte for byte, pages without gaps (case H33)."""

from __future__ import annotations

import hashlib
import re

import pytest

from tests.integration.http.client import Client
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

LOG = "/v1/agents/mailer/log"
TAIL = re.compile(rb',"hash":"([0-9a-f]{64})","signature":"[0-9a-f]{128}"\}')


@pytest.fixture
def agent(operator: Client) -> Client:
    made = operator.create("mailer", {"budget": 1_000, "scar_limit": 100, "tools": {"search": {"cost": 1}}})
    for number in range(5):
        made.post(
            "/v1/agents/mailer/actions", {"tool": "search", "input": {"n": number, "f": 1e-7, "é": "→"}}
        )
    return made


def test_records_are_the_signed_bytes(operator: Client, agent: Client) -> None:  # noqa: ARG001
    raw = operator.get(LOG).raw
    head, _, rest = raw.partition(b',"records":[')
    assert re.fullmatch(rb'\{"head":\{"hash":"[0-9a-f]{64}","seq":11\}', head)
    assert rest.endswith(b"]}")
    records, start = [], 0
    for match in TAIL.finditer(rest):
        records.append((rest[start : match.start()] + b"}", match[1]))
        start = match.end() + 1
    assert len(records) == 12
    for text, claimed in records:
        assert hashlib.sha256(b"lineage-audit-v1\n" + text).hexdigest().encode() == claimed


def test_h33_a_walk_sees_every_record_once(operator: Client, agent: Client) -> None:
    seen: list[int] = []
    after = ""
    while page := operator.get(f"{LOG}?limit=4{after}").json["records"]:
        seen += [record["seq"] for record in page]
        after = f"&after={seen[-1]}"
        if len(seen) == 4:  # a record comes in while somebody pages
            agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    assert seen == list(range(14))


def test_h33_after_the_head_there_is_nothing_and_the_head_is_told(operator: Client, agent: Client) -> None:  # noqa: ARG001
    head = operator.get("/v1/agents/mailer").json["head"]
    assert operator.get(f"{LOG}?after={head['seq']}").json == {"records": [], "head": head}
    assert operator.get(f"{LOG}?after=9223372036854775807").json == {"records": [], "head": head}


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=1e9",
        "limit=x",
        "limit=",
        "limit=1.0",
        "limit=%2B1",
        "limit=%D9%A1",
        "limit=1&limit=2",
        "after=-1",
        "after=x",
        "after=",
        "after=1.0",
        "after=9223372036854775808",
        "after=1&after=2",
    ],
)
def test_h33_a_page_that_is_none_is_refused(operator: Client, agent: Client, query: str) -> None:  # noqa: ARG001
    reply = operator.get(f"{LOG}?{query}")
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert query[:5] in reply.json["error"]


@pytest.mark.parametrize("limit", ["5000", "5001", "1000000000", "9999999999999999999"])
def test_h33_a_limit_above_the_most_is_the_most(operator: Client, agent: Client, limit: str) -> None:  # noqa: ARG001
    assert len(operator.get(f"{LOG}?limit={limit}").json["records"]) == 12


def test_h33_agents_are_paged_by_id(operator: Client) -> None:
    for name in ("a", "b", "c"):
        operator.create(name, None)
    first = operator.get("/v1/agents?limit=2").json["agents"]
    assert [entry["agent_id"] for entry in first] == ["a", "b"]
    assert [e["agent_id"] for e in operator.get("/v1/agents?limit=2&after=b").json["agents"]] == ["c"]
    assert operator.get("/v1/agents?after=%2e%2e").status == 400
    assert operator.get("/v1/agents?limit=0").status == 400
