"""Exports over HTTP: whole, in one snapshot, on record, or clearly broken off (cases T09, H26, H24, T15)."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import threading
import zipfile
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import pyarrow.parquet
import pytest

from app.chain.export import verify_export
from app.chain.keys import PublicKey
from app.chain.record import split_line
from app.chain.statement import Statement, read_statement
from app.ledger.export.wanted import VIEWS
from app.settings import Secrets
from tests.integration.http.client import Client
from tests.integration.http.posting import event
from tests.integration.http.serving import serve
from tests.support.faults import rounds
from tests.support.long_chains import fill
from tests.support.pgbouncer import running_pooler
from tests.support.postgres import Database
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

FORMS = ("jsonl", "csv", "parquet", "bundle")

MANY = rounds(4_000, 150_001)
"""Records of a long chain (case T09)."""

SECRETS = Secrets("operator-" * 5, b"\x5e" * 32, "root-" * 8)


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
    assert len(rows) == {"actions": 5, "decisions": 5, "agents_status": 1}.get(view, 0)
    table = list(csv.reader(io.StringIO(exported(operator, f"view={view}&{bounds}&format=csv").decode())))
    assert len(table) == len(rows) + 2
    assert {len(row) for row in table} == {len(table[0])}
    parquet = exported(operator, f"view={view}&{bounds}&format=parquet")
    assert pyarrow.parquet.read_table(io.BytesIO(parquet)).num_rows == len(rows)
    assert exported(operator, f"view={view}&until=2020-01-01").count(b"\n") == 2


def test_all_views_can_be_exported_but_those_that_are_for_looking_into_one_thing(database: Database) -> None:
    with psycopg.connect(database.admin_url) as admin:
        found = admin.execute("SELECT viewname FROM pg_views WHERE schemaname = 'trails'").fetchall()
    assert {row[0] for row in found} - {"session_paths", "chain_check"} == set(VIEWS)


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


@pytest.mark.usefixtures("database")
def test_h17_an_export_is_never_kept_by_a_cache_and_has_a_plain_name(operator: Client, agent: Client) -> None:
    del agent
    for form in FORMS:
        headers = operator.get(f"/v1/agents/bot/export?format={form}").headers
        assert headers["cache-control"] == "no-store"
        name = headers["content-disposition"].removeprefix('attachment; filename="').removesuffix('"')
        assert name.startswith("default-bot-2")
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789TZ.-_")
        assert headers["trails-partial"] is None


# --- all of it (T09) -----------------------------------------------------------------------------------


def counted(raw: bytes, form: str) -> int:
    """Records that a file holds, none of its own lines and rows among them."""
    if form == "jsonl":
        return sum(line.startswith(b'{"actor"') for line in raw.splitlines())
    if form == "csv":
        return sum(1 for _ in csv.reader(io.StringIO(raw.decode()))) - 2
    if form == "parquet":
        return int(pyarrow.parquet.read_table(io.BytesIO(raw), columns=["seq"]).num_rows)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        names = [name for name in archive.namelist() if name.startswith("records/")]
        return sum(archive.read(name).count(b"\n") for name in names)


def rows_told(raw: bytes, form: str) -> int:
    """The count that the file says of itself."""
    if form == "jsonl":
        return int(statement_of(raw).says["rows"])  # type: ignore[call-overload]  # it is an integer
    if form == "csv":
        last = list(csv.reader(io.StringIO(raw.decode())))[-1]
        assert set(last[:-1]) == {""}
        text, about = last[-1], "trailer"
    elif form == "parquet":
        metadata = pyarrow.parquet.read_metadata(io.BytesIO(raw)).metadata
        text, about = metadata[b"lineage-export-v1"].decode(), "trailer"
    else:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            text, about = archive.read("manifest.json").decode().rstrip("\n"), "manifest"
    says = read_statement(text, about).says
    assert says["complete"] is True
    return int(says["rows"])  # type: ignore[call-overload]  # it is an integer


def test_t09_every_record_is_exported_and_counted(database: Database) -> None:
    asyncio.run(fill(database.app_url, SECRETS.master_key, "talker", MANY - 1))
    with serve(database.app_url, known=SECRETS) as running, psycopg.connect(database.admin_url) as admin:
        operator = Client(running.url, running.operator_token)

        def select(where: LiteralString) -> int:
            count = f"SELECT count(*) FROM trails.agent_audit_trails WHERE agent_id = 'talker' AND {where}"
            return int(admin.execute(count).fetchone()[0])  # type: ignore[index]  # one row

        assert select("true") == MANY
        middle = admin.execute(
            "SELECT to_char(max(created_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
            " FROM trails.agent_audit_trails WHERE agent_id = 'talker' AND seq <= 1500"
        ).fetchone()
        assert middle is not None
        at: LiteralString = middle[0]
        for form in FORMS:
            raw = exported(operator, f"format={form}&agent=talker")
            assert counted(raw, form) == rows_told(raw, form) == MANY, form
        for form in FORMS[:3]:
            before = exported(operator, f"format={form}&agent=talker&until={at}")
            after = exported(operator, f"format={form}&agent=talker&since={at}")
            assert counted(before, form) == rows_told(before, form) == select(f"created_at < '{at}'")
            assert counted(after, form) == rows_told(after, form) == select(f"created_at >= '{at}'")
            assert counted(before, form) + counted(after, form) == MANY
            assert select(f"created_at = '{at}'") > 0
        partial = operator.get(f"/v1/export?agent=talker&since={at}")
        assert partial.headers["trails-partial"] == "a filtered export: no complete chain"
        assert "-part-" in partial.headers["content-disposition"]


def test_an_export_is_of_one_moment_while_others_write(operator: Client, agent: Client) -> None:
    """Each chain of it is whole up to a head; what it holds of several agents was true at the same time."""
    operator.create("second", None)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set() and number < 2_000:
            number += 1
            for name in ("bot", "second"):  # always in this order: the first has never less than the second
                operator.post(f"/v1/agents/{name}/events", {**event(), "data": number})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(8):
            raw = exported(operator)
            statement_of(raw)
            records = [json.loads(line) for line in raw.splitlines() if line.startswith(b'{"actor"')]
            chains: dict[str, list[dict[str, Any]]] = {}
            for record in records:
                name = record["payload"].get("log_id", None) if record["seq"] == 0 else name  # noqa: F821
                chains.setdefault(name, []).append(record)
            for chain in chains.values():
                assert [record["seq"] for record in chain] == list(range(len(chain)))
            events = {
                name: [r["payload"]["data"] for r in chain if r["kind"] == "event"]
                for name, chain in chains.items()
            }
            assert 0 <= len(events["bot"]) - len(events["second"]) <= 1
    finally:
        stop.set()
        writer.join()
    del agent


# --- spreadsheets (H24) --------------------------------------------------------------------------------

FORMULAS = (
    '=HYPERLINK("http://x","y")',
    "+1",
    "-1+cmd|' /C calc'!A0",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "  =1+1",
    "\u00a0=1+1",
    "\u200b=1+1",
    "\uff1d1+1",
    "\uff0b1",
    "\uff0d1",
    "\uff20SUM(A1)",
    "\ufe66 1",
)
STRUCTURE = ('a "quoted", cell', "two\nlines", "two\r\nlines", ",;\t|", "'")


def test_h24_formulas_are_neutralised_in_csv_alone(operator: Client, agent: Client) -> None:
    for text in (*FORMULAS, *STRUCTURE):
        node = {"node_id": str(uuid4()), "node_type": "OUTPUT", "name": text, "thought_process": text}
        body = {"session_id": str(uuid4()), "total_nodes": 1, "trace_tree": [node]}
        assert operator.post("/v1/agents/bot/traces", body).status == 200, text
    raw = exported(operator, "view=trace_nodes&format=csv").decode()
    header, *rows, last = list(csv.reader(io.StringIO(raw, newline="")))
    assert {len(row) for row in (*rows, last)} == {len(header)}
    thoughts = [row[header.index("thought_process")] for row in rows]
    assert thoughts == [*(f"'{text}" for text in FORMULAS), *STRUCTURE]
    assert "evidence" in json.loads(last[-1])["trailer"]
    assert raw.count("\r\n") >= len(rows) + 2
    lines = exported(operator, "view=trace_nodes").decode().splitlines()[1:-1]
    assert [json.loads(line)["thought_process"] for line in lines] == [*FORMULAS, *STRUCTURE]
    table = pyarrow.parquet.read_table(
        io.BytesIO(exported(operator, "view=trace_nodes&format=parquet"))
    ).to_pydict()
    assert table["thought_process"] == [*FORMULAS, *STRUCTURE]

    records = list(
        csv.DictReader(io.StringIO(exported(operator, "agent=bot&format=csv").decode(), newline=""))
    )
    signed = exported(operator, "agent=bot&trailer=false").decode().splitlines()
    assert [row["signed_text"] for row in records[:-1]] == [split_line(line).text for line in signed]
    del agent


def test_parquet_has_types(operator: Client, agent: Client) -> None:
    del agent
    table = pyarrow.parquet.read_table(io.BytesIO(exported(operator, "view=actions&format=parquet")))
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["requested_at"], types["seq"], types["late"]) == ("timestamp[us, tz=UTC]", "int64", "bool")
    assert (types["cost"], types["input"], types["log_uuid"]) in {
        ("int64", "string", "string"),
        ("string", "string", "string"),
    }
    rows = [json.loads(line) for line in exported(operator, "view=actions").decode().splitlines()[1:-1]]
    assert [str(value.as_py().isoformat()) for value in table["requested_at"]] == [
        row["requested_at"].replace("Z", "+00:00") for row in rows
    ]
    assert [json.loads(value.as_py()) for value in table["input"]] == [row["input"] for row in rows]


# --- behind a pooler -----------------------------------------------------------------------------------


def test_p15_exports_work_behind_a_pooler(database: Database) -> None:
    """Each again, since a session of the server may have served another one's statements before."""
    with (
        running_pooler(database) as pooler,
        serve(pooler.app_url, known=SECRETS, pooler="transaction") as running,
    ):
        operator = Client(running.url, running.operator_token)
        agent = operator.create("bot")
        assert agent.post("/v1/agents/bot/actions", {"tool": "search"}).status == 200
        for _ in range(2):
            for form in FORMS:
                raw = exported(operator, f"format={form}&agent=bot")
                assert counted(raw, form) == rows_told(raw, form) == 4, form
            for view in VIEWS:
                rows = exported(operator, f"view={view}").splitlines()[1:-1]
                assert len(rows) == {"actions": 1, "decisions": 1, "agents_status": 1}.get(view, 0), view


@pytest.mark.parametrize("asked", ["", "&agent=bot&agent=other", "&agent=bot&since=2020-01-01"])
def test_lines_without_a_trailer_are_those_of_one_whole_chain(operator: Client, asked: str) -> None:
    """Of several chains, or a part of one, the bare lines look tampered with to whoever verifies them."""
    reply = operator.get(f"/v1/export?trailer=false{asked}")
    assert reply.status == 400
    assert reply.json["error"].startswith("trailer: ")
    assert operator.get(f"/v1/export?trailer=false&format=csv{asked}").status in {200, 404}
    assert operator.get("/v1/export?trailer=false&view=actions").status == 200
