"""Every request that a route takes, with the ids of whomever: made from the route table and its description.

A route that is new is in it with its path, the query fields and the example body that it describes. What
it calls an id must be known here, else the matrix cannot be made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from litestar.handlers import HTTPRouteHandler

from app.http.operation import OPERATION, Operation
from app.http.routes import ROUTES
from app.principal import Role
from tests.integration.http.client import Client, Reply
from tests.isolation.world import Ids, Tenant
from tests.support.proxy import Proxy

ROLES: Final = (None, Role.AUDITOR, Role.WRITER, Role.AGENT, Role.OPERATOR)
"""Who asks, the one that may do most last; None is without a token. Root is nobody's and sees all tenants."""

_NAMED: Final = re.compile(r"\{(\w+):str\}")

_IN_BODIES: Final = {
    "agent_id": "agent_id",
    "session_id": "session_id",
    "action_id": "action_id",
    "slug": "slug",
    "parent_id": "session_id",
    "node_id": "session_id",
}
"""Members of bodies that name something, and with what; a node takes a session's id, which is one too."""

_IN_QUERIES: Final = {
    ("/v1/sessions", "agent"): "{0.agent_id}",
    ("/v1/sessions", "after"): "2026-01-01T00:00:00.000000Z,{0.session_id}",
    ("/v1/sessions/{session_id:str}", "after"): "1,2026-01-01T00:00:00.000000Z,{0.key_id}",
    ("/v1/feed", "agent"): "{0.agent_id}",
    ("/v1/agents", "after"): "{0.agent_id}",
    ("/v1/export", "agent"): "{0.agent_id}",
    ("/v1/approvals", "after"): "1,{0.key_id}{0.key_id},act-1",
    ("/v1/tenants", "after"): "{0.slug}",
}


class Request(msgspec.Struct, frozen=True):
    """One request; ``what`` says which, without an id."""

    what: str
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = {}

    def sent(self, client: Client) -> Reply:
        """Its answer."""
        return client.send(self.method, self.path, self.body, self.headers)


def requests(mine: Ids, other: Ids) -> Iterator[Request]:
    """Every route with the other's ids: everywhere, and in query, body and key on one's own objects."""
    for handler in ROUTES:
        for path in sorted(handler.paths):
            yield from _of(handler, path, other, other, "everywhere")
            yield from _of(handler, path, mine, other, "on my own")


def _of(handler: HTTPRouteHandler, path: str, in_path: Ids, other: Ids, how: str) -> Iterator[Request]:
    method = next(iter(handler.http_methods))
    operation: Operation = handler.opt[OPERATION]
    filled = _NAMED.sub(lambda found: str(getattr(in_path, found[1])), path)
    what = f"{method} {path} {how}"
    body, headers = _body(path, operation, other)
    yield Request(what, method, filled, body, headers)
    if body is not None:
        once = {"Idempotency-Key": other.idempotency_key}
        yield Request(f"{what}, its key", method, filled, body, headers | once)
    for field in operation.query:
        if (path, field.name) in _IN_QUERIES:
            value = _IN_QUERIES[path, field.name].format(other)
            yield Request(f"{what}, ?{field.name}", method, f"{filled}?{field.name}={value}")


def _body(path: str, operation: Operation, other: Ids) -> tuple[bytes | None, dict[str, str]]:
    if operation.body_example is None:
        return None, {}
    value = other.export() if path == "/v1/traces" else _renamed(operation.body_example, other)
    return json.dumps(value).encode(), {"Content-Type": "application/json"}


def _renamed(value: Any, other: Ids) -> Any:
    """A body with the other's ids: of several nodes the first has one, and those below it say so."""
    if isinstance(value, list):
        return [_renamed(item, other) if n == 0 else item for n, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return {
        name: getattr(other, _IN_BODIES[name])
        if name in _IN_BODIES and isinstance(member, str)
        else _renamed(member, other)
        for name, member in value.items()
    }


# --- what is compared --------------------------------------------------------------------------------------

_DIFFERS: Final = re.compile(
    r"""(?<="next":")[\w-]{60,}|(?<="last_used_at":)(?:null|"[^"]*")|agt_[0-9a-f]{32}\.|\b[0-9a-f]{128}\b|\b[0-9a-f]{64}\b|\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b
    |\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b
    |\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z|trk_[\w.-]+|whsec_[\w+/=]+
    |\w{3},\ \d\d\ \w{3}\ \d{4}\ [\d:]{8}\ GMT
    |\d{8}T\d{6}Z""",
    re.VERBOSE,
)
"""What is new in each answer: hashes, random ids, times, tokens."""


_OF_THE_PROCESS: Final = frozenset({("GET", "/metrics")})
"""What tells of the process as a whole, and never the same: that it names no tenant is tested by itself."""


class Told(msgspec.Struct, frozen=True):
    """An answer as two of them are compared: without the ids that were asked for, and what is always new."""

    what: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: str


def told(request: Request, reply: Reply, asked: Ids) -> Told:
    """The answer to a request that named ``asked``."""
    body = _plain(reply.raw.decode(), asked)
    # As long as what is compared: a key was used, or is noted as used a moment later.
    length = {str(len(reply.raw)): str(len(body))}
    headers = sorted(
        (name.lower(), length.get(value, value) if name.lower() == "content-length" else _plain(value, asked))
        for name, value in reply.headers.items()
    )
    if (request.method, request.path) in _OF_THE_PROCESS:
        return Told(request.what, reply.status, (), "")
    return Told(request.what, reply.status, tuple(headers), body)


def _plain(text: str, asked: Ids) -> str:
    for value in sorted(set(msgspec.structs.astuple(asked)), key=len, reverse=True):
        if value != asked.action_id:
            text = text.replace(value, "…")
    return _DIFFERS.sub("~", text)


def client_of(url: str, tenant: Tenant, role: Role | None) -> Client:
    """A client of a tenant's role."""
    return Client(url, None if role is None else tenant.tokens[role.value])


def work(proxy: Proxy, request: Request, client: Client, *, times: int = 4) -> tuple[int, int]:
    """Statements that a request takes, and bytes that the database answers: the least of several times.

    Now and then one asks as well for what the process is to know anew each second.
    """
    statements, answered = [], []
    for _ in range(times):
        before = proxy.executed, proxy.received
        request.sent(client)
        statements.append(proxy.executed - before[0])
        answered.append(proxy.received - before[1])
    return min(statements), min(answered)
