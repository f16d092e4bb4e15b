"""``trails migrate``: brings a database to the newest schema."""

from __future__ import annotations

import os
from typing import Final

import click

from app.cli.database import database_url
from app.cli.exits import CommandError
from app.cli.prepare import app_password, login, quiet_alembic, require_utf8
from app.settings import Settings, load_secrets
from db import migrate
from db.schema import APP_ROLE, REVISION

_HELP: Final = """Bring a database to the newest schema: roles, tables, triggers, policies.

Needs TRAILS_DATABASE_URL of a role that may create roles and owns the database, or of a superuser (unset: the
embedded server, while trails run keeps it running). Any number of processes may migrate at once: one does it,
the others wait and find it done.

When the service's role trails_app is made here, it gets a password derived from the master key, with which
trails run logs in; one that is there already keeps its own. For trails serve with a password of your own:
ALTER ROLE trails_app PASSWORD '…'.

\b
Example:
  TRAILS_DATABASE_URL=postgresql://admin:…@db.example/trails trails migrate
"""


@click.command("migrate", help=_HELP, short_help="Bring a database to the newest schema.")
def command() -> None:  # noqa: D103  click shows _HELP
    settings = Settings.from_env(os.environ)
    url = database_url(settings)
    found = login(url, settings)
    found.require_direct()
    if not found.privileged:
        raise CommandError(
            "the role of TRAILS_DATABASE_URL may not migrate: it needs CREATEROLE and must own the database, "
            f"or be a superuser; the service itself then runs as {APP_ROLE}"
        )
    require_utf8(found)
    quiet_alembic()
    if found.prepared:
        migrate.migrate(url)
    else:
        migrate.bootstrap(url, app_password=app_password(load_secrets(settings)))
    click.echo(f"The database is at revision {REVISION}.")
    if found.served and not found.prepared:
        click.echo(f"The role {APP_ROLE} was there before; its password is unchanged.")
