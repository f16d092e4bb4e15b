"""The guard client: programs ask before they act, over HTTP.

::

    guard = Guard()  # LINEAGE_TRAILS_URL, LINEAGE_TRAILS_TOKEN


    @guard.tool("send_email", cost=5)
    def send_email(to: str, text: str) -> None: ...


    send_email("a@example.com", "hello")  # asks, waits for an approval, runs, reports; or ActionDenied
"""

from __future__ import annotations

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
from app.client.gate import APPROVAL_SECS, Gate
from app.client.retry import ATTEMPTS
from app.client.service import ServiceBackend
from app.client.settings import Service, service
from app.client.transport import AsyncTransport
from app.client.worker import Worker

if TYPE_CHECKING:
    from app.client.backend import Backend
    from app.client.tracker import LineageTracker

__all__ = [
    "ActionDenied",
    "Allowed",
    "Decision",
    "Denied",
    "Guard",
    "OutcomeRefusedError",
    "OutcomeStatus",
    "Pending",
]

TIMEOUT_SECS = 10.0
"""For one answer. The service gives up on its own database after five seconds and says so."""


class Guard(Gate):
    """One agent's guard at a service. Safe to use from threads and from any event loop; closes at exit.

    Args:
        url: of the service; else the tracker's, ``LINEAGE_TRAILS_URL``, or this machine.
        token: the agent's; else the tracker's or ``LINEAGE_TRAILS_TOKEN``.
        agent: its id; else the tracker's, ``LINEAGE_TRAILS_AGENT``, or the one that the token names.
        tracker: whose current session and node the actions belong to.
        approval_timeout: seconds that a call waits for a person.
        timeout: seconds for one answer of the service.
        attempts: times that one question is sent while the service does not answer.
        verify: True, or an ``ssl.SSLContext`` with the authority of your own service.

    Raises:
        ConfigurationError: no token or no agent, or a value that cannot be right.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        agent: str | None = None,
        *,
        tracker: LineageTracker | None = None,
        approval_timeout: float = APPROVAL_SECS,
        timeout: float = TIMEOUT_SECS,
        attempts: int = ATTEMPTS,
        verify: ssl.SSLContext | Literal[True] = True,
    ) -> None:
        target = service(url, token, agent)

        async def start() -> Backend:
            return ServiceBackend(AsyncTransport(target, timeout=timeout, verify=verify))

        self.service: Service = target
        """Where this guard asks, and for whom."""
        super().__init__(
            Worker(start, _close, "trails-guard"),
            tracker=tracker,
            approval_timeout=approval_timeout,
            attempts=attempts,
        )


async def _close(backend: Backend) -> None:
    await backend.close()
