"""A load generator that costs little: HTTP/1.1 over raw sockets, one request after another a connection.

It shares the machine with the servers that it measures, so it is one loop over a selector, without a task a
connection: a tenth of a core at thousands of requests a second, where an event loop takes most of one and
would be what a figure shows. What it took is told with each run.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle, repeat

from tests.bench.cpu import Stopwatch
from tests.bench.rows import Timed

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_RECEIVED_BYTES = 1 << 16
_SILENT_SECONDS = 300
_OK = b"HTTP/1.1 200"
_LENGTH = b"content-length:"

Stream = Iterable[bytes]
"""The requests of one connection."""


def request(
    method: str, path: str, token: str, body: bytes = b"", media_type: str = "application/json"
) -> bytes:
    """A request, ready to send."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def post(path: str, body: bytes, token: str, media_type: str = "application/json") -> bytes:
    """A POST request, ready to send."""
    return request("POST", path, token, body, media_type)


def get(path: str, token: str) -> bytes:
    """A GET request, ready to send."""
    return request("GET", path, token)


def rate(port: int, requests: Sequence[bytes], turns: int, *, expect: bytes = b"") -> Timed:
    """Requests a second when each of ``requests`` is sent ``turns`` times on a connection of its own."""
    return drive(port, [repeat(one, turns) for one in requests], len(requests) * turns, expect=expect)


def drive(port: int | Sequence[int], streams: Sequence[Stream], units: int, *, expect: bytes = b"") -> Timed:
    """Units a second, when each stream is sent one by one on a connection of its own until all are answered.

    Args:
        port: of a server on this machine; of several, the connections are dealt out to them in turn.
        streams: the requests of each connection; iterators are asked for the next one when it is due.
        units: what all of them come to.
        expect: what every answer has to contain.

    Raises:
        RuntimeError: an answer is not 200 or not what is expected: a benchmark of refusals says nothing.
    """
    ports = cycle((port,) if isinstance(port, int) else port)
    lanes = [_Lane(to, iter(stream), expect) for to, stream in zip(ports, streams, strict=False)]
    with selectors.DefaultSelector() as selector:
        watch = Stopwatch()
        for lane in lanes:
            lane.begin(selector)
        while selector.get_map():
            ready = selector.select(_SILENT_SECONDS)
            if not ready:
                raise RuntimeError(f"the server did not answer for {_SILENT_SECONDS} seconds")
            for key, mask in ready:
                key.data.go_on(selector, mask)
        seconds, share = watch.read()
    return Timed(units / seconds, share)


def one(port: int, message: bytes) -> bytes:
    """Sends one request on a new connection and returns the whole answer, which must be a 200."""
    answers: list[bytes] = []
    lane = _Lane(port, iter([message]), b"", answers)
    with selectors.DefaultSelector() as selector:
        lane.begin(selector)
        while selector.get_map():
            for key, mask in selector.select():
                key.data.go_on(selector, mask)
    return answers[0]


class _Lane:
    """One keep-alive connection and what is still to be sent on it."""

    def __init__(
        self, port: int, requests: Iterator[bytes], expect: bytes, answers: list[bytes] | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._requests = requests
        self._expect = expect
        self._answers = answers
        self._unsent = memoryview(b"")
        self._received = b""

    def begin(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._socket, _READ, self)
        self._next(selector)

    def go_on(self, selector: selectors.BaseSelector, mask: int) -> None:
        if mask & _WRITE:
            self._send(selector)
        if mask & _READ:
            self._receive(selector)

    def _next(self, selector: selectors.BaseSelector) -> None:
        message = next(self._requests, None)
        if message is None:
            selector.unregister(self._socket)
            self._socket.close()
            return
        self._unsent = memoryview(message)
        self._send(selector)

    def _send(self, selector: selectors.BaseSelector) -> None:
        was_waiting = selector.get_key(self._socket).events & _WRITE
        with suppress(BlockingIOError):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        if bool(self._unsent) != bool(was_waiting):
            selector.modify(self._socket, _READ | _WRITE if self._unsent else _READ, self)

    def _receive(self, selector: selectors.BaseSelector) -> None:
        found = self._socket.recv(_RECEIVED_BYTES)
        if not found:
            raise RuntimeError(f"the server closed the connection; it had said {self._received!r}")
        self._received += found
        if not _is_whole(self._received):
            return
        answer, self._received = self._received, b""
        if not answer.startswith(_OK) or self._expect not in answer:
            raise RuntimeError(f"not the answer that was expected: {answer[:2_000]!r}")
        if self._answers is not None:
            self._answers.append(answer)
        self._next(selector)


def _is_whole(received: bytes) -> bool:
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = received[:end].lower()
    begin = head.find(_LENGTH)
    if begin < 0:
        raise RuntimeError(f"the answer has no length: {head!r}")
    length = int(head[begin + len(_LENGTH) :].split(b"\r", 1)[0])
    return len(received) >= end + 4 + length
