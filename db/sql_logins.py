"""SQL logins of auditors: roles of the cluster that see one tenant's rows and change nothing.

An administrator makes them, never the service. Everything here blocks and talks to the database over psycopg,
as ``db.migrate`` does.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
from psycopg import sql
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from app.errors import ConflictError, NotFoundError, StartupError
from db.migrate import connected, run_script, scram_verifier, sqlstate
from db.schema import AUDITOR_ROLE, OWNER_ROLE

CONNECTIONS: Final = 5
"""Connections that one login may have at once; it cannot raise this itself."""

SETTINGS: Final = {
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    "search_path": "trails",
    "TimeZone": "UTC",
}
"""What its sessions begin with. PostgreSQL lets whoever is logged in change these for its own session."""

LIMITS: Final = {"temp_file_limit": "1GB", "log_statement": "all"}
"""The same of settings that it cannot change; they take a superuser to give.

What such a login asks stands in the server's log (case T15).
"""

_FIRST_INHERIT_OPTION: Final = 160_000
"""From PostgreSQL 16 on a grant of membership says by itself whether it inherits and may be set."""

_LOGIN_BYTES: Final = 6
_SCRIPT: Final = Path(__file__).parent / "bootstrap" / "logins.sql"
_CREATE: Final = sql.SQL(
    "CREATE ROLE {role} LOGIN INHERIT NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS "
    "CONNECTION LIMIT {connections} PASSWORD {verifier} VALID UNTIL {until}"
)
_DUPLICATE: Final = frozenset({"42710", "23505"})


class SqlLogin(msgspec.Struct, frozen=True):
    """One login.

    Attributes:
        login: the role's name.
        name: what its tenant calls it.
        created_at: when it was made.
        exists: whether its role is still there.
        valid_until: from when on its password is none; None: never.
    """

    login: str
    name: str
    created_at: datetime
    exists: bool = True
    valid_until: datetime | None = None


def new_login() -> str:
    """A name for a role. It tells nothing: everybody who may log in sees the names of all roles."""
    return f"trails_auditor_{secrets.token_hex(_LOGIN_BYTES)}"


def create(
    admin_url: str, login: SqlLogin, tenant_id: UUID, password: str, *, closes_cluster: bool = False
) -> None:
    """Makes a login for one tenant; all of it or nothing.

    Args:
        admin_url: URL of a role that may create roles and is a member of the owner, or of a superuser.
        login: what it is called, and until when its password is one.
        tenant_id: whose rows it sees.
        password: printable ASCII; only its SCRAM verifier is sent.
        closes_cluster: takes from everyone the right to enter the cluster's other databases; for a cluster
            that is ours alone.

    Raises:
        ConflictError: the name is taken, or was.
        StartupError: the administrator's role may not do this, or the server cannot be reached.
    """
    role = sql.Identifier(login.login)
    with _administrator(admin_url) as connection, connection.begin():
        try:
            _run(
                connection,
                _CREATE.format(
                    role=role,
                    connections=sql.Literal(CONNECTIONS),
                    verifier=sql.Literal(scram_verifier(password)),
                    until=sql.Literal(
                        "infinity" if login.valid_until is None else login.valid_until.isoformat()
                    ),
                ),
            )
            _configure(connection, role)
            _join(connection, role)
            if _is_superuser(connection):
                run_script(connection, _SCRIPT)
                if closes_cluster:
                    _run(connection, sql.SQL("REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC"))
            _run(connection, sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(OWNER_ROLE)))
            connection.execute(
                text(
                    "INSERT INTO trails.sql_logins (login, tenant_id, name, created_at)"
                    " VALUES (:login, :tenant, :name, :at)"
                ),
                {"login": login.login, "tenant": tenant_id, "name": login.name, "at": login.created_at},
            )
        except DBAPIError as error:
            if sqlstate(error) in _DUPLICATE:
                raise ConflictError(f"a role {login.login} is there, or was; try again") from None
            raise


def drop(admin_url: str, login: str) -> None:
    """Ends a login and its sessions. What it was stays listed, and its name is not used again.

    Raises:
        NotFoundError: there is no such login of ours, or its role is gone already.
        StartupError: as for ``create``.
    """
    with _administrator(admin_url) as connection, connection.begin():
        if login not in {known.login for known in _logins(connection, None) if known.exists}:
            raise NotFoundError(f"there is no SQL login {login}")
        _run(connection, sql.SQL("ALTER ROLE {} NOLOGIN").format(sql.Identifier(login)))
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :login"),
            {"login": login},
        )
        # Whatever it was made to own or to grant would keep the role.
        _run(connection, sql.SQL("DROP OWNED BY {}").format(sql.Identifier(login)))
        _run(connection, sql.SQL("DROP ROLE {}").format(sql.Identifier(login)))


def logins(admin_url: str, tenant_id: UUID) -> list[SqlLogin]:
    """The logins of one tenant, oldest first, those that were dropped too.

    Raises:
        StartupError: as for ``create``.
    """
    with _administrator(admin_url) as connection, connection.begin():
        return _logins(connection, tenant_id)


def _logins(connection: Connection, tenant_id: UUID | None) -> list[SqlLogin]:
    _run(connection, sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(OWNER_ROLE)))
    rows = connection.execute(
        text(
            "SELECT l.login, l.name, l.created_at, r.oid IS NOT NULL, nullif(r.rolvaliduntil, 'infinity')"
            "  FROM trails.sql_logins AS l LEFT JOIN pg_catalog.pg_roles AS r ON r.rolname = l.login"
            " WHERE CAST(:tenant AS uuid) IS NULL OR l.tenant_id = :tenant ORDER BY l.created_at, l.login"
        ),
        {"tenant": tenant_id},
    ).all()
    connection.exec_driver_sql("RESET ROLE")
    return [SqlLogin(*row) for row in rows]


def _configure(connection: Connection, role: sql.Identifier) -> None:
    database = sql.Identifier(str(connection.exec_driver_sql("SELECT current_database()").scalar()))
    settings = dict(SETTINGS)
    if _is_superuser(connection):
        settings.update(LIMITS)
    for name, value in settings.items():
        statement = sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}")
        _run(connection, statement.format(role, database, sql.Identifier(name), sql.Literal(value)))


def _is_superuser(connection: Connection) -> bool:
    return bool(
        connection.exec_driver_sql("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").scalar()
    )


def _join(connection: Connection, role: sql.Identifier) -> None:
    """Makes the role a member of the auditors, with their rights and without becoming them."""
    version = int(connection.exec_driver_sql("SELECT current_setting('server_version_num')").scalar() or 0)
    options = sql.SQL(" WITH INHERIT TRUE, SET FALSE" if version >= _FIRST_INHERIT_OPTION else "")
    _run(connection, sql.SQL("GRANT {} TO {}{}").format(sql.Identifier(AUDITOR_ROLE), role, options))


def _run(connection: Connection, statement: sql.SQL | sql.Composed) -> None:
    connection.exec_driver_sql(statement.as_string(), execution_options={"no_parameters": True})


@contextmanager
def _administrator(url: str) -> Iterator[Connection]:
    """A connection of the administrator; its errors say what to do."""
    try:
        with connected(url) as connection:
            yield connection
    except DBAPIError as error:
        reason = str(error.orig).strip().partition("\n")[0]
        raise StartupError(
            f"the database refused (SQLSTATE {sqlstate(error)}): {reason}; SQL logins are made with the URL "
            "of a role that may create roles and is a member of trails_owner, or of a superuser"
        ) from error
