"""``trails sql-login``: PostgreSQL logins of auditors, each for one tenant.

A role of the cluster and a record of the chain are not written together, so the steps have an order: a
login is on record before there is one, and its end is on record when it has ended. Wherever this is
interrupted, no login is there that no record tells of. ``trails verify`` tells what was left half done, and
``drop`` finishes it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from uuid import UUID

import click

from app.api_key import check_name
from app.cli.database import database_url
from app.cli.exits import CommandError
from app.cli.listing import expiry, json_option, print_rows, tenant_option, until_option
from app.cli.local import ACTOR, local_ledger, settings_here
from app.cli.prepare import login as look
from app.embedded import locate_binaries
from app.errors import TrailsError
from app.fold.administration import AdministrationState
from app.ledger.tenancy.administration import written
from app.settings import Settings
from db import sql_logins
from db.migrate import parse_url, with_login
from db.sql_logins import CONNECTIONS, SqlLogin

if TYPE_CHECKING:
    from sqlalchemy import URL

_HELP: Final = f"""Make PostgreSQL logins for auditors.

A login reads the records, agents and views of its one tenant, and changes nothing; which tenant follows from
who it is, not from anything that it could set. It may have {CONNECTIONS} connections at once. Time-outs (a
minute a query) are what its sessions begin with; PostgreSQL lets a session change its own.

What it prints, each with who takes it, and as members with --json:

\b
  uri                  libpq and what reads its addresses; TRAILS_DATABASE_URL of query, show, export
  psql                 the command as it stands
  sqlalchemy_psycopg2  SQLAlchemy 1.4 and 2 with psycopg 2: Superset
  sqlalchemy_psycopg   SQLAlchemy 2 with psycopg 3
  jdbc                 JDBC: Tableau, DBeaver

