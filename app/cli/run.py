"""``trails run``: everything for a first start, and every later one."""

from __future__ import annotations

import os
import shlex
from typing import Final

import click

from app import telemetry
from app.cli import server
from app.cli.prepare import preflight, service_database
from app.settings import OPERATOR_TOKEN_FILE, Settings

_HELP: Final = """Start everything and serve: the first thing to type.

Makes the data folder with its keys (0600), starts the embedded PostgreSQL (unless TRAILS_DATABASE_URL names
a database), makes roles and tables, and serves. The next start finds all of it again. Ctrl-C stops the
server, then the database.

With TRAILS_DATABASE_URL of a privileged role the database is migrated with it, and the service then works as
the restricted role trails_app, which gets a password derived from the master key when it is made; a
trails_app with another password is left alone and refused. A URL of a restricted role is used as it is.

\b
Examples:
  trails run
  TRAILS_BIND=127.0.0.1:8000 TRAILS_DATA_DIR=/srv/trails trails run
  TRAILS_DATABASE_URL=postgresql://admin:…@db.example/trails trails run
"""


@click.command("run", help=_HELP, short_help="Start everything: keys, database, server.")
def command() -> int:  # noqa: D103  click shows _HELP
    settings = Settings.from_env(os.environ)
    telemetry.configure(settings.log_level, settings.log_format)
    code = 0
    with (
        server.stopped_by_signals(),
        server.listen(settings.bind_host, settings.bind_port) as bound,
        service_database(settings) as ready,
    ):
        preflight(settings, ready.url, ready.secrets)
        # Server processes read their settings from the environment.
        os.environ["TRAILS_DATABASE_URL"] = ready.url
        click.echo(_welcome(settings, server.base_url(bound)))
        code = server.serve(bound, workers=settings.workers)
    return code  # noqa: RET504  a signal ends the block without a return


def _welcome(settings: Settings, url: str) -> str:
    data = settings.data_dir.absolute()
    token_file = data / OPERATOR_TOKEN_FILE
    from_environment = settings.operator_token is not None
    token = "$TRAILS_OPERATOR_TOKEN" if from_environment else f"$(cat {shlex.quote(str(token_file))})"
    note = "" if settings.database_url is None else " (keys; the records are in TRAILS_DATABASE_URL)"
    policy = '{"budget": 10, "scar_limit": 10, "tools": {"search": {"cost": 1}}}'
    return f"""
Lineage Trails is at {url}
  API description    {url}/schema
  operator's token   {"that of TRAILS_OPERATOR_TOKEN" if from_environment else f"in {token_file}"}
  data               {data}{note}

Try it (creates an agent, shows its standing):
  curl -sS {url}/v1/agents -H "Authorization: Bearer {token}" \\
    -H 'Content-Type: application/json' -d '{{"agent_id": "scout", "policy": {policy}}}'
Then: trails verify, trails show scout, trails export scout --out scout.jsonl

Ctrl-C stops.
"""
