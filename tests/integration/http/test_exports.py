"""Exports over HTTP: whole, in one snapshot, on record, or clearly broken off (cases T09, H26, H24, T15)."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from typing import Any

import pyarrow.parquet
import pytest

from app.chain.export import verify_export
from app.chain.keys import PublicKey
from app.chain.statement import Statement, read_statement
from app.ledger.export.wanted import VIEWS
from tests.integration.http.client import Client

FORMS = ("jsonl", "csv", "parquet", "bundle")


@pytest.fixture
def agent(operator: Client) -> Client:
    """An agent with some actions on record."""
    agent = operator.create("bot")
    for number in range(5):
        assert agent.post("/v1/agents/bot/actions", {"tool": "search", "input": number}).status == 200
    return agent


def exported(client: Client, query: str = "", path: str = "/v1/export") -> bytes:
    """The whole of an export."""
    reply = client.get(f"{path}?{query}")
    assert reply.status == 200, reply.raw
    return reply.raw


def statement_of(raw: bytes) -> Statement:
    """The statement at the end of JSON lines, whose signature and digest are checked."""
    lines = raw.decode().splitlines()
    found = read_statement(lines[-1], "trailer")
    content = raw[: raw.rindex(b'{"form":')]
    assert found.says["sha256"] == hashlib.sha256(content).hexdigest()
    assert found.says["bytes"] == len(content)
    return found


def told(operator: Client) -> list[dict[str, Any]]:
    """What the administration chain says of exports."""
    records = operator.get("/v1/agents/_administration/log").json["records"]
    acts = [record["payload"] for record in records if record["kind"] == "admin"]
    return [act for act in acts if act["act"].startswith("export")]


def test_an_agents_chain_is_exported_between_two_lines_that_tell_of_it(
    operator: Client, agent: Client
) -> None:
    del agent
    raw = exported(operator, path="/v1/agents/bot/export")
    log = operator.get("/v1/agents/bot/log").json
    first, *records, end, _ = raw.decode().splitlines()
    assert json.loads(first)["export"]["complete_chains"] is True
    assert [json.loads(line) for line in records] == log["records"]
    head = {"seq": json.loads(end)["chain"]["last_seq"], "hash": json.loads(end)["chain"]["head_hash"]}
    assert head == log["head"]
    found = statement_of(raw)
    assert found.says["rows"] == len(records) == 12
    assert found.signed_by is not None
    assert found.signed_by.hex == operator.get("/v1/public-key").json["public_key"]


def test_bare_lines_are_the_records_alone_for_any_verifier(operator: Client, agent: Client) -> None:
    del agent
    raw = exported(operator, "trailer=false", "/v1/agents/bot/export")
    key = PublicKey.load(operator.get("/v1/agents/bot").json["public_key"])
    report = verify_export(raw.splitlines(keepends=True), key)
    assert (report.verdict.exit_code, report.checked) == (0, 12)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_exported_in_every_form(operator: Client, agent: Client, view: str) -> None:
    del agent
    bounds = "since=2020-01-01&until=2999-01-01&agent=bot"
    lines = exported(operator, f"view={view}&{bounds}").decode().splitlines()
    rows = [json.loads(line) for line in lines[1:-1]]
    assert len(rows) == {"actions": 5, "agents_status": 1}.get(view, 0)
    table = list(csv.reader(io.StringIO(exported(operator, f"view={view}&{bounds}&format=csv").decode())))
    assert len(table) == len(rows) + 2
    assert {len(row) for row in table} == {len(table[0])}
    parquet = exported(operator, f"view={view}&{bounds}&format=parquet")
    assert pyarrow.parquet.read_table(io.BytesIO(parquet)).num_rows == len(rows)
    assert exported(operator, f"view={view}&until=2020-01-01").count(b"\n") == 2


@pytest.mark.parametrize("form", FORMS)
def test_t15_an_export_is_on_record_from_its_beginning_to_its_end(
    operator: Client, agent: Client, form: str
) -> None:
    del agent
    exported(operator, f"format={form}&agent=bot")
    begun, ended = told(operator)
    assert begun["act"] == "export_begun"
    assert begun["export"] == ended["export"]
    assert (ended["act"], ended["rows"], ended["format"]) == ("exported", 12, form)
    assert ended["filter"]["agents"] == ["bot"]
    head = operator.get("/v1/agents/bot/log").json["head"]
    assert [(one["seq"], one["hash"]) for one in ended["heads"]] == [(head["seq"], head["hash"])]


def test_t15_an_export_of_the_administration_tells_of_itself_once(operator: Client, agent: Client) -> None:
    """No loop: it holds the record that it began, and its own end comes after it."""
    del agent
    acts = []
    for _ in range(2):
        lines = exported(operator, "agent=_administration").decode().splitlines()
        records = [json.loads(line) for line in lines if line.startswith('{"actor"')]
        acts.append(
            [r["payload"]["act"] for r in records if r["payload"].get("act", "").startswith("export")]
        )
    assert acts == [["export_begun"], ["export_begun", "exported", "export_begun"]]
    assert len(told(operator)) == 4


def test_what_cannot_be_exported_is_refused_and_not_on_record(operator: Client, agent: Client) -> None:
    del agent
    for query, status in (
        ("agent=nobody", 404),
        ("view=secrets", 400),
        ("view=actions&view=scars", 400),
        ("format=xlsx", 400),
        ("format=bundle&since=2026-01-01", 400),
        ("format=bundle&view=actions", 400),
        ("since=2026-01-02&until=2026-01-02", 400),
        ("since=yesterday", 400),
        ("trailer=no", 400),
        ("limit=5", 400),
        ("token=x", 400),
    ):
        assert operator.get(f"/v1/export?{query}").status == status, query
    assert operator.get("/v1/agents/nobody/export").status == 404
    assert told(operator) == []


def test_an_export_is_for_operators_and_auditors(operator: Client, agent: Client) -> None:
    for role, status in (("auditor", 200), ("writer", 403)):
        key = operator.post("/v1/keys", {"role": role, "name": role}).json["token"]
        assert operator.as_(key).get("/v1/export").status == status
        assert operator.as_(key).get("/v1/agents/bot/export").status == status
    assert agent.get("/v1/agents/bot/export").status == 403
    assert operator.as_(None).get("/v1/export").status == 401


def test_h17_an_export_is_never_kept_by_a_cache_and_has_a_plain_name(operator: Client, agent: Client) -> None:
    del agent
    for form in FORMS:
        headers = operator.get(f"/v1/agents/bot/export?format={form}").headers
        assert headers["cache-control"] == "no-store"
        name = headers["content-disposition"].removeprefix('attachment; filename="').removesuffix('"')
        assert name.startswith("default-bot-2")
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789TZ.-_")
        assert headers["trails-partial"] is None
