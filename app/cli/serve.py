"""``trails serve``: serves a database that is ready, and refuses what is unsafe."""

from __future__ import annotations

import os
from typing import Final

import click

from app import telemetry
from app.cli import server
from app.cli.database import database_url
from app.cli.prepare import app_password, login, preflight
from app.settings import SETTINGS, Settings, load_secrets
from db import migrate

_HELP: Final = """Serve a database that is ready. Changes nothing in it.

TRAILS_DATABASE_URL is used exactly as given (unset: the restricted login of the embedded server that
trails run keeps running). Refuses to start, with exit code 1, when the role could change the past or see past
row security, when triggers or CHECKs are not as the migrations made them, and when the schema is behind or
ahead of this program.

\b
Examples:
  TRAILS_DATABASE_URL=postgresql://trails_app:…@db.example/trails trails serve
  trails serve --workers 4

\b
Settings (environment variables) and [defaults]:
{settings}

A secret may be in a file instead, which NAME_FILE names: TRAILS_MASTER_KEY_FILE=/run/secrets/master_key.
These are {secrets}.
"""


def _settings() -> str:
    width = max(len(setting.name) for setting in SETTINGS)
    return "\n".join(
        f"  {s.name:{width}}  {s.meaning}{f' [{s.default}]' if s.default else ''}" for s in SETTINGS
    )


def _secrets() -> str:
    return ", ".join(setting.name for setting in SETTINGS if setting.secret)


@click.command(
    "serve",
    help=_HELP.format(settings=_settings(), secrets=_secrets()),
    short_help="Serve an existing database.",
)
@click.option("--workers", type=click.IntRange(1, 64), help="Server processes (default: TRAILS_WORKERS, 1).")
def command(workers: int | None) -> int:  # noqa: D103  click shows _HELP
    settings = Settings.from_env(os.environ)
    telemetry.configure(settings.log_level, settings.log_format)
    code = 0
    with server.stopped_by_signals(), server.listen(settings.bind_host, settings.bind_port) as bound:
        existing = database_url(settings)  # before keys are made: without a database a folder stays new
        secrets = load_secrets(settings)
        # The embedded server's own URL is its administrator's.
        url = existing if settings.database_url else migrate.app_url(existing, app_password(secrets))
        login(existing, settings)
        preflight(settings, url, secrets)
        os.environ["TRAILS_DATABASE_URL"] = url
        click.echo(f"Lineage Trails is at {server.base_url(bound)}")
        code = server.serve(bound, workers=workers or settings.workers)
    return code  # noqa: RET504  a signal ends the block without a return
