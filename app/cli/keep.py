"""Keeping the embedded PostgreSQL alive while the service runs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.embedded import EmbeddedPostgres
from app.errors import StartupError

_LOOK_SECONDS: Final = 0.5

_log = logging.getLogger(__name__)


class _Keeper(threading.Thread):
    """Looks now and then whether the server lives, and starts it again when it does not."""

    def __init__(self, embedded: EmbeddedPostgres) -> None:
        super().__init__(name="keeper of the embedded PostgreSQL", daemon=True)
        self._embedded = embedded
        self._over = threading.Event()
        self.failure: StartupError | None = None

    def run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                if self._embedded.revive():
                    _log.warning("the embedded PostgreSQL had died; it was started again, with the same data")
            except StartupError as error:
                self.failure = error
                # The service stops in order, then this command says why.
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def end(self) -> None:
        """Lets go of the server, so that it can be stopped."""
        self._over.set()
        self.join()


@contextmanager
def kept_alive(embedded: EmbeddedPostgres | None) -> Iterator[None]:
    """Within the block a server that dies is started again; where that fails the service is ended.

    Raises:
        StartupError: at the end of the block, when the server could not be started again.
    """
    if embedded is None:
        yield
        return
    keeper = _Keeper(embedded)
    keeper.start()
    try:
        yield
    finally:
        keeper.end()
        if keeper.failure is not None:
            raise keeper.failure
