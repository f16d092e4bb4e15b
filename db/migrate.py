"""Roles, schema and migrations: what an administrator's connection does before the service starts.

Everything here blocks and talks to the database over psycopg; asynchronous callers use
``asyncio.to_thread``. Any number of processes may start at once (case P38): one transaction-level
advisory lock on a direct connection lets one of them migrate, the others wait a bounded time and find
the work done. No lock outlives its transaction (case P16).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
import asyncpg.pool
from sqlalchemy import URL, Connection, create_engine, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from app.errors import StartupError
from db.schema import APP_ROLE, AUDITOR_ROLE, OWNER_ROLE, REVISION, REVISIONS, SCHEMA

if TYPE_CHECKING:
    from alembic.config import Config

WAIT_MILLISECONDS: Final = 60_000
"""How long a starter waits for another one that is migrating."""

STATEMENT_MILLISECONDS: Final = 300_000
"""Bound on one statement of a migration; building an index on a large table is the longest."""

CONNECT_SECONDS: Final = 10
"""Bound on reaching the server."""

_ADVISORY_LOCK: Final = 0x7472_6169_6C73_0001
"""Key of the migration lock: "trails" and a number, so that it meets nobody else's."""

_RETRIES: Final = 10
"""Attempts at changing shared catalogs, which two databases of one cluster may do at the same moment."""

_MADE_HERE: Final = "trails.made_app_role"
"""Setting by which ``roles.sql`` says that this transaction made ``trails_app``."""

_SCRAM_ITERATIONS: Final = 4096

_NOT_ALWAYS: Final = """
SELECT quote_ident(c.relname), quote_ident(t.tgname)
  FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
 WHERE c.relnamespace = 'trails'::regnamespace AND NOT t.tgisinternal AND t.tgenabled <> 'A'
 ORDER BY 1, 2
"""

_FILLED_AND_UNKNOWN: Final = """
SELECT quote_ident(relname) FROM pg_catalog.pg_class
 WHERE relnamespace = 'trails'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
   AND (reltuples < 0 OR current_setting('track_counts')::boolean
        AND pg_stat_get_last_analyze_time(oid) IS NULL AND pg_stat_get_last_autoanalyze_time(oid) IS NULL)
 ORDER BY 1
"""

_BOOTSTRAP: Final = Path(__file__).parent / "bootstrap"

_CHECKED_LATER: Final = ("trail_mirror", "trail_well_formed")
"""CHECKs of the trail that migrations put on new rows alone (0017, 0020); older rows are checked after."""

_IS_UNCHECKED: Final = (
    "SELECT FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid "
    f"JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = '{SCHEMA}' "
    "AND c.relname = 'agent_audit_trails' AND k.conname = %s AND NOT k.convalidated"
)

_LOCK_NOT_AVAILABLE: Final = "55P03"
_CONCURRENT_CATALOG_CHANGE: Final = frozenset({"XX000", "40001", "40P01", "23505", "42710", "42P06"})


def bootstrap(admin_url: str, *, app_password: str, reset_password: bool = False) -> None:
    """Makes roles, privileges and schema as far as they are missing, then migrates to the newest revision.

    Args:
        admin_url: ``postgresql://`` URL of a role that may create roles and owns the database (or of a
            superuser).
        app_password: the password that ``trails_app`` gets when it is made here; printable ASCII. It is
            sent as a SCRAM verifier, so that no server log can hold it.
        reset_password: give it to a ``trails_app`` that was there before, too. Otherwise its password stays:
            a service, perhaps of another database of the cluster, may be using it.

    Raises:
        StartupError: the server cannot be reached, refuses, the database's encoding is not UTF8, or another
            process migrates for too long.
    """
    with _reported():
        _repeated(lambda: _bootstrap(admin_url, app_password, reset_password=reset_password))
    migrate(admin_url)


