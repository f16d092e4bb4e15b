"""The outermost ASGI layer: what holds for every request, also for paths that no route knows.

It checks host and request target, gives each request an id, adds the headers that every answer carries, turns
what escaped into a problem document, logs one line, and answers early without losing the answer: when a body
was not read, the answer goes out first and the rest of the body is then taken and thrown away for a while.
A socket closed with unread data is reset, and the client would never see why (case H01).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, LifeSpanScope, Message, Receive, Scope, Send

from app.http.auth import prepare
from app.http.bodies import take_leave
from app.http.cors import Cors
from app.http.exchange import Exchange, Services, attach, headers
from app.http.hosts import ANY, Hosts
from app.http.peer import peer_of
from app.http.problems import MEDIA_TYPE, problem_of
from app.http.target import check_path, parse_query
from app.telemetry import begin_request, log_request, shown_path

SMALL_BODY_BYTES = 64 * 1024
"""An unread body up to this size is left to the server to skip, and the connection lives on."""

LINGER_BYTES = 64 * 1024 * 1024
LINGER_SECS = 5.0
"""How much of a refused body is taken, and for how long, so that its sender gets to read the refusal."""

_OWN_ID = re.compile(rb"[A-Za-z0-9_-]{8,64}")
COMMON_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class Edge:
    """Wraps the Litestar application; this is the ASGI application that a server runs."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self.app = app
        self.services = services
        self._hosts = Hosts(services.settings.allowed_hosts or (ANY,))
        origins = services.settings.cors_origins
        self._cors = None if origins is None else Cors(origins)

    async def __call__(self, scope: Scope | LifeSpanScope, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Serves one connection; receive and send are those of its type."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)  # type: ignore[arg-type]  # Litestar takes it, its alias does not
        elif scope["type"] == ScopeType.HTTP:
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": None})

    async def _serve(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        exchange = Exchange(self.services, _request_id(scope))
        begin_request(exchange.request_id)
        attach(scope, exchange)
        traffic = self.services.traffic
        traffic.in_flight += 1
        reply = _Reply(scope, exchange, receive, send, self._cors)
        try:
            self._hosts.check(scope)
            check_path(scope.get("raw_path") or scope["path"].encode())
            if scope["query_string"]:
                parse_query(scope["query_string"])
            await prepare(scope, exchange)
            await self.app(scope, receive, reply.send)
        except Exception as error:  # noqa: BLE001  the last place that can answer
            await _answer_with_problem(reply, error, exchange.request_id)
        finally:
            if exchange.place is not None:
                take_leave(exchange.place)
            traffic.in_flight -= 1
            seconds = time.perf_counter() - started
            traffic.count(scope["method"], route_of(scope), reply.status, seconds)
            if self.services.settings.log_requests:
                _log(scope, exchange, reply.status, seconds)


class _Reply:
    """Sends the answer: adds the common headers and lingers when the request's body was not read."""

    __slots__ = ("_cors", "_exchange", "_linger", "_receive", "_scope", "_send", "status")

    def __init__(
        self, scope: HTTPScope, exchange: Exchange, receive: Receive, send: Send, cors: Cors | None
    ) -> None:
        self._scope = scope
        self._exchange = exchange
        self._receive = receive
        self._send = send
        self._cors = cors
        self._linger = False
        self.status = 0

    async def send(self, message: Message) -> None:
        """The ``send`` that the application sees."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._headers(list(message["headers"]))
        elif self._linger and message["type"] == "http.response.body" and not message.get("more_body"):
            await self._send({"type": "http.response.body", "body": message["body"], "more_body": True})
            await _discard(self._receive)
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    def _headers(self, own: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = [name for name, _ in own]
        own += [header for header in COMMON_HEADERS if header[0] not in names]
        if self._cors is not None:
            own.extend(self._cors.headers(self._scope, own))
        own += self._exchange.cookies
        own.append((b"x-request-id", self._exchange.request_id.encode()))
        if not self._exchange.body_read:
            over = self._exchange.body_over
            self._linger = not over and _unread_bytes(self._scope) > SMALL_BODY_BYTES
            given_up = self._exchange.body_begun and not over
            # Who waits for 100 Continue may send the body or not: what comes next could be either.
            if self._linger or given_up or self.status == 413 or headers(self._scope, b"expect"):
                own.append((b"connection", b"close"))
        return own


NO_ROUTE = "(no route)"
"""What stands for the route of a request that reached none."""


def route_of(scope: HTTPScope) -> str:
    """The template of the route's path, with the names of its parameters."""
    return scope.get("path_template") or NO_ROUTE


def _log(scope: HTTPScope, exchange: Exchange, status: int, seconds: float) -> None:
    """One event: what was asked of which route, and by whom. Nothing of a token, and no query."""
    route = route_of(scope)
    more: dict[str, object] = {} if route is not NO_ROUTE else {"path": shown_path(scope["path"])}
    more["peer"] = peer_of(scope, exchange.services.settings.trusted_proxies or ())
    log_request(scope["method"], route, status, seconds, more | exchange.caller())


def _request_id(scope: Scope) -> str:
    """The caller's own id when it is a sane one, so that its logs and ours can be joined; else a new one."""
    given = headers(scope, b"x-request-id")
    if len(given) == 1 and _OWN_ID.fullmatch(given[0]):
        return given[0].decode()
    return secrets.token_hex(16)


def _unread_bytes(scope: Scope) -> float:
    """How much body a request announced; without an end when it is chunked."""
    if headers(scope, b"transfer-encoding"):
        return float("inf")
    return sum(int(value) for value in headers(scope, b"content-length") if value.isdigit())


async def _discard(receive: Receive) -> None:
    taken = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECS):
            while taken < LINGER_BYTES:
                message = await receive()
                if message["type"] != "http.request":
                    return
                taken += len(message["body"])
                if not message["more_body"]:
                    return


async def _answer_with_problem(reply: _Reply, error: Exception, current: str) -> None:
    if reply.status:
        raise error  # too late for another answer: the server cuts the connection
    problem = problem_of(error, current)
    own = [(name.encode(), value.encode()) for name, value in problem.headers]
    own += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(problem.body)).encode())]
    await reply.send({"type": "http.response.start", "status": problem.status, "headers": own})
    await reply.send({"type": "http.response.body", "body": problem.body, "more_body": False})
