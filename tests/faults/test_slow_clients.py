"""Case H31: clients that send or read a byte at a time get an end, and nobody else notices them.

The short form has deadlines of a second or two and a server in this process; the long one has the real ones,
``trails serve`` and the pace of the case (a byte in ten seconds, a kilobyte a second).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest

from app.http import bodies, edge, taking
from app.http.bodies import BODY_SECS
from app.http.connection import HEAD_SECS, Connection
from app.http.edge import LINGER_SECS
from app.http.taking import TAKE_BYTES_A_SEC, TAKE_SECS
from tests.integration.http.client import Client
from tests.integration.http.serving import serve
from tests.support.faults import FULL, rounds
from tests.support.postgres import Database
from tests.support.server import ServerProcess
from tests.support.spans import Sent, as_json

AGENT = "worker"
LOG = f"/v1/agents/{AGENT}/log?limit=5000"
SENDERS = rounds(60, 200)
READERS = rounds(12, 50)
RECORDS = rounds(1_000, 5_000)
TEXT = "x" * (9_000_000 // RECORDS)
"""Of each record: the system's own buffers hold three megabytes of an answer that nobody reads."""

SLACK_SECS = 15.0
"""What a busy machine may add to a deadline; a client that nobody cuts off stays for ever."""


class Pace(msgspec.Struct, frozen=True):
    """How slow the clients are, and when the service has had enough of them (seconds)."""

    byte_secs: float
    kilobyte_secs: float
    head_secs: float
    body_secs: float
    take_secs: float


REAL = Pace(10.0, 1.0, HEAD_SECS, BODY_SECS + LINGER_SECS, TAKE_SECS)
SHORT = Pace(0.3, 0.2, 1.0, 2.0, 1.0)
PACE = REAL if FULL else SHORT


class Impatient(Connection):
    """The server's connection with deadlines that a test can wait for."""

    head_secs = SHORT.head_secs
    take_secs = SHORT.take_secs


class Service(msgspec.Struct, frozen=True):
    """A running service with one agent whose log is a large answer."""

    url: str
    operator: Client
    session_id: str

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def head(self, line: str, *headers: str) -> bytes:
        """The head of a request of the operator."""
        token = f"Authorization: Bearer {self.operator.token}"
        return "\r\n".join([f"{line} HTTP/1.1", "Host: localhost", token, *headers, "", ""]).encode()


class Frugal(Connection):
    """The server's connection where little may wait to be taken."""

    untaken_bytes = 12_000_000