def make_roles(admin_url: str, *, app_password: str) -> None:
    """Makes the roles of the cluster as far as they are missing, and nothing else: a dump names them.

    Raises:
        StartupError: the server cannot be reached or refuses.
    """
    with _reported():
        _repeated(lambda: _bootstrap(admin_url, app_password, database=False))


def prepare(admin_url: str) -> None:
    """Says again what belongs to the database itself, and hands our objects to their owner.

    After a restore both are what the dump and who restored it left: see ``bootstrap/database.sql``.

    Raises:
        StartupError: the server cannot be reached or refuses.
    """

    def once() -> None:
        with connected(admin_url) as connection, connection.begin():
            _await_others(connection)
            prepare_database(connection)

    with _reported():
        _repeated(once)


def enable_triggers(admin_url: str) -> list[str]:
    """Lets all triggers of our tables fire always again; returns those that did not, as ``table.trigger``.

    ``pg_restore --disable-triggers`` switches them off and on again, and they are not what they were then.

    Raises:
        StartupError: the server cannot be reached or refuses.
    """
    with _reported(), connected(admin_url) as connection, connection.begin():
        enter_migration(connection)
        found = connection.exec_driver_sql(_NOT_ALWAYS).all()
        for table, trigger in found:
            connection.exec_driver_sql(f"ALTER TABLE {SCHEMA}.{table} ENABLE ALWAYS TRIGGER {trigger}")
    return [f"{table}.{trigger}" for table, trigger in found]


def migrate(admin_url: str, revision: str = "head") -> None:
    """Migrates to ``revision``; does nothing when that is reached.

    Raises:
        StartupError: as for ``bootstrap``, or the database knows newer migrations than this program.
    """
    from alembic import command  # noqa: PLC0415  the service starts without loading Alembic

    with _reported(), connected(admin_url) as connection, connection.begin():
        refuse_other_encodings(encoding(connection))
        enter_migration(connection)
        _refuse_unknown(current_revision(connection))
        command.upgrade(_config(connection), revision)
    with _reported(), connected(admin_url) as connection:
        check_rows(connection)
        _analyze_new(connection)


def _analyze_new(connection: Connection) -> None:
    """Gathers statistics of tables that were filled and never looked at, as by a restore.

    Without them PostgreSQL reads all rows of a tenant to find the last of a chain, until autovacuum comes.
    """
    with connection.begin():
        enter_migration(connection)
        for (table,) in connection.exec_driver_sql(_FILLED_AND_UNKNOWN).all():
            connection.exec_driver_sql(f"ANALYZE {SCHEMA}.{table}")


def check_rows(connection: Connection) -> None:
    """Has the rows of before a migration checked where it left that for later, in transactions of its own.

    Reading a large table takes its time; appends and readers go on meanwhile. The service starts when it is
    done; what was interrupted is done by the next call.
    """
    for name in _CHECKED_LATER:
        with connection.begin():
            if not connection.exec_driver_sql(_IS_UNCHECKED, (name,)).all():
                continue
            enter_migration(connection)
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql(f"ALTER TABLE {SCHEMA}.agent_audit_trails VALIDATE CONSTRAINT {name}")


def downgrade(admin_url: str, revision: str = "base") -> None:
    """Goes back to ``revision``, which removes tables with all their records. For development.

    Raises:
        StartupError: as for ``migrate``.
    """
    from alembic import command  # noqa: PLC0415  the service starts without loading Alembic

    with _reported(), connected(admin_url) as connection, connection.begin():
        enter_migration(connection)
        command.downgrade(_config(connection), revision)


def current_revision(connection: Connection) -> str | None:
    """The revision that the database is at; None when it was never migrated."""
    known = connection.exec_driver_sql(f"SELECT to_regclass('{SCHEMA}.alembic_version') IS NOT NULL").scalar()
    if not known:
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {SCHEMA}.alembic_version").scalar()  # noqa: S608  a constant
    return None if found is None else str(found)


