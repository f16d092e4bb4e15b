"""JSON that comes in through HTTP (cases C05, C07, C09, C11, C12, C32, G13): exact, or 400 and no record."""

from __future__ import annotations

import json
import threading

import pytest

from app.chain.strict import MAX_VALUES
from app.http.bodies import LARGE_BYTES
from tests.integration.http.client import Client
from tests.integration.http.wire import post_routes, routes_with_a_body
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

ACTIONS = "/v1/agents/mailer/actions"


@pytest.fixture
def agent(operator: Client) -> Client:
    return operator.create("mailer", {"budget": 10**15, "scar_limit": 10, "tools": {"search": {"cost": 1}}})


def guard_routes() -> list[str]:
    """The routes whose bodies are small: all but those that take traces and events."""
    return [path for path in post_routes() if not path.endswith(("/traces", "/events"))]


def refused(operator: Client, body: bytes, words: str = "", paths: list[str] | None = None) -> None:
    """Every route that takes a body refuses it, and the chain is as long as before."""
    before = operator.get("/v1/agents/mailer").json["head"]
    for path in paths or post_routes():
        reply = operator.post_raw(path, body)
        assert (reply.status, reply.json["code"]) == (400, "bad_request"), (path, body[:80], reply.raw)
        assert words in reply.json["error"], reply.raw
        assert reply.json["title"] == "Not strict JSON", reply.raw
    assert operator.get("/v1/agents/mailer").json["head"] == before
    assert [entry["agent_id"] for entry in operator.get("/v1/agents").json["agents"]] == ["mailer"]


@pytest.mark.parametrize(
    "body",
    [
        rb'{"tool":"search","cost":0,"input":{"p":1,"\u0070":2}}',
        b'{"tool":"search","cost":0,"tool":"wire_transfer"}',
        rb'{"tool":"search","\u0074ool":"wire_transfer"}',
        b'{"tool":"search","input":[{"a":{"b":1,"b":1}}]}',
    ],
)
def test_c05_duplicate_keys_are_refused(operator: Client, agent: Client, body: bytes) -> None:  # noqa: ARG001
    refused(operator, body, "duplicate key")


@pytest.mark.parametrize(
    "body",
    [
        rb'{"tool":"search","input":{"q":"a\u0000b"}}',
        rb'{"tool":"x\u0000"}',
        rb'{"tool":"search","input":{"k\u0000":1}}',
        b'{"tool":"search","input":"a\x00b"}',
    ],
)
def test_c07_nul_is_refused(operator: Client, agent: Client, body: bytes) -> None:  # noqa: ARG001
    refused(operator, body)


def test_c07_the_place_is_named(agent: Client) -> None:
    reply = agent.post_raw(ACTIONS, rb'{"tool":"search","input":{"list":[1,{"q":"a\u0000b"}]}}')
    assert reply.json["place"]
    assert reply.json["place"] in reply.json["error"]


def test_c09_big_integers_keep_every_digit(operator: Client, agent: Client) -> None:
    numbers = {"a": 9007199254740993, "b": 9223372036854775808, "c": -int("9" * 30), "d": int("8" * 128)}
    asked = agent.post(ACTIONS, {"tool": "search", "input": numbers})
    assert asked.json["decision"] == "allowed"
    assert agent.get(f"{ACTIONS}/act-1").json["input"] == numbers
    records = operator.get("/v1/agents/mailer/log").json["records"]
    assert [r["payload"]["input"] for r in records if r["kind"] == "action_requested"] == [numbers]
    assert operator.get("/v1/agents/mailer/verify").json["ok"] is True


def test_c09_an_integer_of_5000_digits_is_refused(operator: Client, agent: Client) -> None:  # noqa: ARG001
    refused(operator, b'{"tool":"search","input":' + b"9" * 5_000 + b"}", "128")
    refused(operator, b'{"tool":"search","input":' + b"9" * 129 + b"}", "128")


@pytest.mark.parametrize(
    "body",
    [
        b'{"tool":"search","cost":NaN}',
        b'{"tool":"search","input":[Infinity,-Infinity]}',
        b'{"tool":"search","input":1e999}',
        b'{"tool":"search","input":-1e999}',
        b'{"tool":"search","input":nan}',
    ],
)
def test_c11_nan_and_infinity_are_refused(operator: Client, agent: Client, body: bytes) -> None:  # noqa: ARG001
    refused(operator, body)


