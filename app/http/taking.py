"""Answers that their clients do not take (case H31): how long they may stay in our memory, and how much.

What a client has not read lies in the system's buffers first (some megabytes, which the system bounds), and
then in ours. A client that stops reading would keep it there for ever: only time tells it from one on a slow
line.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Iterable
from typing import Final

TAKE_SECS: Final = 30.0
TAKE_BYTES_A_SEC: Final = 64 * 1024
"""So long a client has for what waits for it, and a second more for so many bytes. Then it is cut off."""

UNTAKEN_BYTES: Final = 128 * 1024 * 1024
"""Bytes of answers that wait for clients of one process; above it, whoever dawdles most is cut off."""

_NO_LINGER: Final = struct.pack("ii", 1, 0)

_log = logging.getLogger("trails.http")


class Taking:
    """What one client has still to take. For one event loop.

    Args:
        transport: where its answers go.
        loop: of the transport.
        peer: its address, for the log.
        secs: as ``TAKE_SECS``.
        most: as ``UNTAKEN_BYTES``.
    """

    __slots__ = ("_loop", "_most", "_peer", "_secs", "_since", "_timer", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        peer: str,
        secs: float = TAKE_SECS,
        most: int = UNTAKEN_BYTES,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._peer = peer
        self._secs = secs
        self._most = most
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether something waits for the client and its time runs."""
        return self._timer is not None

    @property
    def untaken(self) -> int:
        """Bytes that wait in this process."""
        return self._transport.get_write_buffer_size()

    @property
    def dawdled(self) -> float:
        """How much of our memory it has had for how long; nothing for whoever has just begun."""
        return self.untaken * (self._loop.time() - self._since)

    def begin(self, others: Iterable[Taking]) -> None:
        """Something was sent: unless the system took all of it, the client's time runs.

        Args:
            others: all clients that are watched, this one too or not.
        """
        if self._timer is not None or not self.untaken:
            return
        self._since = self._loop.time()
        allowed = self._secs + self.untaken / TAKE_BYTES_A_SEC
        self._timer = self._loop.call_later(allowed, self._is_late)
        self._make_room({self, *others})

    def end(self) -> None:
        """It has taken nearly everything, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self._timer = None
        if self.untaken:
            self.cut_off("the client does not take its answer")

    def _make_room(self, all_watched: set[Taking]) -> None:
        waiting = [taking for taking in all_watched if taking.waits]
        held = sum(taking.untaken for taking in waiting)
        for taking in sorted(waiting, key=lambda one: one.dawdled, reverse=True):
            if held <= self._most:
                return
            held -= taking.untaken
            taking.cut_off("too many answers wait to be taken, and this client dawdles most")

    def cut_off(self, reason: str) -> None:
        """Ends the connection by a reset and forgets what waits, here and in the system."""
        self.end()
        fields = {"peer": self._peer, "untaken_bytes": self.untaken}
        _log.info("cut off: %s", reason, extra={"fields": fields})
        channel = self._transport.get_extra_info("socket")
        if channel is not None:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()