async def check_revision(connection: asyncpg.Connection | asyncpg.pool.PoolConnectionProxy) -> None:
    """Refuses a schema that is older or newer than what this program knows, and who may not see which it is.

    Raises:
        StartupError: the message says which of them, and what to do.
    """
    found: str | None = None
    if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{SCHEMA}.alembic_version"):
        try:
            found = await connection.fetchval(f"SELECT version_num FROM {SCHEMA}.alembic_version")  # noqa: S608  a constant
        except asyncpg.InsufficientPrivilegeError:
            raise StartupError(
                "the login of TRAILS_DATABASE_URL is neither the service's role (trails_app) "
                "nor an administrator's"
            ) from None
    _refuse_unknown(found)
    if found != REVISION:
        raise StartupError(
            f"schema behind: the database is at revision {found or 'none'}, this program needs {REVISION}; "
            "run trails migrate"
        )


def _refuse_unknown(found: str | None) -> None:
    if found is not None and found not in REVISIONS:
        raise StartupError(
            f"schema ahead: this program knows revisions up to {REVISION}, the database is at {found}; "
            "run a newer version of this program"
        )


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A direct connection (psycopg) to ``url`` with an empty search path; closed afterwards."""
    engine = create_engine(
        driver_url(url),
        poolclass=NullPool,
        connect_args={
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "trails-migrate",
            "client_encoding": "utf8",  # whatever the server's is, our scripts are UTF-8
            "options": "-c search_path=pg_catalog",
        },
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def enter_migration(connection: Connection) -> None:
    """Waits for other migrators, then becomes the owner role with time-outs, for this transaction.

    The lock is the transaction's: a migrator that dies leaves nothing behind.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {WAIT_MILLISECONDS}")
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {STATEMENT_MILLISECONDS}")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
    # Tables in use are not waited for long: behind a waiting ALTER TABLE every reader queues.
    connection.exec_driver_sql("SET LOCAL lock_timeout = 5000")
    connection.exec_driver_sql(f"SET LOCAL ROLE {OWNER_ROLE}")


def driver_url(url: str) -> URL:
    """``url`` for SQLAlchemy with the psycopg driver.

    Raises:
        StartupError: not a PostgreSQL URL.
    """
    parsed = parse_url(url)
    return parsed.set(drivername="postgresql+psycopg")


def parse_url(url: str) -> URL:
    """Parses a database URL; errors never show it, since it holds a password.

    Raises:
        StartupError: not a PostgreSQL URL.
    """
    try:
        parsed = make_url(url)
    except Exception as error:  # noqa: BLE001  SQLAlchemy's parse errors quote the URL with its password
        raise StartupError(f"the database URL cannot be read ({type(error).__name__})") from None
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise StartupError("the database URL must begin with postgresql://")
    return parsed.set(drivername="postgresql")


def app_url(admin_url: str, app_password: str) -> str:
    """The service's own URL on the same server and database: role ``trails_app`` with ``app_password``."""
    return with_login(admin_url, APP_ROLE, app_password)


def with_login(url: str, user: str, password: str) -> str:
    """``url`` with another user and password."""
    return parse_url(url).set(username=user, password=password).render_as_string(hide_password=False)


def scram_verifier(password: str, salt: bytes | None = None) -> str:
    """What PostgreSQL stores for ``password`` (RFC 5803), computed here so that the password stays here.

    Raises:
        StartupError: the password is empty or not printable ASCII (which needs no SASLprep).
    """
    if not password or not all(" " <= char <= "~" for char in password):
        raise StartupError("the password of the service's role must be printable ASCII and not empty")
    salt = secrets.token_bytes(16) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, _SCRAM_ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt64, stored64, server64 = (base64.b64encode(part).decode("ascii") for part in (salt, stored, server))
    return f"SCRAM-SHA-256${_SCRAM_ITERATIONS}:{salt64}${stored64}:{server64}"


