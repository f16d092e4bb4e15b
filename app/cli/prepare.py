"""Getting a database ready: who the URL's role is, roles and migrations, and the service's own login."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg
import msgspec

from app.chain.keys import derive
from app.cli.database import database_url
from app.embedded import EmbeddedPostgres
from app.errors import StartupError
from app.ledger import Ledger
from app.settings import Secrets, Settings
from db import migrate
from db.checks import check_start
from db.errors import translate
from db.pool import create_pool

PASSWORD_PURPOSE: Final = "trails_app password"  # noqa: S105  the name of a purpose
"""What the password of ``trails_app`` is derived for; it is stored nowhere."""

_ROLE: Final = """
SELECT rolsuper OR rolcreaterole AS privileged, to_regnamespace('trails') IS NOT NULL AS prepared
  FROM pg_catalog.pg_roles WHERE rolname = current_user
"""


class Login(msgspec.Struct, frozen=True):
    """What a URL's role may do, and whether the database holds our schema."""

    privileged: bool
    prepared: bool


def app_password(secrets: Secrets) -> str:
    """The password of ``trails_app``, the same for every process with this master key."""
    return derive(secrets.master_key, PASSWORD_PURPOSE).hex()


@contextmanager
def service_database(settings: Settings, secrets: Secrets) -> Iterator[str]:
    """The URL to serve with, as ``trails run`` makes it; an embedded server lives as long as the block.

    Raises:
        StartupError: the database cannot be reached or made ready.
    """
    if settings.database_url is not None:
        yield made_ready(settings.database_url, secrets)
        return
    with EmbeddedPostgres(settings.data_dir) as embedded:
        yield made_ready(embedded.url, secrets)


def made_ready(url: str, secrets: Secrets) -> str:
    """The URL of a restricted role on a migrated database.

    With a privileged role the database is migrated, and the service's role logs in with the derived
    password, which is set if that login fails. Any other role is taken as it is.
    """
    if not login(url).privileged:
        return url
    quiet_alembic()
    password = app_password(secrets)
    restricted = migrate.app_url(url, password)
    if _opens(restricted):
        migrate.migrate(url)
    else:
        migrate.bootstrap(url, app_password=password)
    return restricted


def quiet_alembic() -> None:
    """Keeps Alembic's account of its own plugins out of our log."""
    logging.getLogger("alembic").setLevel(logging.WARNING)


def existing_url(settings: Settings, secrets: Secrets) -> str:
    """The URL to serve with, as ``trails serve`` takes it: as given, or the embedded server's own login."""
    url = database_url(settings)
    return url if settings.database_url is not None else migrate.app_url(url, app_password(secrets))


def login(url: str) -> Login:
    """Logs in and looks who we are.

    Raises:
        StartupError: the server cannot be reached or refuses.
    """
    try:
        return asyncio.run(_login(url))
    except asyncpg.PostgresError as error:
        raise StartupError(f"the database refuses the login (SQLSTATE {error.sqlstate}): {error}") from error
    except (OSError, ValueError, asyncpg.InterfaceError) as error:
        raise StartupError(
            f"the database cannot be reached: {str(error) or type(error).__name__}; "
            "check TRAILS_DATABASE_URL and that the server runs"
        ) from error


def preflight(url: str, secrets: Secrets) -> None:
    """What must hold before a port answers: a safe role, the right schema, keys that open.

    Raises:
        TrailsError: says what to change.
    """
    asyncio.run(_preflight(url, secrets))


async def _preflight(url: str, secrets: Secrets) -> None:
    pool = await create_pool(url, min_size=1, max_size=1)
    try:
        async with pool.acquire() as connection:
            with translate():
                await check_start(connection)
        ledger = await Ledger.open(pool, master_key=secrets.master_key)
        await ledger.close()
    finally:
        await pool.close()


async def _login(url: str) -> Login:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        row = await connection.fetchrow(_ROLE)
        return Login(bool(row and row["privileged"]), bool(row and row["prepared"]))
    finally:
        await connection.close()


def _opens(url: str) -> bool:
    """Whether the login works and finds our schema."""
    try:
        return asyncio.run(_login(url)).prepared
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
