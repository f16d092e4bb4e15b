"""Bytes on a socket, for what no HTTP library would send."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from app.http import examples
from app.http.routes import ROUTES

SECS = 20.0


class WireReply(msgspec.Struct, frozen=True):
    """The first answer on a connection, and whether the server closed it afterwards."""

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool
    sent: int
    """Bytes of the request that the server took."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    port: int,
    method: str,
    target: bytes | str,
    *headers: bytes | str,
    body: bytes | Iterable[bytes] = b"",
    length: bool = True,
) -> WireReply:
    """Sends one request byte for byte; ``Content-Length`` is added for plain bodies unless told otherwise."""
    lines = [_bytes(method) + b" " + _bytes(target) + b" HTTP/1.1", b"Host: localhost"]
    lines += [_bytes(header) for header in headers]
    if isinstance(body, bytes):
        if length and body:
            lines.append(b"Content-Length: %d" % len(body))
        body = [body]
    return send(
        port, [b"\r\n".join(lines) + b"\r\n\r\n", *body] if isinstance(body, list) else _chain(lines, body)
    )


def send(port: int, chunks: Iterable[bytes]) -> WireReply:
    """Sends ``chunks`` until the server no longer takes them, and reads the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECS) as connection:
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for chunk in chunks:
                connection.sendall(chunk)
                sent += len(chunk)
        return _read(connection, sent)


def converse(port: int, *pieces: bytes, end: bool = False) -> list[WireReply]:
    """Sends ``pieces`` and reads every answer until the server closes the connection.

    Args:
        port: where the service listens.
        pieces: what is sent, whatever requests it holds.
        end: closes the sending side afterwards, as a client does that has nothing more to say.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=SECS) as connection:
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
                sent += len(piece)
        if end:
            connection.shutdown(socket.SHUT_WR)
        replies = []
        with connection.makefile("rb") as stream:
            while (reply := read_reply(stream, sent)) is not None:
                replies.append(reply)
        return replies


def read_reply(stream: BinaryIO, sent: int = 0) -> WireReply | None:
    """The next answer on a connection; None when the server has closed it. 100 Continue has no length."""
    first = stream.readline()
    if not first:
        return None
    headers: dict[str, str] = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = _chunks(stream)
    else:
        body = stream.read(int(headers.get("content-length", 0)))
    return WireReply(int(first.split()[1]), headers, body, headers.get("connection") == "close", sent)


def chunked(size: int, step: int = 64 * 1024) -> Iterator[bytes]:
    """A chunked body of ``size`` bytes (a JSON string that never ends early), made as it is sent."""
    piece = b"%x\r\n" % step + b" " * step + b"\r\n"
    for _ in range(size // step):
        yield piece
    yield b"0\r\n\r\n"


OTLP = "/v1/traces"
"""It answers as OTLP wants, so that its rows of the matrices stand in its own tests (test_otlp_errors)."""


ROOT = "/v1/tenants"
"""What is root's alone: an operator is refused there before anything else is looked at."""


def routes() -> list[tuple[str, str, bool]]:
    """Every route but that of OTLP and root's: method, path with sound ids, whether it needs a token."""
    return [row for row in all_routes() if row[1] != OTLP and not row[1].startswith(ROOT)]


def all_routes() -> list[tuple[str, str, bool]]:
    """The same of every route."""
    return [
        (next(iter(handler.http_methods)), _filled(path), "permission" in handler.opt)
        for handler in ROUTES
        for path in sorted(handler.paths)
    ]


def post_routes() -> list[str]:
    """Paths of every POST route."""
    return [path for method, path, _ in routes() if method == "POST"]


def routes_with_a_body() -> list[str]:
    """The same without those that a request without a body is right for."""
    return [path for path in post_routes() if not path.endswith("/test")]


def _filled(path: str) -> str:
    ids = {
        "{agent_id:str}": "mailer",
        "{action_id:str}": "act-1",
        "{session_id:str}": examples.SESSION_ID,
        "{key_id:str}": "0123456789abcdef",
        "{webhook_id:str}": "0123456789abcdef",
        "{slug:str}": "acme",
    }
    for name, value in ids.items():
        path = path.replace(name, value)
    return path


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _chain(lines: list[bytes], body: Iterable[bytes]) -> Iterator[bytes]:
    yield b"\r\n".join(lines) + b"\r\n\r\n"
    yield from body


def _read(connection: socket.socket, sent: int) -> WireReply:
    with connection.makefile("rb") as stream:
        reply = read_reply(stream, sent)
    assert reply is not None, "the server closed the connection without an answer"
    return msgspec.structs.replace(reply, closed=_closes(connection, reply.headers))


def _closes(connection: socket.socket, headers: dict[str, str]) -> bool:
    if headers.get("connection") != "close":
        return False
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass
    return True


def _chunks(stream: BinaryIO) -> bytes:
    """A body whose length nobody told; one that ends without its last chunk is an error here."""
    body = b""
    while size := int(stream.readline(), 16):
        body += stream.read(size)
        stream.readline()
    stream.readline()
    return body
