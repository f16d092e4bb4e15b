"""A service that answers as a test says, over real HTTP: for answers of trouble."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

NDJSON = "application/x-ndjson"
PROBLEM = "application/problem+json"


class Got(msgspec.Struct, frozen=True):
    """A request as it came in."""

    path: str
    key: str | None
    body: bytes
    headers: dict[str, str]

    @property
    def node_ids(self) -> list[list[str]]:
        """The ids of the nodes of each line."""
        return [
            [node["node_id"] for node in json.loads(line)["trace_tree"]] for line in self.body.splitlines()
        ]


class Reply(msgspec.Struct, frozen=True):
    """An answer; None as status: the connection is cut instead."""

    status: int | None
    body: bytes = b""
    content_type: str = PROBLEM
    headers: tuple[tuple[str, str], ...] = ()


def stored(got: Got) -> Reply:
    """Every line is on record."""
    return results(*[{"status": 200} for _ in got.body.splitlines()])


def results(*lines: dict[str, object]) -> Reply:
    """One result a line."""
    told = [json.dumps({"line": number, **line}).encode() + b"\n" for number, line in enumerate(lines, 1)]
    return Reply(200, b"".join(told), NDJSON)


def problem(status: int, code: str, **headers: str) -> Reply:
    """A problem document."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Reply(status, json.dumps({"code": code, "error": f"it is {code}"}).encode(), headers=named)


Answering = Callable[[Got], Reply]


class Scripted:
    """Gives the answers of ``script`` in turn, then ``stored`` for ever; keeps what it got."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.script: list[Reply | Answering] = []
        self.url = ""

    def answer(self, got: Got) -> Reply:
        self.got.append(got)
        step = self.script.pop(0) if self.script else stored
        return step if isinstance(step, Reply) else step(got)


@contextmanager
def scripted() -> Iterator[Scripted]:
    """The service on a free port."""
    service = Scripted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._handle()

        def do_GET(self) -> None:
            self._handle()

        def _handle(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            reply = service.answer(Got(self.path, headers.get("idempotency-key"), body, headers))
            if reply.status is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in (("Content-Type", reply.content_type), *reply.headers):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