@pytest.fixture
def service(
    database: Database, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    if FULL:
        server: ServerProcess = request.getfixturevalue("server")
        yield _filled(server.base_url, server.operator_token)
        return
    monkeypatch.setattr(bodies, "BODY_SECS", 1.5)
    monkeypatch.setattr(edge, "LINGER_SECS", 0.2)
    monkeypatch.setattr(taking, "TAKE_BYTES_A_SEC", 1 << 30)
    with serve(database.app_url, protocol=Impatient) as running:
        yield _filled(running.url, running.operator_token)


def _filled(url: str, token: str) -> Service:
    operator = Client(url, token)
    operator.create(AGENT, None)
    for _ in range(RECORDS // 250):
        events = [{"type": "note", "data": TEXT}] * 250
        assert operator.post(f"/v1/agents/{AGENT}/events", {"events": events}).status == 200
    trace = secrets.token_bytes(16)
    for _ in range(RECORDS // 250):
        spans = [Sent(trace_id=trace, attributes={"note": TEXT}) for _ in range(250)]
        assert operator.post_raw("/v1/traces", as_json(*spans)).status == 200
    listed = operator.get("/v1/sessions").json["sessions"]
    return Service(url, operator, listed[0]["session_id"])


@asynccontextmanager
async def connected(service: Service, *, receive_bytes: int | None = None) -> AsyncIterator[socket.socket]:
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, service.address)
        yield connection
    finally:
        connection.close()


async def dribble(service: Service, start: bytes, rest: bytes) -> float:
    """Sends ``start`` at once and ``rest`` byte by byte, until it is cut off; seconds until then."""
    loop, begun = asyncio.get_running_loop(), time.monotonic()
    async with connected(service) as connection:
        await loop.sock_sendall(connection, start)
        ended = asyncio.ensure_future(_to_the_end(connection))
        for position in range(len(rest)):
            done, _ = await asyncio.wait([ended], timeout=PACE.byte_secs)
            if done:
                break
            try:
                await loop.sock_sendall(connection, rest[position : position + 1])
            except OSError:
                break
        answer = await ended
    assert answer.startswith(b"HTTP/1.1 400"), answer
    return time.monotonic() - begun


async def _to_the_end(connection: socket.socket) -> bytes:
    answer = bytearray()
    with suppress(ConnectionResetError):
        await _drain(connection, answer)
    return bytes(answer)


async def _drain(connection: socket.socket, into: bytearray | None = None) -> None:
    """Takes all that comes, until the end."""
    while piece := await asyncio.get_running_loop().sock_recv(connection, 65_536):
        if into is not None:
            into += piece


async def sip(service: Service, path: str, *headers: str) -> float:
    """Asks for a large answer and takes a kilobyte at a time, until it is cut off; seconds until then."""
    loop, begun = asyncio.get_running_loop(), time.monotonic()
    taken = 0
    async with connected(service, receive_bytes=4_096) as connection:
        await loop.sock_sendall(connection, service.head(f"GET {path}", *headers))
        try:
            while piece := await loop.sock_recv(connection, 1_024):
                if not taken:
                    assert piece.startswith(b"HTTP/1.1 200"), piece
                taken += len(piece)
                await asyncio.sleep(PACE.kilobyte_secs)
        except ConnectionResetError:
            return time.monotonic() - begun
    raise AssertionError(f"the answer ended in order after {taken} bytes")


async def test_h31_slow_clients_get_an_end_and_nobody_else_notices_them(
    service: Service, admin: asyncpg.Connection
) -> None:
    session = f"/v1/sessions/{service.session_id}?limit={RECORDS}"
    size = max(len(service.operator.get(path).raw) for path in (LOG, session))
    most = PACE.take_secs + (size / TAKE_BYTES_A_SEC if FULL else 0)
    head = service.head(
        f"POST /v1/agents/{AGENT}/events", "Content-Type: application/json", "Content-Length: 10000"
    )
    slow: list[tuple[float, Awaitable[float]]] = [
        *((PACE.head_secs, dribble(service, head[:40], head[40:])) for _ in range(SENDERS // 2)),
        *((PACE.body_secs, dribble(service, head, b" " * 10_000)) for _ in range(SENDERS // 2)),
        *((most, sip(service, LOG, "Connection: close")) for _ in range(READERS // 2)),
        *((most, sip(service, session)) for _ in range(READERS // 2)),
    ]
    clients = [asyncio.ensure_future(client) for _, client in slow]
    async with asyncio.timeout(max(bound for bound, _ in slow) + 2 * SLACK_SECS):
        appended = await _appending_until(service, admin, lambda: all(client.done() for client in clients))
        lasted = await asyncio.gather(*clients)
    for (bound, _), seconds in zip(slow, lasted, strict=True):
        assert seconds < bound + SLACK_SECS
    assert appended > 3
    stored = "SELECT count(*) FROM trails.agent_audit_trails WHERE agent_id = $1 AND kind = 'event'"
    assert await admin.fetchval(stored, AGENT) == RECORDS + appended


async def _appending_until(service: Service, admin: asyncpg.Connection, over: Callable[[], bool]) -> int:
    """What normal clients do meanwhile, one after the other; how many records they appended.

    A machine that is busy with so many may ask one to try again; that is no more than an exception.
    """
    appended = refused = 0
    path, body = f"/v1/agents/{AGENT}/events", json.dumps({"type": "note", "data": "normal"}).encode()
    while not over():
        key = f"normal-{appended}"
        reply = await asyncio.to_thread(service.operator.post_raw, path, body, Idempotency_Key=key)
        assert reply.status in {200, 503}, reply.raw
        appended, refused = appended + (reply.status == 200), refused + (reply.status == 503)
        assert refused <= 3 + appended // 4, reply.raw
        working = await admin.fetch(
            "SELECT state, query FROM pg_stat_activity WHERE datname = current_database()"
            " AND usename = 'trails_app' AND state <> 'idle' AND state_change < now() - interval '2 s'"
        )
        assert working == [], "the database waits for a client"
        await asyncio.sleep(0.1)
    return appended


async def test_h31_answers_that_wait_have_a_bound_together(database: Database) -> None:
    """Who takes nothing makes way for others, long before its time is over."""
    loop = asyncio.get_running_loop()
    with serve(database.app_url, protocol=Frugal) as running:
        service = _filled(running.url, running.operator_token)
        async with AsyncExitStack() as stack, asyncio.timeout(2 * SLACK_SECS):
            idle = [
                await stack.enter_async_context(connected(service, receive_bytes=4_096)) for _ in range(4)
            ]
            for connection in idle:
                await loop.sock_sendall(connection, service.head(f"GET {LOG}"))
                await asyncio.sleep(0.1)  # so that it has had its answer for a while
            answer = await asyncio.to_thread(service.operator.get, LOG)
            assert len(answer.json["records"]) > RECORDS // 2
            for connection in idle[:2]:
                with pytest.raises(ConnectionResetError):
                    await _drain(connection)
