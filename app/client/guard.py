"""The guard client: programs ask before they act, over HTTP.

::

    guard = Guard()  # LINEAGE_TRAILS_URL, LINEAGE_TRAILS_TOKEN


    @guard.tool("send_email", cost=5)
    def send_email(to: str, text: str) -> None: ...


    send_email("a@example.com", "hello")  # asks, waits for an approval, runs, reports; or ActionDenied
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING, Literal

from app.client.decisions import (
    ActionDenied,
    Allowed,
    Decision,
    Denied,
    OutcomeRefusedError,
    OutcomeStatus,
    Pending,
)
from app.client.errors import OutboxError
from app.client.gate import APPROVAL_SECS, DECISION_SECS, Gate
from app.client.outbox import Outbox
from app.client.retry import ATTEMPTS
from app.client.service import ServiceBackend
from app.client.settings import Service, service
from app.client.transport import AsyncTransport
from app.client.waiting import Held, OnPending
from app.client.worker import Worker

if TYPE_CHECKING:
    from app.client.backend import Backend
    from app.client.tracker import Session

__all__ = [
    "ActionDenied",
    "Allowed",
    "Decision",
    "Denied",
    "Guard",
    "Held",
    "OutcomeRefusedError",
    "OutcomeStatus",
    "Pending",
]

_log = logging.getLogger("trails.client")


class Guard(Gate):
    """One agent's guard at a service. Safe to use from threads and from any event loop; closes at exit.

    Args:
        url: of the service; else the tracker's, ``LINEAGE_TRAILS_URL``, or this machine.
        token: the agent's; else the tracker's or ``LINEAGE_TRAILS_TOKEN``.
        agent: its id; else the tracker's, ``LINEAGE_TRAILS_AGENT``, or the one that the token names.
        tracker: whose session and current node the actions belong to; outcomes wait in its journal.
        approval_timeout: seconds that a call waits for a person.
        timeout: seconds that a question may take, all attempts together; then it is denied.
        attempts: times that one question is sent while the service does not answer.
        spool: folder in which outcomes wait while the service is away; else below the user's state folder.
        verify: True, or an ``ssl.SSLContext`` with the authority of your own service.
        on_pending: is told once of each action that a call waits for, with how to approve it.

    Raises:
        ConfigurationError: no token or no agent, or a value that cannot be right.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        agent: str | None = None,
        *,
        tracker: Session | None = None,
        approval_timeout: float = APPROVAL_SECS,
        timeout: float = DECISION_SECS,
        attempts: int = ATTEMPTS,
        spool: str | os.PathLike[str] | None = None,
        verify: ssl.SSLContext | Literal[True] = True,
        on_pending: OnPending | None = None,
    ) -> None:
        target = _target(url, token, agent, tracker)
        theirs = None if tracker is None or tracker.outbox.service != target else tracker.outbox
        own = _outbox(target, spool, verify) if theirs is None else None
        outbox = theirs or own

        async def start() -> Backend:
            return ServiceBackend(AsyncTransport(target, timeout=timeout, verify=verify), outbox)

        self.service: Service = target
        """Where this guard asks, and for whom."""
        self._own = [] if own is None else [own]
        super().__init__(
            Worker(start, _close, "trails-guard"),
            tracker=tracker,
            approval_timeout=approval_timeout,
            attempts=attempts,
            timeout=timeout,
            on_pending=on_pending,
        )

    def close(self) -> None:
        """Waits for outcomes on their way, and closes connections; what is left the next program sends."""
        super().close()
        while self._own:
            self._own.pop().close()


async def _close(backend: Backend) -> None:
    await backend.close()


def _target(url: str | None, token: str | None, agent: str | None, tracker: Session | None) -> Service:
    if tracker is None:
        return service(url, token, agent)
    theirs = tracker.outbox.service
    return service(url or theirs.url, token or theirs.token, agent or theirs.agent)


def _outbox(
    target: Service, spool: str | os.PathLike[str] | None, verify: ssl.SSLContext | Literal[True]
) -> Outbox | None:
    try:
        return Outbox.shared(target, spool=spool, verify=verify)
    except OutboxError as error:
        _log.warning("outcomes are kept in memory only while the service is away: %s", error)
        return None
