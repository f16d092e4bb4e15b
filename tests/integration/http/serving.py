"""Runs the application under the server of ``trails serve``, in a thread of the test's process."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import uvicorn

from app.asgi import create_app
from app.cli.server import configuration
from app.http.connection import Connection
from app.http.edge import Edge
from app.settings import Secrets, Settings

START_SECS = 20.0


class Running(msgspec.Struct, frozen=True):
    """A running service."""

    port: int
    operator_token: str
    root_token: str
    app: Edge

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.listening.set()


@contextmanager
def serve(
    database_url: str,
    *,
    protocol: type[Connection] = Connection,
    known: Secrets | None = None,
    **settings: object,
) -> Iterator[Running]:
    """The service on a free port of this machine, set up as ``trails serve`` does.

    Its secrets are its own, unless others are given. Nothing is verified in the background, unless asked for:
    when it is found what a test breaks is the test's to say.
    """
    known = known or Secrets(secrets.token_hex(32), secrets.token_bytes(32), secrets.token_hex(32))
    settings = {"verify_records_per_sec": 0, **settings}
    told = Settings(database_url=database_url, **settings)  # type: ignore[arg-type]  # fields of Settings
    app = create_app(told, known)
    config = configuration(app, host="127.0.0.1", port=0, http=protocol)
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert server.listening.wait(START_SECS)
        assert server.started, "the application did not start; see the log"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Running(port, known.operator_token, known.root_token or "", app)
    finally:
        server.should_exit = True
        thread.join(START_SECS)
