"""One request on its way through the service: who asks, what it was granted, whether its body was read.

The edge makes one ``Exchange`` a request and puts it into the ASGI scope, where everything behind it reads
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from litestar.connection import Request
from litestar.types import Scope
from prometheus_client import CollectorRegistry

from app.http.limits import Limits
from app.http.room import Room
from app.http.streams import Streams
from app.http.traffic import Traffic

if TYPE_CHECKING:
    from app.errors import TrailsError
    from app.http.room import Place
    from app.ledger import Ledger
    from app.principal import Principal
    from app.settings import Settings
    from app.tokens import Tokens

Call: TypeAlias = Request[Any, Any, Any]
"""A request as Litestar hands it to routes."""

PROBE_KEPT_SECS = 1.0
"""How long a probe's result is told again: anybody may ask, and each probe writes."""

WHOLE = "trails.whole"
"""In the scope once the request has arrived whole, if the server says so: nobody has to be waited for."""

ENDED = "trails.ended"
"""In the scope once the client has ended its sending side, if the server says so: it may be gone."""

CUT_OFF = "trails.cut_off"
"""In the scope, if the server says so: what ends the connection by a reset, with a reason for the log."""

_KEY = "trails.exchange"
_HEADERS = "trails.headers"


class Services:
    """What the routes need, made once a process; the ledger is there while the lifespan runs."""

    __slots__ = (
        "_ledger",
        "_probe",
        "_probed_at",
        "console_key",
        "draining",
        "limits",
        "registry",
        "room",
        "settings",
        "streams",
        "tokens",
        "traffic",
    )

    def __init__(self, settings: Settings, tokens: Tokens, *, console_key: bytes = b"") -> None:
        self.settings = settings
        self.tokens = tokens
        self.console_key = console_key
        """What seals the cookies of the console; 32 bytes."""
        self.draining = False
        self.room = Room()
        self.traffic = Traffic()
        self.limits = Limits(settings.rate_per_key, settings.failures_per_peer, self.traffic.refuse)
        self.streams = Streams(settings.max_streams, settings.max_streams_per_tenant)
        self.registry = CollectorRegistry()
        """What ``/metrics`` tells; ``create_app`` puts in what there is."""
        self._ledger: Ledger | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probed_at = 0.0

    def probe(self) -> asyncio.Task[None]:
        """The probe of the append path that is under way or has just ended, well or not; else a new one."""
        if self._probe is None or (self._probe.done() and self._probe_is_old()):
            self._probe = asyncio.create_task(self._probe_now())
            self._probe.add_done_callback(_looked_at)
        return self._probe

    def _probe_is_old(self) -> bool:
        return time.monotonic() - self._probed_at >= PROBE_KEPT_SECS

    async def _probe_now(self) -> None:
        try:
            await self.ledger.probe()
        finally:
            self._probed_at = time.monotonic()

    def slug_of(self, tenant_id: UUID) -> str:
        """What the log calls a tenant: its slug, once it is known here, else its id."""
        return str(tenant_id) if self._ledger is None else self._ledger.slug_of(tenant_id)

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        if self._ledger is None:
            raise RuntimeError("the application's lifespan has not started")
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger | None) -> None:
        self._ledger = ledger


def _looked_at(probe: asyncio.Task[None]) -> None:
    """A probe that failed after its caller had left was no surprise to anybody."""
    if not probe.cancelled():
        probe.exception()


class Exchange:
    """State of one request; made by the edge, filled by authentication and authorisation."""

    __slots__ = (
        "body_begun",
        "body_over",
        "body_read",
        "cookies",
        "holder",
        "place",
        "principal",
        "refusal",
        "request_id",
        "services",
    )

    def __init__(self, services: Services, request_id: str) -> None:
        self.services = services
        self.request_id = request_id
        self.holder: Principal | None = None
        """Whose API key the request carries; it becomes the principal when a route asks who calls."""
        self.principal: Principal | None = None
        self.refusal: TrailsError | None = None
        self.body_read = False
        self.body_begun = False
        self.body_over = False
        """Whether no more of it will come, though it may be too large to be read."""
        self.cookies: list[tuple[bytes, bytes]] = []
        """Headers that the answer carries besides its own: a visit to the console that is renewed."""
        self.place: Place | None = None
        """What its large body takes of the room, until it is answered."""

    def caller(self) -> dict[str, str]:
        """Who asks, for the log: role, tenant, agent and the visible id of a key; empty for nobody known."""
        principal = self.principal or self.holder
        if principal is None:
            return {}
        told = {"role": principal.role.value, "tenant": self.services.slug_of(principal.tenant_id)}
        if principal.agent_id is not None:
            told["agent"] = principal.agent_id
        if principal.key_id is not None:
            told["key"] = principal.key_id
        return told


def attach(scope: Scope, exchange: Exchange) -> None:
    """Puts the exchange where ``exchange_in`` finds it."""
    scope[_KEY] = exchange  # type: ignore[literal-required]  # ASGI lets applications add keys of their own


def exchange_in(scope: Scope) -> Exchange:
    """The exchange of this request."""
    return scope[_KEY]  # type: ignore[literal-required,no-any-return]  # as above


def tell_leaving(scope: Scope) -> None:
    """The server ends: answers without an end, such as streams of events, have to end themselves."""
    exchange: Exchange | None = scope.get(_KEY)  # type: ignore[assignment]  # as above
    if exchange is not None:
        exchange.services.draining = True


def services_of(request: Call) -> Services:
    """The process's services, for a route."""
    return exchange_in(request.scope).services


def headers(scope: Scope, name: bytes) -> Sequence[bytes]:
    """All values of a header, as they came; ``name`` in lower case."""
    by_name: dict[bytes, list[bytes]] | None = scope.get(_HEADERS)  # type: ignore[assignment]  # as above
    if by_name is None:
        by_name = {}
        for key, value in scope["headers"]:
            by_name.setdefault(key, []).append(value)
        scope[_HEADERS] = by_name  # type: ignore[literal-required]  # as above
    return by_name.get(name, ())
