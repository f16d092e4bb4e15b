"""Entry point of ``trails``: names the commands and loads only the one that was asked for.

``trails verify FILE`` must run where nothing but the base dependencies is installed, and start quickly,
so no command is imported before its name was typed.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final, NoReturn

import click

from app.cli.exits import run_command
from app.cli.unknown import warn_of_unknown_settings

_COMMANDS: Final = {
    "run": "Start everything: keys, database, server. The first thing to type.",
    "serve": "Serve an existing database; refuses an unsafe role or schema.",
    "migrate": "Bring a database to the newest schema.",
    "verify": "Check exported files or a whole database.",
    "export": "Write records to a file.",
    "show": "Show records as a table, safe for any terminal.",
    "query": "Answer an auditor's question from the trail.",
    "tenant": "Create, list and suspend tenants.",
    "key": "Issue, list and revoke API keys.",
    "redaction": "Choose what is taken out of records before they are written.",
    "sql-login": "PostgreSQL logins of auditors, each for one tenant.",
    "heads": "Accept that records which were seen before are lost.",
    "demo": "A scripted agent, a tampered copy, and the verifier that finds it.",
}
"""Each is the command in the module ``app.cli.<name>``, with ``_`` for ``-``."""


_HELP: Final = """Lineage Trails: signed audit trails and a guard for AI agents, on PostgreSQL.

\b
First steps:
  trails run                          start here; prints what to open and what to try
  trails demo                         see tampering being found, in a database of its own
  trails verify                       check every record of the database
  trails export scout --out scout.jsonl
  trails verify scout.jsonl --public-key HEX
  trails query                        the questions that auditors ask, answered in SQL
"""


class _Commands(click.Group):
    """A group that imports a command when it is called; the list needs no import."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"app.cli.{cmd_name.replace('-', '_')}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"app.cli.{cmd_name}.command is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001  click's signature
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version  # noqa: PLC0415  slow, and rarely asked for

    click.echo(f"trails {version('lineage-trails')}")
    ctx.exit()


@click.group(cls=_Commands, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version.",
)
def trails() -> None:
    """The group of all commands."""
    warn_of_unknown_settings(os.environ)


def main() -> NoReturn:
    """Runs ``trails`` with the arguments of the process; never returns."""
    sys.exit(run_command(trails, sys.argv[1:]))
