"""What the commands of administration share: lists as tables or JSON, and times in the future."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

from app.cli.grid import Column, Grid
from app.cli.outcome import console_for
from app.moment import from_microseconds
from app.text import printable
from app.trace.instant import parse_day_or_instant

_AHEAD: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_COPIED: Final = {name: Column(name, least=40) for name in ("key_id", "login", "tenant_id")}
"""Columns that are copied into other commands, which no terminal cuts."""

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
tenant_option = click.option(
    "--tenant", metavar="SLUG", default="default", show_default=True, help="Which tenant."
)
signer_option = click.option(
    "--signer", metavar="URI", help="Keep the signing key there: file:/path, env:NAME, or a package's scheme."
)
until_option = click.option(
    "--expires", metavar="WHEN", help="A day, a time with its zone, or 12h, 90d from now; default never."
)


def print_rows(
    name: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, as_json: bool
) -> None:
    """Prints rows as a table, or as ``{name: rows}``."""
    if as_json:
        click.echo(json.dumps({name: list(rows)}))
        return
    if not rows:
        click.echo(f"no {name}", err=True)
        return
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    console_for().print(Grid(columns_of(columns), cells), crop=False)


def columns_of(names: Sequence[str]) -> list[Column]:
    """The columns of these names; an id keeps all its cells."""
    return [_COPIED.get(name, Column(name)) for name in names]


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def expiry(text: str | None, now: datetime) -> datetime | None:
    """When a key or a login ends.

    Raises:
        click.BadParameter: no such time.
    """
    if text is None:
        return None
    if (ahead := _AHEAD.fullmatch(text)) is not None:
        return now + timedelta(**{_UNITS[ahead[2]]: int(ahead[1])})
    try:
        micros = parse_day_or_instant(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} must be a day (2027-01-31), a time with its zone (2027-01-31T09:30:00Z), or how far "
            "ahead (12h, 90d)",
            param_hint="--expires",
        ) from None
    return from_microseconds(micros)
