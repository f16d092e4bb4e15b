"""``trails migrate``: brings a database to the newest schema."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from app.cli.database import database_url
from app.cli.exits import CommandError
from app.cli.prepare import app_password, login, quiet_alembic, require_utf8
from app.embedded import EmbeddedPostgres
from app.mounted import mounted_secret
from app.opening import Login
from app.settings import Secrets, Settings, load_secrets, master_key_at_hand
from db import migrate
from db.schema import APP_ROLE, REVISION

_HELP: Final = """Bring a database to the newest schema: roles, tables, triggers, policies.

Needs TRAILS_DATABASE_URL of a role that may create roles and owns the database, or of a superuser (unset: the
embedded server, which is started for it where it does not run). Any number of processes may migrate at once:
one does it, the others wait and find it done.

When the service's role trails_app is made here, it gets a password derived from the master key, with which
trails run logs in; one that is there already keeps its own. For trails serve with a password of your own:
--app-password-file, or ALTER ROLE trails_app PASSWORD '…'.

After a restore it says again what no dump carries: who may enter the database, its settings, and that
trails_owner owns what is ours.

\b
Examples:
  TRAILS_DATABASE_URL=postgresql://admin:…@db.example/trails trails migrate
  trails migrate --app-password-file /run/secrets/app_password
  trails migrate --roles              before pg_restore on a server that has not our roles
  trails migrate --enable-triggers    after pg_restore --data-only --disable-triggers
"""

_KEPT: Final = f"The role {APP_ROLE} was there before; its password is unchanged."


@click.command("migrate", help=_HELP, short_help="Bring a database to the newest schema.")
@click.option("--roles", is_flag=True, help="Only make the roles of the cluster, which a dump names.")
@click.option(
    "--enable-triggers", is_flag=True, help="Switch on the triggers that a data-only restore left off."
)
@click.option(
    "--app-password-file",
    "password_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Give trails_app the password in this file, also where it has another one.",
)
def command(*, roles: bool, enable_triggers: bool, password_file: Path | None) -> None:  # noqa: D103  click shows _HELP
    settings = Settings.from_env(os.environ)
    password = None if password_file is None else _password_in(password_file)
    with _database(settings) as url:
        found = login(url, settings)
        found.require_direct()
        if not found.privileged:
            raise CommandError(
                "the role of TRAILS_DATABASE_URL may not migrate: it needs CREATEROLE and must own the "
                f"database, or be a superuser; the service itself then runs as {APP_ROLE}"
            )
        require_utf8(found)
        quiet_alembic()
        if roles:
            _make_roles(url, found, password or _derived(settings))
            return
        _migrate(url, settings, found, password)
        if enable_triggers:
            for trigger in migrate.enable_triggers(url):
                click.echo(f"Fires always again: {trigger}")


@contextmanager
def _database(settings: Settings) -> Iterator[str]:
    """The administrator's URL. An embedded server that does not run is started, and stopped again.

    ``trails run`` serves none whose triggers are off, and this is what switches them on. It is ``trails run``
    alone that makes one.
    """
    url = database_url(settings)
    embedded = EmbeddedPostgres(settings.data_dir)
    if settings.database_url is not None or not (embedded.cluster / "PG_VERSION").exists():
        yield url
        return
    with embedded:
        yield embedded.url


def _migrate(url: str, settings: Settings, found: Login, password: str | None) -> None:
    if password is not None:
        migrate.bootstrap(url, app_password=password, reset_password=True)
    elif found.prepared:
        migrate.prepare(url)
        migrate.migrate(url)
    else:
        migrate.bootstrap(url, app_password=app_password(load_secrets(settings)))
    click.echo(f"The database is at revision {REVISION}.")
    if found.served and not found.prepared and password is None:
        click.echo(_KEPT)


def _password_in(file: Path) -> str:
    try:
        return mounted_secret(file)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{file} {error}") from None


def _make_roles(url: str, found: Login, password: str) -> None:
    migrate.make_roles(url, app_password=password)
    click.echo(_KEPT if found.served else "The roles are there.")


def _derived(settings: Settings) -> str:
    """The password from the master key of the backup; a new key would open nothing."""
    key = master_key_at_hand(settings)
    if key is None:
        raise CommandError(
            "no master key: bring that of the backup first (TRAILS_MASTER_KEY, or keys/master.key of "
            "TRAILS_DATA_DIR); no other opens what is restored"
        )
    return app_password(Secrets("", key))
