"""A way to a service on which answers get lost: HTTP that is forwarded whole, and answered or cut as told."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Lossy:
    """What happens on the way.

    Attributes:
        lose: so many of the next answers to a POST are cut, after the service has carried it out.
        away: requests are cut before they reach the service.
        keys: the Idempotency-Key of each POST that came by.
    """

    def __init__(self) -> None:
        self.url = ""
        self.lose = 0
        self.away = False
        self.keys: list[str | None] = []
        self._lock = threading.Lock()

    def loses(self) -> bool:
        """Whether this answer is one of those that are cut."""
        with self._lock:
            lost = self.lose > 0
            self.lose -= lost
            return lost


@contextmanager
def lossy(target: str) -> Iterator[Lossy]:
    """The way to the service at ``target``, on a free port."""
    way = Lossy()
    to = urlsplit(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._forward(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            way.keys.append(self.headers.get("Idempotency-Key"))
            self._forward(body)

        def _forward(self, body: bytes | None) -> None:
            if way.away:
                self.close_connection = True
                return
            upstream = http.client.HTTPConnection(str(to.hostname), to.port or 80, timeout=20)
            try:
                upstream.request(self.command, self.path, body, dict(self.headers.items()))
                answer = upstream.getresponse()
                content = answer.read()
            finally:
                upstream.close()
            if body is not None and way.loses():
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as the base class has it
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    way.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield way
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
