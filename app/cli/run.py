"""``trails run``: everything for a first start, and every later one."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from app import telemetry
from app.cli import server
from app.cli.keep import kept_alive
from app.cli.prepare import Ready, preflight, service_database
from app.embedded import EmbeddedPostgres
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
        _database(settings) as ready,
    ):
        preflight(settings, ready.url, ready.secrets)
        # Server processes read their settings from the environment.
        os.environ["TRAILS_DATABASE_URL"] = ready.url
        click.echo(_welcome(settings, server.base_url(bound), ready.embedded))
        with kept_alive(ready.embedded):
            code = server.serve(bound, workers=settings.workers)
    return code


@contextmanager
def _database(settings: Settings) -> Iterator[Ready]:
    """The database to serve; says first what takes its time."""
    place = "the database" if settings.database_url else "PostgreSQL, which takes some seconds the first time"
    click.echo(f"Starting {place} ...", err=True)
    with service_database(settings) as ready:
        yield ready


def _welcome(settings: Settings, url: str, embedded: EmbeddedPostgres | None) -> str:
    data = settings.data_dir.absolute()
    token_file = data / OPERATOR_TOKEN_FILE
    from_environment = settings.operator_token is not None
    token = "$TRAILS_OPERATOR_TOKEN" if from_environment else f"$(cat {shlex.quote(str(token_file))})"
    records = "the database of TRAILS_DATABASE_URL" if embedded is None else str(embedded.cluster)
    where = f"TRAILS_DATA_DIR={shlex.quote(str(data))}"
    if embedded is None:
        where += "   # and the TRAILS_DATABASE_URL of this start"
    trails = _this_program()
    policy = '{"budget": 10, "scar_limit": 10, "tools": {"search": {"cost": 1}}}'
    return f"""
Lineage Trails is at {url}
  console            {url}/   (sign in with the operator's token)
  guides             {url}/guides
  HTTP API           {url}/guides/api
  operator's token   {"that of TRAILS_OPERATOR_TOKEN" if from_environment else f"in {token_file}"}
  keys               {data / "keys"}
  records            {records}

Try it (creates an agent, shows its standing; the guides begin with a tour):
  curl -sS {url}/v1/agents -H "Authorization: Bearer {token}" \\
    -H 'Content-Type: application/json' -d '{{"agent_id": "scout", "policy": {policy}}}'
Then, in another terminal:
  export {where}
  {trails} verify
  {trails} show scout
  {trails} export scout --out scout.jsonl

Ctrl-C stops.
"""


def _this_program() -> str:
    """How to call this program from another terminal: by its name only if that finds it."""
    if shutil.which("trails") is not None:
        return "trails"
    program = Path(sys.argv[0]).absolute()
    if program.name == "trails" and program.exists():
        return shlex.quote(str(program))
    return f"{shlex.quote(sys.executable)} -m app.cli"
