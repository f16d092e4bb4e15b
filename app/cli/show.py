"""``trails show``: records as a table that nothing in them can steer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from app.chain.canonical import canonical
from app.chain.record import SignedRecord, export_line, split_line
from app.chain.strict import RECORD_DEPTH, RECORD_STRING, JsonValue, parse
from app.cli.exits import CommandError
from app.cli.grid import Column, Grid
from app.cli.outcome import console_for
from app.errors import FormatError, InvalidJsonError
from app.text import look_alike, printable

_HELP: Final = """Show records of an agent, or of an exported file, as a table.

Shown is not verified: trails verify says whether they can be believed. Control characters, direction marks
and invisible characters are written as \\u escapes; tool names that mix scripts are marked. A terminal shows
what fits, a pipe has all but the nodes of traces; --json has everything.

\b
Examples:
  trails show scout
  trails show scout --after 100 --limit 20
  trails show scout.jsonl
  trails show scout --json | jq .payload
"""

_COLUMNS: Final = (
    Column("seq", number=True),
    Column("time", least=20),
    Column("kind"),
    Column("actor"),
    Column("what"),
)

# What is worth reading first, in this order; everything else follows as JSON.
_FIRST: Final = (
    "act",
    "action_id",
    "tool",
    "status",
    "severity",
    "reason",
    "detail",
    "by",
    "approved_by",
    "type",
)
_HIDDEN: Final = frozenset({"trace_tree", "total_nodes", "idempotency"})


class _Record(msgspec.Struct):
    """What is shown of a signed text, which is not verified here."""

    seq: int
    timestamp: str
    actor: str
    kind: str
    payload: dict[str, Any]


@click.command("show", help=_HELP, short_help="Show records as a table, safe for any terminal.")
@click.argument("what", metavar="AGENT|FILE")
@click.option("--tenant", metavar="SLUG", help="The agent's tenant, where several have one of this id.")
@click.option("--after", type=int, default=-1, metavar="SEQ", help="Only records after this seq.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Records at most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, complete.")
def command(*, what: str, tenant: str | None, after: int, limit: int, as_json: bool) -> None:  # noqa: D103
    if what == "-" or Path(what).is_file():
        found = list(islice(_from_file(what, after), limit + 1))
    else:
        found = asyncio.run(_from_database(what, tenant, after, limit + 1))
    if not found:
        raise CommandError(f"no records of {what} after seq {after}")
    records = found[:limit]
    if as_json:
        for signed in records:
            click.echo(printable(export_line(signed)))
    else:
        console_for().print(records_table(records), crop=False)
    if len(found) > limit:
        last = _read(records[-1])
        following = "" if tenant is None else f" --tenant {printable(tenant)}"
        following += "" if last is None else f" --after {last.seq}"
        click.echo(f"more records follow: trails show {printable(what)}{following}", err=True)


def _from_file(name: str, after: int) -> Iterator[SignedRecord]:
    with click.open_file(name, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                signed = split_line(line.rstrip(b"\r\n").decode("utf-8-sig"))
            except (FormatError, UnicodeDecodeError):
                raise CommandError(f"{name} line {number} is no record; see trails verify {name}") from None
            if (record := _read(signed)) is None or record.seq > after:
                yield signed


async def _from_database(agent_id: str, tenant: str | None, after: int, limit: int) -> list[SignedRecord]:
    from app.audit.dump import dump_chain  # noqa: PLC0415
    from app.cli.database import database_url  # noqa: PLC0415  showing a file needs no database
    from app.opening import look_directly  # noqa: PLC0415
    from app.settings import Settings  # noqa: PLC0415

    records: list[SignedRecord] = []
    settings = Settings.from_env(os.environ)
    url = database_url(settings)
    await look_directly(url, embedded=None if settings.database_url else settings.data_dir)
    async for record in dump_chain(url, agent_id, tenant=tenant, after=after):
        records.append(record.signed)
        if len(records) >= limit:
            break
    return records


def records_table(records: list[SignedRecord]) -> Grid:
    """The records as a table, unverified, nothing in them interpreted."""
    read = [_read(signed) for signed in records]
    doubted = {number: "bold red" for number, record in enumerate(read) if record is None or _doubt(record)}
    cells = [_cells(signed, record) for signed, record in zip(records, read, strict=True)]
    return Grid(_COLUMNS, [[printable(cell) for cell in row] for row in cells], doubted)


def _cells(signed: SignedRecord, record: _Record | None) -> tuple[str, ...]:
    if record is None:
        return ("?", "", "unreadable", "", signed.text)
    return (str(record.seq), record.timestamp, record.kind, record.actor, _what(record))


def _what(record: _Record) -> str:
    payload = record.payload
    doubt = _doubt(record)
    parts = [] if doubt is None else [f"LOOK-ALIKE NAME ({doubt})"]
    parts += [f"{name}={_value(payload[name])}" for name in _FIRST if payload.get(name) is not None]
    rest = {name: value for name, value in payload.items() if name not in _FIRST and name not in _HIDDEN}
    if rest:
        parts.append(canonical(rest))
    return " ".join(parts)


def _doubt(record: _Record) -> str | None:
    """Why the name of its tool may be mistaken for another."""
    tool = record.payload.get("tool")
    return look_alike(tool) if isinstance(tool, str) else None


def _value(value: JsonValue) -> str:
    return value if isinstance(value, str) else canonical(value)


def _read(signed: SignedRecord) -> _Record | None:
    try:
        value = parse(signed.text.encode(), max_depth=RECORD_DEPTH, max_string=RECORD_STRING).value
        return msgspec.convert(value, type=_Record)
    except (InvalidJsonError, msgspec.ValidationError, UnicodeError):
        return None