Making one needs TRAILS_DATABASE_URL of a role that may create roles (unset: the embedded server's), and the
master key, since it goes on record.

\b
Examples:
  trails sql-login create --tenant acme --name audit
  trails sql-login create --tenant acme --name review --expires 30d
  trails sql-login list --tenant acme
  trails sql-login drop trails_auditor_1b2c3d4e5f60 --tenant acme
"""

_PASSWORD_BYTES: Final = 24

_TLS_OF_JDBC: Final = frozenset({"sslmode", "sslrootcert"})
"""Parameters of an address that libpq and JDBC call the same."""


@click.group("sql-login", help=_HELP, short_help="PostgreSQL logins of auditors, each for one tenant.")
def command() -> None:  # noqa: D103  click shows _HELP
    pass


@command.command("create", short_help="Make a login; its password is shown once.")
@click.option("--name", required=True, help="What it is for; the role's own name tells nothing of it.")
@tenant_option
@until_option
@json_option
def create(*, name: str, tenant: str, expires: str | None, as_json: bool) -> None:
    """Make a login; its password is shown once."""
    settings = settings_here()
    url = _administrator(settings)
    now = datetime.now(UTC)
    made = SqlLogin(sql_logins.new_login(), check_name(name), now, valid_until=expiry(expires, now))
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    tenant_id = asyncio.run(_tenant_id(settings, tenant))
    asyncio.run(_record(settings, tenant_id, {"act": "sql_login_created", **_row(made)}))
    try:
        sql_logins.create(url, made, tenant_id, password, closes_cluster=settings.database_url is None)
    except TrailsError:
        with suppress(TrailsError):
            sql_logins.drop(url, made.login)  # it is there when only the answer was lost
        asyncio.run(_record(settings, tenant_id, _dropped(made.login)))
        raise
    urls = _urls(with_login(url, made.login, password), _psql(settings))
    if as_json:
        click.echo(json.dumps({**_row(made), "password": password, **urls}))
        return
    told = {"login": f"{made.login} ({name}, tenant {tenant})", "password": password, **urls}
    for label, text in told.items():
        click.echo(f"{label:19}  {text}")
    click.echo("The password is not shown again.", err=True)


@command.command("list", short_help="List a tenant's logins, dropped ones too.")
@tenant_option
@json_option
def list_(*, tenant: str, as_json: bool) -> None:
    """List a tenant's logins, dropped ones too."""
    settings = settings_here()
    tenant_id = asyncio.run(_tenant_id(settings, tenant))
    rows = [_row(login) for login in sql_logins.logins(_administrator(settings), tenant_id)]
    print_rows("logins", ("login", "name", "state", "created_at", "expires_at"), rows, as_json=as_json)


@command.command("drop", short_help="End a login and its sessions.")
@click.argument("role")
@tenant_option
def drop(*, role: str, tenant: str) -> None:
    """End a login and its sessions. Its name is not used again."""
    settings = settings_here()
    url = _administrator(settings)
    tenant_id, state = asyncio.run(_on_record(settings, tenant))
    is_role = {login.login: login.exists for login in sql_logins.logins(url, tenant_id)}
    ended = role in state.dropped
    if role not in {*is_role, *state.logins} or (ended and not is_role.get(role, False)):
        raise CommandError(
            f"tenant {tenant} has no SQL login {role}; see trails sql-login list --tenant {tenant}"
        )
    if is_role.get(role, False):
        sql_logins.drop(url, role)
    if not ended:
        asyncio.run(_record(settings, tenant_id, _dropped(role)))
    click.echo(f"{role} is gone")


def _administrator(settings: Settings) -> str:
    url = database_url(settings)
    found = look(url, settings)
    found.require_direct()
    if not found.privileged:
        raise CommandError(
            "the role of TRAILS_DATABASE_URL may not make logins: it needs CREATEROLE and membership in "
            "trails_owner, or must be a superuser"
        )
    return url


async def _tenant_id(settings: Settings, slug: str) -> UUID:
    async with local_ledger(settings) as ledger:
        return await ledger.tenant_id(slug)


async def _on_record(settings: Settings, slug: str) -> tuple[UUID, AdministrationState]:
    """The tenant, and all that is on record of its administration."""
    async with local_ledger(settings) as ledger:
        tenant_id = await ledger.tenant_id(slug)
        return tenant_id, await ledger.administration.state(tenant_id)


def _dropped(login: str) -> dict[str, str]:
    return {"act": "sql_login_dropped", "login": login}


async def _record(settings: Settings, tenant_id: UUID, payload: Mapping[str, Any]) -> None:
    async with local_ledger(settings) as ledger:
        await ledger.administration.record(tenant_id, ACTOR, dict(payload))


def _psql(settings: Settings) -> str:
    """How psql is called here: the embedded server brings one along, where the machine has none."""
    if settings.database_url is not None or shutil.which("psql") is not None:
        return "psql"
    return shlex.quote(str(locate_binaries() / "psql"))


def _urls(url: str, psql: str) -> dict[str, str]:
    """The login's address in the form of each tool; what TLS it asks for is in all of them."""
    parsed = parse_url(url)
    place = f"{parsed.host or 'localhost'}:{parsed.port or 5432}/{parsed.database}"
    asked = {"user": parsed.username or "", "password": parsed.password or ""}
    tls = {name: value for name, value in parsed.query.items() if name in _TLS_OF_JDBC}
    return {
        "uri": url,
        "psql": f"{psql} '{url}'",
        "sqlalchemy_psycopg2": _as(parsed, "postgresql+psycopg2"),
        "sqlalchemy_psycopg": _as(parsed, "postgresql+psycopg"),
        "jdbc": f"jdbc:postgresql://{place}?{urlencode({**asked, **tls})}",
    }


def _as(parsed: URL, driver: str) -> str:
    return parsed.set(drivername=driver).render_as_string(hide_password=False)


def _row(login: SqlLogin) -> dict[str, str | None]:
    return {
        "login": login.login,
        "name": login.name,
        "state": "active" if login.exists else "dropped",
        "created_at": written(login.created_at),
        "expires_at": None if login.valid_until is None else written(login.valid_until),
    }
