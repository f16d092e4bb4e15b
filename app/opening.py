"""Opening a database: who logs in, whether the master key is its own, and what a refusal means.

Every command and the service say the same sentence for the same trouble.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import asyncpg
import msgspec

import db.ledger
from app import heads
from app.errors import KeyMaterialError, StartupError
from app.heads import NO_HEADS, KeptHeads
from app.ledger import Ledger
from app.ledger.keys.sealed_key import open_key
from app.ledger.watch.heads import unusable
from app.settings import MASTER_KEY_FILE, Secrets, Settings
from db import pooler
from db.checks import check_start
from db.ledger import SigningKeyRow
from db.pool import Pool, close_pool, create_pool
from db.schema import APP_ROLE, DEFAULT_TENANT_ID

CONNECT_SECONDS: Final = 10
"""Bound on reaching the server and logging in."""

_LOOK: Final = """
SELECT rolsuper OR rolcreaterole AS privileged, to_regnamespace('trails') IS NOT NULL AS prepared,
       EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1) AS served,
       current_setting('server_encoding') AS encoding
  FROM pg_catalog.pg_roles WHERE rolname = current_user
"""
_KEYS: Final = "SELECT tenant_id, key_id, public_key, sealed_secret, created_at FROM trails.signing_keys"

_ADVICE: Final = {
    asyncpg.InvalidPasswordError: "check the user and password of TRAILS_DATABASE_URL",
    asyncpg.InvalidAuthorizationSpecificationError: "check the user of TRAILS_DATABASE_URL and pg_hba.conf",
    asyncpg.InvalidCatalogNameError: "make it (createdb --encoding=UTF8), or correct TRAILS_DATABASE_URL",
}

_POOLED: Final = (
    "TRAILS_DATABASE_URL leads to a connection pooler, which must be told: set TRAILS_POOLER=transaction "
    "(for pgbouncer in transaction or session mode), or give the URL of the PostgreSQL server itself"
)


class Login(msgspec.Struct, frozen=True):
    """What a URL's role may do, and what the database holds."""

    privileged: bool
    """Whether the role may migrate: a superuser, or one that may create roles."""

    prepared: bool
    """Whether our schema is there."""

    served: bool
    """Whether the cluster has the service's role."""

    encoding: str
    """The database's encoding, as PostgreSQL calls it."""

    pooled: bool = False
    """Whether the URL leads to a connection pooler, not to the server."""

    def require_direct(self) -> None:
        """Refuses a pooler, for work that relies on one session of the server.

        Raises:
            StartupError: says what to set.
        """
        if self.pooled:
            raise StartupError(
                "this command needs a direct connection, and TRAILS_DATABASE_URL leads to a connection "
                "pooler: give it the URL of the PostgreSQL server itself"
            )


async def look(url: str, *, embedded: Path | None = None) -> Login:
    """Logs in and looks.

    Args:
        url: whose login.
        embedded: the data folder, when ``url`` is that of its embedded server.

    Raises:
        StartupError: the server cannot be reached or refuses; says what to do.
    """
    with explained(embedded):
        connection = await _connected(url)
        try:
            row = await connection.fetchrow(_LOOK, APP_ROLE)
            pooled = await pooler.is_pooled(connection)
        finally:
            await connection.close()
    privileged, prepared, served, encoding = row or (False, False, False, "UTF8")
    return Login(privileged, prepared, served, encoding, pooled)


async def look_directly(url: str, *, embedded: Path | None = None) -> Login:
    """The same, for work that relies on one session of the server.

    Raises:
        StartupError: the server cannot be reached or refuses, or ``url`` leads to a pooler; says what to do.
    """
    found = await look(url, embedded=embedded)
    found.require_direct()
    return found


async def accepts(url: str) -> bool:
    """Whether the server takes this user with this password (what it may then do is another matter).

    Raises:
        StartupError: the server cannot be reached.
    """
    with explained():
        try:
            connection = await _connected(url)
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError):
            return False
        except asyncpg.InsufficientPrivilegeError:
            return True  # it may not enter this database yet, which is asked after the password
        await connection.close()
        return True


