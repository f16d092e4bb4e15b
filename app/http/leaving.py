"""Leaving: a process that is told to stop says so before it stops (case H27).

Whoever sends it requests, such as a load balancer, looks at ``/readyz`` now and then. So after SIGTERM that
says 503 at once, and everything is still served for a while; then the server's own handler of the signal has
its turn, which takes no new connections and lets running requests finish. A second SIGTERM ends the wait, and
SIGINT, which a person sends, is obeyed at once.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.http.exchange import Services


@contextmanager
def telling_first(services: Services, secs: float) -> Iterator[None]:
    """Within the block SIGTERM makes the service not ready, and reaches who handled it before ``secs`` later.

    In a thread that is not the main one nothing is changed: signals do not come there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGTERM)

    def hand_on(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)

    def told(number: int, frame: FrameType | None) -> None:
        if services.draining or not secs:
            hand_on(number, frame)
        else:
            # From the handler the loop is only woken: it may be in the middle of anything.
            loop.call_soon_threadsafe(loop.call_later, secs, hand_on, number, None)
        services.draining = True

    if not callable(before):  # nobody handles it in order: it ends the process, as the system does
        yield
        return
    signal.signal(signal.SIGTERM, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
