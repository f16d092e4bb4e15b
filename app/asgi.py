"""The one place that wires the service together: settings, pool, ledger, routes."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

import msgspec
from litestar import Litestar, Router
from litestar.exceptions import NotFoundException
from litestar.response import Response

from app import telemetry
from app.chain.keys import derive
from app.console.pages import PAGES
from app.console.trouble import told
from app.http.access import require_permissions
from app.http.edge import Edge
from app.http.exchange import Call, Services
from app.http.hosts import served_at
from app.http.leaving import telling_first
from app.http.metrics import registry_of
from app.http.openapi import openapi_config
from app.http.options import options_of
from app.http.problems import respond
from app.http.routes import ROUTES
from app.ledger import Ledger
from app.ledger.watch.patrol import on_patrol
from app.opening import connect, heads_kept
from app.settings import Secrets, Settings, load_secrets, settings_of_this_process
from app.tokens import Tokens
from db.schema import DEFAULT_TENANT_ID

GARBAGE_OBJECTS: Final = 10_000
"""Containers made and not yet released before the process looks for cycles among them: more than a batch has.

With the interpreter's 700, a batch of trees is searched while it is read, and never holds a cycle.
"""

OpenLedger = Callable[[Settings, Secrets], AbstractAsyncContextManager[Ledger]]


def create_app(settings: Settings, secrets: Secrets, *, open_ledger: OpenLedger | None = None) -> Edge:
    """Builds the ASGI application. Nothing is opened before its lifespan starts.

    Args:
        settings: what the environment says.
        secrets: operator token and master key.
        open_ledger: opens the ledger for the application's lifetime; the default connects to PostgreSQL.
    """
    tokens = Tokens(
        secrets.master_key, secrets.operator_token, DEFAULT_TENANT_ID, root_token=secrets.root_token
    )
    services = Services(settings, tokens, console_key=derive(secrets.master_key, "console"))
    services.registry = registry_of(services)
    opener = open_ledger or connect

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with opener(settings, secrets) as ledger:
            services.ledger = ledger
            patrolled = _patrolled(ledger, settings.verify_records_per_sec)
            async with heads_kept(ledger, settings), ledger.keep_statistics(), patrolled:
                try:
                    async with _delivering(ledger, settings):
                        with telling_first(services, settings.stop_delay_secs):
                            yield
                finally:
                    services.draining = True

    return Edge(_routes(lifespan), services)


def _patrolled(ledger: Ledger, records_per_sec: int) -> AbstractAsyncContextManager[None]:
    return on_patrol(ledger.patrol(records_per_sec)) if records_per_sec else nullcontext()


def _delivering(ledger: Ledger, settings: Settings) -> AbstractAsyncContextManager[None]:
    give_up_secs = 3_600.0 * settings.webhook_give_up_hours
    return ledger.deliverer(settings.webhook_allow or (), give_up_secs).delivering()


def _routes(lifespan: Callable[[Litestar], AbstractAsyncContextManager[None]]) -> Litestar:
    require_permissions((*ROUTES, *PAGES))
    console = Router("/", route_handlers=PAGES, exception_handlers={Exception: told})
    return Litestar(
        [*options_of(ROUTES), *ROUTES, console],
        exception_handlers={Exception: _answered},
        lifespan=[lifespan],
        openapi_config=openapi_config(),
        # Bodies are read and limited by app.http.bodies, logging is app.telemetry's.
        request_max_body_size=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )


def _answered(request: Call, error: Exception) -> Response[bytes]:
    """What went wrong outside the pages: a problem document, or a page where a browser asked for one."""
    is_browser = "text/html" in request.headers.get("accept", "")
    if isinstance(error, NotFoundException) and request.method in {"GET", "HEAD"} and is_browser:
        return told(request, error)
    return respond(request, error)


def app_of_this_process() -> Edge:
    """The application that a server process runs, all from its environment: ``uvicorn --factory``.

    Raises:
        StartupError: a setting or secret that does not fit.
    """
    settings = settings_of_this_process()
    names = served_at(settings.allowed_hosts, settings.bind_host)
    settings = msgspec.structs.replace(settings, allowed_hosts=names)
    secrets = load_secrets(settings)
    known = (secrets.operator_token, secrets.root_token, settings.metrics_token, secrets.master_key.hex())
    hidden = tuple(secret for secret in known if secret is not None)
    telemetry.configure(settings.log_level, settings.log_format, secrets=hidden)
    app = create_app(settings, secrets)
    _look_for_garbage_seldom()
    return app


def _look_for_garbage_seldom() -> None:
    """What was loaded until now lives as long as the process, so no later search has to walk it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
