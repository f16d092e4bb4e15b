"""Server-sent events as a client reads them, by the specification (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from types import MappingProxyType
from typing import Self

import msgspec

SECS = 20.0


class Received(msgspec.Struct, frozen=True):
    """An event that was dispatched."""

    data: str
    id: str
    event: str


class Parser:
    """Lines become events, as in section 9.2.6."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry: int | None = None
        self.comments = 0
        self._data: list[str] = []
        self._event = ""

    def line(self, line: str) -> Received | None:
        """Takes one line without its end."""
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            self.comments += 1
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value)
        return None

    def text(self, text: str) -> list[Received]:
        """All events of a whole stream."""
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return [event for line in lines if (event := self.line(line)) is not None]

    def _dispatch(self) -> Received | None:
        data, self._data = self._data, []
        event, self._event = self._event, ""
        return Received("\n".join(data), self.last_id, event or "message") if data else None


class Stream:
    """An open stream; iterating gives its events until it ends. ``complete``: whether it ended in order."""

    def __init__(self, answer: HTTPResponse) -> None:
        self.answer = answer
        self.parser = Parser()

    def __iter__(self) -> Iterator[Received]:
        while line := self.answer.readline():
            event = self.parser.line(line.decode().rstrip("\n"))
            if event is not None:
                yield event

    def next(self) -> Received:
        """The next event."""
        return next(iter(self))

    def take(self, count: int) -> list[Received]:
        """So many events."""
        return [self.next() for _ in range(count)]

    def until_comment(self) -> Self:
        """Reads on to the next comment."""
        before = self.parser.comments
        while self.parser.comments == before:
            line = self.answer.readline()
            assert line, "the stream ended"
            assert self.parser.line(line.decode().rstrip("\n")) is None, "an event came first"
        return self


@contextmanager
def streamed(
    port: int, path: str, token: str | None, headers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Stream]:
    """Opens a stream at the service on a port of this machine."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECS)
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        connection.request("GET", path, headers={"Accept": "text/event-stream", **authorization, **headers})
        with connection.getresponse() as answer:
            assert answer.status == 200, answer.read()
            yield Stream(answer)
    finally:
        connection.close()


def stuck(port: int, path: str, token: str) -> socket.socket:
    """A client that asks for a stream and never reads; the caller closes it."""
    channel = socket.socket()
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    channel.settimeout(SECS)
    channel.connect(("127.0.0.1", port))
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    channel.sendall(("\r\n".join([*lines, "Accept: text/event-stream", "", ""])).encode())
    return channel


def ids(events: Iterable[Received]) -> list[str]:
    """Their ids."""
    return [event.id for event in events]
