"""A client as a program of the standard library would write it: what Lineage's own clients do."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import msgspec

TIMEOUT_SECS = 20.0

POLICY: dict[str, Any] = {
    "budget": 50,
    "scar_limit": 10,
    "tools": {
        "search": {"cost": 1},
        "send_email": {"cost": 5, "requires_approval": True, "max_calls": 3},
    },
}


class Reply(msgspec.Struct, frozen=True):
    """An answer: status, headers, the raw body."""

    status: int
    headers: Message
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class Client:
    """Speaks JSON to one service with one token (or none)."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token

    def as_(self, token: str | None) -> Client:
        return Client(self.url, token)

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.post_raw(path, json.dumps(body).encode(), **headers)

    def post_raw(self, path: str, body: bytes, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", path, body, {"Content-Type": "application/json", **named})

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        request = urllib.request.Request(self.url + path, data=body, method=method, headers=headers or {})  # noqa: S310  our own URL
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECS) as answer:  # noqa: S310  as above
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    def create(self, agent_id: str, policy: Any = POLICY) -> Client:
        """Makes an agent; returns a client with its token."""
        reply = self.post("/v1/agents", {"agent_id": agent_id, "policy": policy})
        assert reply.status == 200, reply.raw
        return self.as_(reply.json["token"])
