"""A receiver of webhooks on this machine: an HTTP server that notes what it is sent and answers as told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

SECS = 30.0


class Delivered(msgspec.Struct, frozen=True):
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    @property
    def place(self) -> tuple[str, int]:
        """Which record it tells."""
        return self.event["subject"], self.event["data"]["seq"]

    def is_signed_by(self, secret: str) -> bool:
        """As the specification tells receivers to check it, in its own words."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split(" ")


class Receiver:
    """What it was sent; ``answer`` says what comes back."""

    def __init__(self) -> None:
        self.got: list[Delivered] = []
        self.answer: Callable[[Delivered], int] = lambda _: 204
        self.location = ""
        self.retry_after = ""
        self.endless = False
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks?key=in-the-url"

    @property
    def taken(self) -> list[Delivered]:
        """What was answered with 2xx."""
        return [one for one, status in zip(self.got, self.statuses, strict=False) if 200 <= status < 300]

    statuses: list[int]

    def wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECS
        while not is_so():
            assert time.monotonic() < deadline, [one.event["id"] for one in self.got]
            time.sleep(0.02)

    def wait_for(self, count: int) -> list[Delivered]:
        """Waits until so many were taken."""
        self.wait(lambda: len(self.taken) >= count)
        return self.taken


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver on a free port, which speaks TLS if it is told how."""
    receiver = Receiver()
    receiver.statuses = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            one = Delivered(self.path, headers, body)
            status = receiver.answer(one)
            with lock:
                receiver.got.append(one)
                receiver.statuses.append(status)
            self.send_response(status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            if receiver.retry_after:
                self.send_header("Retry-After", receiver.retry_after)
            self.send_header("Content-Length", str(2**40 if receiver.endless else 0))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    receiver.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
