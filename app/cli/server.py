"""The HTTP server: with ``app.http.connection`` and ``supervisor`` all that knows which one is used.

A server process builds its application from its environment (``app.asgi:app_of_this_process``), so one
process and many start alike. The socket is bound before anything else is started: a port that is taken is
told at once, and requests that come early wait instead of being refused.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import uvicorn

from app.cli.supervisor import Supervisor
from app.errors import StartupError
from app.http.connection import Connection

APPLICATION: Final = "app.asgi:app_of_this_process"

DRAIN_SECS: Final = 20
"""How long running requests may finish after a stop; longer than any database time-out."""

START_SECS: Final = 30
"""A process of several that does not answer for so long is replaced: one that is starting up, too."""

_BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """Binds the address, before anything else is started.

    Raises:
        StartupError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise StartupError(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what listens there, or set TRAILS_BIND"
        ) from error
    bound.set_inheritable(True)
    return bound


def base_url(bound: socket.socket) -> str:
    """The URL of what listens on the socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def configuration(application: Any, **more: Any) -> uvicorn.Config:  # noqa: ANN401  uvicorn's own types
    """How the server is set up, for an application or the name of one; ``more`` goes to uvicorn as it is."""
    settings = {
        "http": Connection,
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_graceful_shutdown": DRAIN_SECS,
        "timeout_worker_healthcheck": START_SECS,
    }
    return uvicorn.Config(application, **{**settings, **more})


def serve(bound: socket.socket, *, workers: int) -> int:
    """Serves until SIGINT or SIGTERM, then lets running requests finish. Returns the exit code.

    Raises:
        StartupError: none of several processes came to serve.
    """
    config = configuration(APPLICATION, factory=True, workers=workers)
    if workers > 1:
        Supervisor(config, sockets=[bound]).run()
        return 0
    server = uvicorn.Server(config)
    server.run(sockets=[bound])
    return 0 if server.started else 1


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within the block SIGINT and SIGTERM unwind the stack, so that whatever was started is stopped.

    The server handles both itself while it serves and hands them on when it has drained.
    """
    before = {number: signal.signal(number, _unwind) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _StoppedError:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _StoppedError(BaseException):
    """Somebody asked us to stop."""


def _unwind(_number: int, _frame: FrameType | None) -> None:
    raise _StoppedError
