"""The event of a request: who asked for what, and nothing that must not be told (cases H19, H21)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from app import telemetry
from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.integration.http.wire import converse, request


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The process's log as JSON."""
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    handlers, level, disabled = root.handlers[:], root.level, access.disabled
    written = io.StringIO()
    telemetry.configure("info", "json", stream=written)
    yield written
    root.handlers[:], access.disabled = handlers, disabled
    root.setLevel(level)


def events(lines: io.StringIO) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in lines.getvalue().splitlines()]
    told = [event for event in read if event["logger"] == "trails.requests"]
    for event in told:
        assert event.pop("time")
        assert event.pop("ms") >= 0
        assert len(event.pop("request_id")) == 32
        assert (event.pop("level"), event.pop("logger"), event.pop("message")) == (
            "info",
            "trails.requests",
            "request",
        )
    return told


def test_h19_an_event_tells_who_asked_and_no_token(
    service: Running, operator: Client, lines: io.StringIO
) -> None:
    agent = operator.create("mailer")
    key = operator.post("/v1/keys", {"role": "agent", "name": "m", "agent_id": "mailer"}).json
    root = operator.as_(service.root_token)
    acme = root.post("/v1/tenants", {"slug": "acme", "name": "Acme", "operator": "Ada"}).json
    operator.as_(acme["token"]).create("another")
    for client in (operator, agent, operator.as_(key["token"]), operator.as_(acme["token"])):
        client.get("/v1/agents/mailer?nothing=1")
    told = [event for event in events(lines) if event["route"] == "/v1/agents/{agent_id}"]
    asked = {"method": "GET", "route": "/v1/agents/{agent_id}", "peer": "127.0.0.1"}
    default = {**asked, "status": 200, "tenant": "default"}
    assert told == [
        {**default, "role": "operator"},
        {**default, "role": "agent", "agent": "mailer"},
        {**default, "role": "agent", "agent": "mailer", "key": key["key"]["key_id"]},
        {**asked, "status": 404, "role": "operator", "tenant": "acme", "key": acme["key"]["key_id"]},
    ]
    for token in (service.operator_token, service.root_token, agent.token, key["token"], acme["token"]):
        assert token is not None
        assert token not in lines.getvalue()
        assert token[-43:] not in lines.getvalue()


def test_h21_what_is_refused_names_peer_and_path_in_one_line(service: Running, lines: io.StringIO) -> None:
    request(service.port, "GET", "/nowhere/%0d%0aforged%20line/%E2%80%A8?token=abcdef0123456789")
    request(service.port, "GET", "/v1/agents", "Authorization: Bearer guessed")
    assert events(lines) == [
        {
            "method": "GET",
            "route": "(no route)",
            "path": "/nowhere/\r\nforged line/\u2028",
            "status": 400,
            "peer": "127.0.0.1",
        },
        {"method": "GET", "route": "/v1/agents", "status": 401, "peer": "127.0.0.1"},
    ]
    assert "abcdef0123456789" not in lines.getvalue()
    assert "guessed" not in lines.getvalue()


def test_h19_a_token_in_a_path_that_no_route_knows_is_not_told(
    service: Running, operator: Client, lines: io.StringIO
) -> None:
    agent = operator.create("mailer")
    assert agent.token is not None
    for path in (
        f"/v2/{agent.token}",
        f"/v2/{agent.token.replace('_', '%5f')}",
        f"/v2/{agent.token.replace('_', '%255f')}",
        f"/v2/{service.operator_token}%3Ftoken=abcdef",
    ):
        assert request(service.port, "GET", path).status in {400, 404}
    written = lines.getvalue()
    for token in (agent.token.rpartition(".")[2], service.operator_token, "abcdef"):
        assert token not in written


def test_h21_bytes_that_are_no_request_are_told_with_their_peer(service: Running, lines: io.StringIO) -> None:
    assert converse(service.port, b"GET / HTTP/1.1\r\nX: \x85\x1b[2J\xe2\x80\xa8\r\n\r\n")[0].status == 400
    [told] = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert told["message"].startswith("refused: ")
    assert told["peer"] == "127.0.0.1"