def encoding(connection: Connection) -> str:
    """The database's encoding, as PostgreSQL calls it."""
    return str(connection.exec_driver_sql("SELECT current_setting('server_encoding')").scalar())


def refuse_other_encodings(found: str) -> None:
    """Refuses a database that cannot hold every text.

    Raises:
        StartupError: it is not UTF8.
    """
    if found != "UTF8":
        raise StartupError(
            f"the encoding of the database must be UTF8, it is {found}; make one with: "
            "createdb --encoding=UTF8 --template=template0 NAME"
        )


def _repeated(change: Callable[[], None]) -> None:
    """Changes shared catalogs, once more when another database of the cluster did so at the same moment."""
    for attempt in range(1, _RETRIES + 1):
        try:
            return change()
        except DBAPIError as error:
            if sqlstate(error) not in _CONCURRENT_CATALOG_CHANGE or attempt == _RETRIES:
                raise
    return None


def _bootstrap(
    admin_url: str, app_password: str, *, reset_password: bool = False, database: bool = True
) -> None:
    """Roles, and (unless told otherwise) what a database does not inherit from its template, at once."""
    verifier = scram_verifier(app_password)
    with connected(admin_url) as connection, connection.begin():
        refuse_other_encodings(encoding(connection))
        _await_others(connection)
        run_script(connection, _BOOTSTRAP / "roles.sql")
        made = connection.exec_driver_sql(f"SELECT current_setting('{_MADE_HERE}', true)").scalar()
        if reset_password or made == "yes":
            connection.exec_driver_sql(f"ALTER ROLE {APP_ROLE} PASSWORD '{verifier}'")
        if database:
            prepare_database(connection)


def _await_others(connection: Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {WAIT_MILLISECONDS}")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")


def prepare_database(connection: Connection) -> None:
    """Privileges and settings of the database itself: neither a template nor a dump carries them."""
    run_script(connection, _BOOTSTRAP / "database.sql")


def run_script(connection: Connection, script: Path) -> None:
    """Runs a file of SQL statements in the present transaction, exactly as it is written."""
    # Without parameters the driver takes many statements at once and gives no meaning to "%".
    connection.exec_driver_sql(script.read_text("utf-8"), execution_options={"no_parameters": True})


def _config(connection: Connection) -> Config:
    """Alembic's configuration for a connection whose transaction is ours."""
    from alembic.config import Config  # noqa: PLC0415  the service starts without loading Alembic

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def scripts() -> Path:
    """The directory of the migrations: beside ``db`` in a checkout, inside it in an installed wheel.

    Raises:
        StartupError: the installation is incomplete.
    """
    here = Path(__file__).resolve().parent
    for candidate in (here / "alembic", here.parent / "alembic"):
        if (candidate / "env.py").is_file():
            return candidate
    raise StartupError("the migrations are missing from this installation; install lineage-trails again")


def sqlstate(error: DBAPIError) -> str | None:
    """The five characters that PostgreSQL names the error with, if it came from the server."""
    return getattr(error.orig, "sqlstate", None)


@contextmanager
def _reported() -> Iterator[None]:
    """Errors of the driver become a ``StartupError`` that says what to do."""
    try:
        yield
    except DBAPIError as error:
        state = sqlstate(error)
        if state == _LOCK_NOT_AVAILABLE:
            reason = "another process holds the migration lock or a table for too long; try again"
        elif isinstance(error, OperationalError) and state is None:
            reason = "the database server cannot be reached"
        else:
            reason = f"the database refused (SQLSTATE {state})"
        raise StartupError(f"cannot prepare the database: {reason}: {_first_line(error)}") from error


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).strip().partition("\n")[0]


__all__ = [
    "APP_ROLE",
    "AUDITOR_ROLE",
    "OWNER_ROLE",
    "app_url",
    "bootstrap",
    "check_revision",
    "current_revision",
    "downgrade",
    "migrate",
]
