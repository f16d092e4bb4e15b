"""The one place that wires the service together: settings, pool, ledger, routes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from litestar import Litestar

from app import telemetry
from app.errors import StartupError
from app.http.access import require_permissions
from app.http.edge import Edge
from app.http.exchange import Services
from app.http.openapi import openapi_config
from app.http.problems import respond
from app.http.routes import ROUTES
from app.ledger import Ledger
from app.opening import look, open_ledger
from app.settings import Secrets, Settings, load_secrets, settings_of_this_process
from app.tokens import Tokens
from db.checks import check_start
from db.pool import create_pool
from db.schema import DEFAULT_TENANT_ID

OpenLedger = Callable[[Settings, Secrets], AbstractAsyncContextManager[Ledger]]


def create_app(settings: Settings, secrets: Secrets, *, open_ledger: OpenLedger | None = None) -> Edge:
    """Builds the ASGI application. Nothing is opened before its lifespan starts.

    Args:
        settings: what the environment says.
        secrets: operator token and master key.
        open_ledger: opens the ledger for the application's lifetime; the default connects to PostgreSQL.
    """
    services = Services(settings, Tokens(secrets.master_key, secrets.operator_token, DEFAULT_TENANT_ID))
    opener = open_ledger or connect

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with opener(settings, secrets) as ledger:
            services.ledger = ledger
            try:
                yield
            finally:
                services.draining = True

    return Edge(_routes(lifespan), services)


def _routes(lifespan: Callable[[Litestar], AbstractAsyncContextManager[None]]) -> Litestar:
    require_permissions(ROUTES)
    return Litestar(
        ROUTES,
        exception_handlers={Exception: respond},
        lifespan=[lifespan],
        openapi_config=openapi_config(),
        # Bodies are read and limited by app.http.bodies, logging is app.telemetry's.
        request_max_body_size=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )


class _OneLine(logging.Filter):
    """A pool that cannot reconnect says so in a line each time; its tracebacks would bury the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Puts the error's sentence in the place of its traceback."""
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            record.msg = f"{record.getMessage()}: {str(error) or type(error).__name__}"
            record.args, record.exc_info = None, None
        return True


_POOL_LOG_FILTER = _OneLine()


@asynccontextmanager
async def connect(settings: Settings, secrets: Secrets) -> AsyncIterator[Ledger]:
    """Pool and ledger as long as the block runs; at its end accepted appends are settled first.

    Raises:
        StartupError: no database is set, it is away or refuses, or is not as it must be; says what to change.
        UnavailableError: the database went away meanwhile.
    """
    if settings.database_url is None:
        raise StartupError("TRAILS_DATABASE_URL must name a PostgreSQL database")
    logging.getLogger("asyncpg.pool").addFilter(_POOL_LOG_FILTER)
    await look(settings.database_url)
    pool = await create_pool(
        settings.database_url, max_size=settings.pool_size, command_timeout=settings.command_timeout_secs
    )
    try:
        async with pool.acquire() as connection:
            await check_start(connection)
        ledger = await open_ledger(pool, settings, secrets)
        try:
            yield ledger
        finally:
            await ledger.close()
    finally:
        await pool.close()


def app_of_this_process() -> Edge:
    """The application that a server process runs, all from its environment: ``uvicorn --factory``.

    Raises:
        StartupError: a setting or secret that does not fit.
    """
    settings = settings_of_this_process()
    secrets = load_secrets(settings)
    telemetry.configure(settings.log_level, settings.log_format, secrets=(secrets.operator_token,))
    return create_app(settings, secrets)
