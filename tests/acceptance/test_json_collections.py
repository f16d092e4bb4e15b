"""The JSON conformance collections as tool inputs: equal values back, or 400, never 500."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from app.chain.strict import JsonValue, parse
from app.errors import InvalidJsonError
from tests.support.server import ServerProcess
from tests.support.shared import SHARED_DATA, manifest

REFUSED = {
    "test_parsing__y_object_duplicated_key_and_value.json": "a key twice: each reader may see another value",
    "test_parsing__y_object_escaped_null_in_key.json": "U+0000, which jsonb cannot hold",
}
"""Valid by the grammar, and refused by the documented rule."""

POLICY = {"budget": 100, "scar_limit": 10, "tools": {"echo": {"cost": 0}}}


def documents() -> list[tuple[str, bytes]]:
    manifest()  # skips where the collections are absent
    folders = ("json-test-suite", "jcs-rfc8785")
    paths = [path for folder in folders for path in sorted((SHARED_DATA / folder).iterdir())]
    return [(path.name, path.read_bytes()) for path in paths]


def accepted(document: bytes) -> list[JsonValue] | None:
    """The document's value by our own strict rule, in a list; None when the rule refuses it."""
    try:
        return [parse(document).value]
    except InvalidJsonError:
        return None


def must_be_accepted(name: str) -> bool:
    """Valid by its author's word."""
    return "__y_" in name or name.startswith("input__")


async def test_documents_come_back_equal_or_are_refused(server: ServerProcess) -> None:
    headers = {"Authorization": f"Bearer {server.operator_token}", "Content-Type": "application/json"}
    with httpx2.Client(base_url=server.base_url, headers=headers, timeout=30) as http:
        http.post("/v1/agents", json={"agent_id": "echo", "policy": POLICY}).raise_for_status()
        outcomes = {name: _echo(http, document) for name, document in documents()}

    for name, (status, value) in outcomes.items():
        assert status in (200, 400), name
        document = (SHARED_DATA / _folder(name) / name).read_bytes()
        expected = accepted(document)
        assert (status == 200) == (expected is not None), name
        if expected is not None:
            assert value == expected[0], name
    assert all(status == 400 for name, (status, _) in outcomes.items() if "__n_" in name)
    assert {n for n, (status, _) in outcomes.items() if must_be_accepted(n) and status != 200} == set(REFUSED)


def _folder(name: str) -> str:
    return "jcs-rfc8785" if name.startswith(("input__", "output__")) else "json-test-suite"


def _echo(http: httpx2.Client, document: bytes) -> tuple[int, Any]:
    body = b'{"tool":"echo","input":' + document + b"}"
    answer = http.post("/v1/agents/echo/actions", content=body)
    if answer.status_code != 200:
        assert answer.json()["code"] == "bad_request"
        return answer.status_code, None
    action = http.get(f"/v1/agents/echo/actions/{answer.json()['action_id']}")
    assert action.status_code == 200
    return 200, json.loads(action.content)["input"]


@pytest.mark.parametrize("document", [b"[1e400]", b'["\\ud800"]', b"\xef\xbb\xbf[]"])
def test_what_the_rule_refuses_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidJsonError):
        parse(document)