@pytest.mark.parametrize("depth", [128, 1_200, 100_000])
def test_c12_deep_nesting_is_refused(operator: Client, agent: Client, depth: int) -> None:  # noqa: ARG001
    # The body itself is the first level, so 128 more are one too many.
    refused(operator, b'{"tool":"search","input":' + b"[" * depth + b"]" * depth + b"}", "128")
    refused(operator, b'{"tool":"search","input":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}", "128")


def test_c12_a_document_at_the_limit_is_kept_and_verified(operator: Client, agent: Client) -> None:
    deep = b"[" * 127 + b"]" * 127
    reply = agent.post_raw(ACTIONS, b'{"tool":"search","input":' + deep + b"}")
    assert reply.json["decision"] == "allowed"
    assert json.dumps(agent.get(f"{ACTIONS}/act-1").json["input"]).encode() == deep
    assert operator.get("/v1/agents/mailer/verify").json["ok"] is True


def filled(values: int, item: str) -> bytes:
    """A request to act of so many values in all: the object, the tool, and an array of arrays."""
    rows, rest = divmod(values - 3, 1_000)
    row = f"[{','.join([item] * 999)}]"
    return f'{{"tool":"search","input":[{",".join([*[row] * rows, *["0"] * rest])}]}}'.encode()


@pytest.mark.parametrize("item", ["1e308", "0.5", "[]", '"a,[{"', "null"])
def test_c12_values_are_bounded_in_all(operator: Client, agent: Client, item: str) -> None:
    asked = agent.post_raw(ACTIONS, filled(MAX_VALUES, item))
    assert asked.json["decision"] == "allowed", asked.raw
    assert operator.get("/v1/agents/mailer/verify").json["ok"] is True
    refused(operator, filled(MAX_VALUES + 1, item), str(MAX_VALUES), guard_routes())


def test_a_large_body_is_parsed_beside_the_event_loop_and_recognised_again(agent: Client) -> None:
    body = filled(MAX_VALUES, "0.5")
    assert len(body) > LARGE_BYTES
    first, again = (agent.post_raw(ACTIONS, body, Idempotency_Key="large") for _ in range(2))
    assert any(thread.name.startswith("json") for thread in threading.enumerate())
    assert first.status == 200
    assert first.raw == again.raw
    other = agent.post_raw(ACTIONS, body.replace(b"0.5", b"0.6"), Idempotency_Key="large")
    assert (other.status, other.json["code"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"tool":"search"}',
        b'{"tool":"search","input":"\xff"}',
        b'{"tool":"search","input":"\xc0\xaf"}',
        b'{"tool":"search","input":"\xed\xa0\x80"}',
        rb'{"tool":"search","input":"\ud800"}',
        '{"tool":"search"}'.encode("utf-16"),
    ],
)
def test_c32_bom_and_bad_utf8_are_refused(operator: Client, agent: Client, body: bytes) -> None:  # noqa: ARG001
    refused(operator, body)


@pytest.mark.parametrize(
    "body", [b"", b" ", b"{", b'{"a":1}x', b'{"a":1}{"a":2}', b"{'a':1}", b'{"a":01}', b'{"a":1,}']
)
def test_what_is_no_document_is_refused(operator: Client, agent: Client, body: bytes) -> None:  # noqa: ARG001
    refused(operator, body, paths=None if body else routes_with_a_body())


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null", b"true"])
def test_only_an_object_is_a_body(operator: Client, agent: Client, body: bytes) -> None:  # noqa: ARG001
    for path in post_routes():
        reply = operator.post_raw(path, body)
        assert (reply.status, reply.json["code"]) == (400, "bad_request"), (path, reply.raw)
        assert "object" in reply.json["error"]


@pytest.mark.parametrize(
    "cost", ["-5", "-0.0", "1.0", "1e2", "true", '"1"', "[1]", '{"usd":1}', "9223372036854775808"]
)
def test_g13_a_cost_is_an_integer_from_0(operator: Client, agent: Client, cost: str) -> None:
    reply = agent.post_raw(ACTIONS, f'{{"tool":"search","cost":{cost}}}'.encode())
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["field"] == "cost"
    assert operator.get("/v1/agents/mailer").json["head"]["seq"] == 1


@pytest.mark.parametrize("cost", [{}, {"cost": None}, {"cost": 0}, {"cost": 1}])
def test_g13_a_missing_cost_is_the_rules(agent: Client, cost: dict[str, object]) -> None:
    assert agent.post(ACTIONS, {"tool": "search", **cost}).json["cost"] == 1


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"budget": 1.0, "scar_limit": 1, "tools": {}}, "budget"),
        ({"budget": "1", "scar_limit": 1, "tools": {}}, "budget"),
        ({"scar_limit": 1, "tools": {}}, "budget"),
        ({"budget": 1, "scar_limit": 1, "tools": {"x": {"cost": True}}}, "tools.x.cost"),
        ({"budget": 1, "scar_limit": 1, "tools": {}, "surprise": 1}, "surprise"),
        ([], ""),
        ("x", ""),
        (5, ""),
        (False, ""),
    ],
)
def test_a_policy_with_a_flaw_names_the_field(operator: Client, policy: object, field: str) -> None:
    reply = operator.post("/v1/agents", {"agent_id": "mailer", "policy": policy})
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["title"] == "Invalid policy"
    assert field in reply.json.get("field", "")
    assert operator.get("/v1/agents").json == {"agents": []}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("outcome", {"status": "maybe", "detail": ""}),
        ("outcome", {"detail": ""}),
        ("outcome", {"status": "success", "detail": 5}),
        ("approve", {}),
        ("approve", {"approver": ""}),
        ("approve", {"approver": "A", "note": 5}),
        ("reject", {"approver": "A"}),
        ("reject", {"reason": "r"}),
        ("reject", {"approver": "A", "reason": "r", "scar": "huge"}),
    ],
)
def test_decisions_and_outcomes_are_read_exactly(
    operator: Client, agent: Client, path: str, body: dict[str, object]
) -> None:
    agent.post(ACTIONS, {"tool": "search"})
    before = operator.get("/v1/agents/mailer").json["head"]
    reply = operator.post(f"{ACTIONS}/act-1/{path}", body)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["field"]
    assert operator.get("/v1/agents/mailer").json["head"] == before