async def check_master_key(url: str, settings: Settings, secrets: Secrets) -> None:
    """Refuses a master key that opens none of the keys that ``url`` may see; changes nothing.

    Raises:
        StartupError: says where the key came from.
    """
    with explained(), suppress(asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError):
        connection = await _connected(url)
        try:
            rows = [SigningKeyRow(*row) for row in await connection.fetch(_KEYS)]
        finally:
            await connection.close()
        if rows and not any(_opens(row, secrets) for row in rows):
            raise another_master_key(settings)


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
async def connect(
    settings: Settings, secrets: Secrets, *, as_administrator: bool = False
) -> AsyncIterator[Ledger]:
    """Pool and ledger as long as the block runs; at its end accepted appends are settled first.

    Args:
        settings: with the URL of the database.
        secrets: the master key.
        as_administrator: whether the URL is an administrator's, who becomes the service's role after login.

    Raises:
        StartupError: no database is set, it is away or refuses, or is not as it must be; says what to change.
        UnavailableError: the database went away meanwhile.
    """
    if settings.database_url is None:
        raise StartupError("TRAILS_DATABASE_URL must name a PostgreSQL database")
    logging.getLogger("asyncpg.pool").addFilter(_POOL_LOG_FILTER)
    found = await look(settings.database_url)
    if found.pooled and settings.pooler == "none":
        raise StartupError(_POOLED)
    pool = await create_pool(
        settings.database_url,
        max_size=settings.pool_size,
        command_timeout=settings.command_timeout_secs,
        role=APP_ROLE if as_administrator else None,
        through_pooler=settings.pooler != "none",
    )
    try:
        async with pool.acquire() as connection:
            await check_start(connection, as_administrator=as_administrator)
        ledger = await open_ledger(pool, settings, secrets)
        try:
            yield ledger
        finally:
            await ledger.close()
    finally:
        await close_pool(pool)


async def open_ledger(pool: Pool, settings: Settings, secrets: Secrets) -> Ledger:
    """``Ledger.open``, which says so when the master key is another installation's.

    Raises:
        StartupError: none of the default tenant's keys opens, or the file of heads cannot be read.
        KeyMaterialError: a stored key is not what it should be.
        UnavailableError: the database is away.
    """
    try:
        return await Ledger.open(
            pool,
            master_key=secrets.master_key,
            chains=settings.chain_cache,
            snapshot_every=settings.snapshot_every,
            kept=_kept(settings),
        )
    except KeyMaterialError as error:
        rows: Iterable[SigningKeyRow] = await db.ledger.signing_keys(pool, DEFAULT_TENANT_ID)
        if any(_opens(row, secrets) for row in rows):
            raise
        raise another_master_key(settings) from error


def _kept(settings: Settings) -> KeptHeads:
    """The heads that were seen before."""
    if settings.heads_file is None:
        return NO_HEADS
    try:
        return heads.read(settings.heads_file)
    except (OSError, ValueError) as error:
        raise unusable(settings.heads_file, error) from error


@asynccontextmanager
async def heads_kept(ledger: Ledger, settings: Settings) -> AsyncIterator[None]:
    """Keeps the file of heads as long as the block runs, if one is set.

    Raises:
        StartupError: the file cannot be read or written.
        UnavailableError: the database is away.
    """
    if settings.heads_file is None:
        yield
        return
    async with ledger.keep_heads(settings.heads_file, settings.heads_secs):
        yield


def another_master_key(settings: Settings) -> StartupError:
    """The refusal of a master key that is not the one of this database."""
    source = "TRAILS_MASTER_KEY"
    if settings.master_key is None:
        source = str((settings.data_dir / MASTER_KEY_FILE).absolute())
    return StartupError(
        f"the signing keys of this database do not open under the master key of {source}: the database "
        "was set up with another master key; give that one (TRAILS_MASTER_KEY, or keys/master.key of its "
        "folder; where that file was missing a new one was made, and the old one belongs in its place)"
    )


@contextmanager
def explained(embedded: Path | None = None) -> Iterator[None]:
    """Errors of reaching a database become a ``StartupError`` that says what to do."""
    try:
        yield
    except asyncpg.PostgresError as error:
        advice = _ADVICE.get(type(error))
        raise StartupError(
            f"the database refuses (SQLSTATE {error.sqlstate}): {error}" + (f"; {advice}" if advice else "")
        ) from error
    except (
        OSError,
        ValueError,
        asyncio.IncompleteReadError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ) as error:
        reason = str(error) or type(error).__name__
        if embedded is not None and isinstance(error, OSError):
            raise StartupError(
                f"the embedded PostgreSQL of {embedded.absolute()} is not running ({reason}); start it, and "
                "the service, with: trails run"
            ) from error
        raise StartupError(
            f"the database cannot be reached: {reason}; check TRAILS_DATABASE_URL and that the server runs"
        ) from error


async def _connected(url: str) -> pooler.PooledConnection:
    return await pooler.connect(url, seconds=CONNECT_SECONDS)


def _opens(row: SigningKeyRow, secrets: Secrets) -> bool:
    try:
        open_key(
            secrets.master_key,
            tenant_id=row.tenant_id,
            key_id=row.key_id,
            public_key=row.public_key,
            sealed_secret=row.sealed_secret,
        )
    except KeyMaterialError:
        return False
    return True
