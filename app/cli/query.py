"""``trails query``: the auditors' cookbook from the command line."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import click

from app.cli.exits import CommandError, complain, let_go_of_stdout
from app.text import printable

if TYPE_CHECKING:
    from app.audit.ask import Answer
    from db.cookbook import Recipe

_HELP: Final = """Answer an auditor's question from the trail, in SQL.

Without a NAME it lists the questions; with one, --help explains the parameters and columns, and --sql prints
the query with these parameters, as psql and other tools run it. It runs in a transaction that cannot write,
for one tenant, and as the service's own role: row security decides, whatever the query says. Parameters are
bound by the database driver.

A query reads the mirror of the records. That they are what was signed is for trails verify to say.

\b
Examples:
  trails query
  trails query failed_calls_by_tool_and_day
  trails query failed_calls --param since=7d --param tool=search
  trails query denied_actions_by_reason --param since=2026-01-01 --param until=2026-02-01
  trails query tokens_and_cost_by_session --format csv > sessions.csv
  trails query before_harm --format json | jq .tool
"""

_OUTPUT: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EIO})
"""What goes wrong when the reader of a pipe has gone, or a disk is full."""

_TABLE_ROWS: Final = 200
"""Rows of a table unless --limit says otherwise; CSV and JSON have all."""


@click.command(
    "query", help=_HELP, short_help="Answer an auditor's question from the trail.", add_help_option=False
)
@click.argument("name", required=False)
@click.option("--param", "given", metavar="NAME=VALUE", multiple=True, help="A parameter; may be repeated.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="table: cut to fit a terminal; csv: whole, safe for spreadsheets; json: exact, one object a line.",
)
@click.option("--tenant", metavar="SLUG", help="Which tenant's trail (default: default).")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Rows at most (default: a table {_TABLE_ROWS}, csv and json all).",
)
@click.option(
    "--timeout", type=click.IntRange(1, 86_400), default=60, show_default=True, help="Seconds at most."
)
@click.option(
    "--sql", "show_sql", is_flag=True, help="Print the query to copy, with its explanation; run nothing."
)
@click.option("-h", "--help", "show_help", is_flag=True, help="Show this message, or explain the query NAME.")
@click.pass_context
def command(  # noqa: D103  click shows _HELP
    context: click.Context,
    *,
    name: str | None,
    given: tuple[str, ...],
    format_: str,
    tenant: str | None,
    limit: int | None,
    timeout: int,
    show_sql: bool,
    show_help: bool,
) -> None:
    if name is None:
        click.echo(context.get_help() if show_help else _listing())
        return
    recipe = _recipe(name)
    if show_help:
        click.echo(_explained(recipe))
        return
    from app.cli.query_values import read_values, sql_literals  # noqa: PLC0415  a list needs none of it

    if show_sql:
        click.echo(_copied(recipe, sql_literals(recipe, given, datetime.now(UTC))))
        return
    values = read_values(recipe, given, datetime.now(UTC))
    if format_ == "table" and limit is None:
        limit = _TABLE_ROWS
    asyncio.run(_ask(recipe, values, format_=format_, tenant=tenant, limit=limit, seconds=timeout))


async def _ask(
    recipe: Recipe, values: list[object], *, format_: str, tenant: str | None, limit: int | None, seconds: int
) -> None:
    from app.audit.ask import asking  # noqa: PLC0415
    from app.cli.database import database_url  # noqa: PLC0415  only who asks needs a database
    from app.opening import look_directly  # noqa: PLC0415
    from app.settings import Settings  # noqa: PLC0415

    settings = Settings.from_env(os.environ)
    url = database_url(settings)
    await look_directly(url, embedded=None if settings.database_url else settings.data_dir)
    unread: OSError | None = None
    shown = 0
    async with asking(url, recipe, values, tenant=tenant, timeout_secs=seconds) as answer:
        try:
            shown = await _print(answer, format_, limit)
        except OSError as error:
            if error.errno not in _OUTPUT:
                raise
            unread = error  # of the output, not of the database: told outside of its block
    if isinstance(unread, BrokenPipeError):
        raise unread
    if unread is not None:
        let_go_of_stdout()
        raise CommandError(f"the rows cannot be written: {unread.strerror}")
    more = limit is not None and shown > limit
    if shown == 0:
        complain(f"{recipe.name}: no rows")
    if more:
        complain(f"only the first {limit} rows are shown; --limit N shows more, --format csv or json all")


async def _print(answer: Answer, format_: str, limit: int | None) -> int:
    """Prints at most ``limit`` rows; returns how many there are, counting one more at most."""
    from app.cli.outcome import console_for  # noqa: PLC0415  rich is slow to import
    from app.cli.rows import csv_line, json_line, rows_table  # noqa: PLC0415

    if format_ == "csv":
        sys.stdout.write(csv_line([name for name, _ in answer.columns]))
    kept: list[Sequence[Any]] = []
    count = 0
    async for row in _up_to(answer.rows, limit):
        count += 1
        if limit is not None and count > limit:
            break
        if format_ == "csv":
            sys.stdout.write(csv_line(row))
        elif format_ == "json":
            click.echo(json_line(answer.columns, row))
        else:
            kept.append(row)
    if kept:
        console_for().print(rows_table(answer.columns, kept), crop=False)
    sys.stdout.flush()
    return count


async def _up_to(rows: AsyncIterator[Sequence[Any]], limit: int | None) -> AsyncIterator[Sequence[Any]]:
    """The rows, and one more than ``limit``, which tells that there are more."""
    left = None if limit is None else limit + 1
    async for row in rows:
        yield row
        if left is not None:
            left -= 1
            if left == 0:
                return


def _recipe(name: str) -> Recipe:
    from db.cookbook import recipes  # noqa: PLC0415  the list of commands must not need it

    found = recipes().get(name)
    if found is None:
        near = get_close_matches(name, recipes(), n=3, cutoff=0.5)
        meant = f"; did you mean {' or '.join(near)}?" if near else ";"
        raise click.BadParameter(
            f"there is no query {printable(name)!r}{meant} trails query lists all", param_hint="NAME"
        )
    return found


def _listing() -> str:
    from app.cli.grid import cut  # noqa: PLC0415  as above
    from app.cli.outcome import console_for  # noqa: PLC0415  as above
    from db.cookbook import recipes  # noqa: PLC0415  as above

    widest = max(map(len, recipes()))
    lines = [f"{recipe.name:{widest}}  {recipe.question}" for recipe in recipes().values()]
    console = console_for()
    if console.is_terminal:
        lines = [cut(line, console.width) for line in lines]
    return "\n".join(
        [*lines, "", "trails query NAME answers one, trails query NAME --help explains it first."]
    )


def _explained(recipe: Recipe) -> str:
    formatter = click.HelpFormatter(width=110)
    formatter.write_usage("trails query", f"{recipe.name} [--param NAME=VALUE]… [--format table|csv|json]")
    formatter.write_paragraph()
    formatter.write_text(f"{recipe.question} {recipe.notes}".strip())
    with formatter.section("Parameters (--param NAME=VALUE)"):
        formatter.write_dl([(p.name, f"{p.meaning} {_form(p.type, p.default)}") for p in recipe.parameters])
    with formatter.section("Columns"):
        formatter.write_dl([(column.name, column.meaning) for column in recipe.columns])
    return formatter.getvalue().rstrip()


_LOGIN: Final = """\
--
-- Runs in psql or any other SQL tool as it stands. Row security decides whose rows a login sees, and without
-- a tenant shows none. As trails_app, name the tenant and ask in the same transaction:
--   BEGIN READ ONLY;
--   SELECT set_config('trails.slug', 'default', true);
--   SELECT set_config('trails.tenants', (SELECT tenant_id::text FROM trails.tenants), true);
-- A superuser passes row security and sees all tenants' rows mixed: fine where there is one tenant. Times are
-- shown in the session's zone: SET TimeZone = 'UTC' gives those of trails query.
"""


def _copied(recipe: Recipe, literals: Mapping[str, str]) -> str:
    """The query to copy, with its explanation and what its parameters are."""
    given = "".join(f"--   {name} = {text}\n" for name, text in literals.items())
    values = f"--\n-- Parameters as they stand below:\n{given}" if given else ""
    return f"{recipe.comment}{values}{_LOGIN}{recipe.with_literals(literals)}"


_FORMS: Final = {
    "timestamptz": "a day, a time with its zone, or how long ago: 2026-01-31, 2026-01-31T09:30:00Z, 7d",
    "integer": "a whole number",
    "numeric": "a number",
    "uuid": "a UUID",
    "text": "text, exactly",
}


def _form(type_: str, default: str | None) -> str:
    return f"({type_}: {_FORMS[type_]}; default: {'none' if default is None else default})"
