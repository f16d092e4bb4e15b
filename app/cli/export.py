"""``trails export``: one agent's records, as the lines that any verifier reads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import click
from rich.status import Status

from app.audit.dump import DumpedRecord, dump_chain
from app.chain.record import export_line
from app.chain.strict import JsonObject
from app.cli.database import database_url
from app.cli.exits import CommandError
from app.cli.on_record import put_on_record
from app.cli.outcome import console_for
from app.opening import look_directly
from app.settings import Settings

_HELP: Final = """Write one agent's records to a file, one signed line a record, exactly as they were signed.

The chain's head is printed on standard error: keep it elsewhere, it is what proves later that no tail was
cut. The file appears under its name only when it is complete; one that is there is not replaced. An export is
not a verification: run trails verify on it.

Where the master key and the service's database role are at hand, the export is put on record in the tenant's
administration chain. Standard error says whether it was; a login that only reads exports all the same.

\b
Examples:
  trails export scout                               writes scout.jsonl
  trails export scout --out /backup/scout.jsonl --head-file /elsewhere/scout.head
  trails export scout --out - | gzip > scout.jsonl.gz
  trails verify scout.jsonl --checkpoint "$(cat /elsewhere/scout.head)"
"""

_AGENT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STDOUT: Final = "-"


@click.command("export", help=_HELP, short_help="Write one agent's records to a file.")
@click.argument("agent_id", metavar="AGENT")
@click.option("--tenant", metavar="SLUG", help="The agent's tenant, where several have one of this id.")
@click.option("--out", metavar="FILE", help="Where to; - is standard output (default: AGENT.jsonl).")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--head-file", metavar="FILE", type=click.Path(path_type=Path), help="Write SEQ:HASH there.")
def command(  # noqa: D103  click shows _HELP
    *, agent_id: str, tenant: str | None, out: str | None, force: bool, head_file: Path | None
) -> None:
    if _AGENT_ID.fullmatch(agent_id) is None:
        # The id names a file: one that could leave the folder is no id of ours either.
        raise click.BadParameter("an agent's id is 1 to 64 of A-Z a-z 0-9 _ -", param_hint="AGENT")
    settings = Settings.from_env(os.environ)
    target = out or f"{agent_id}.jsonl"
    for written in (None if target == _STDOUT else Path(target), head_file):
        if written is not None and not written.parent.is_dir():
            raise CommandError(f"the folder {written.parent.absolute()} is not there; make it first")
    if not force:
        _refuse_to_replace(target)
    url = database_url(settings)
    asyncio.run(look_directly(url, embedded=None if settings.database_url else settings.data_dir))
    try:
        with _output(target, force=force) as file:
            count, last = asyncio.run(_write(file, url, agent_id, tenant))
        head = f"{last.seq}:{last.signed.hash}"
        if head_file is not None:
            head_file.write_text(head + "\n", "utf-8")
    except OSError as error:
        raise CommandError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    click.echo(f"{count} records in {target}, not verified; head:\n{head}", err=True)
    told = put_on_record(settings, last.tenant_id, _told(agent_id, count, last))
    click.echo(f"this export is {told}", err=True)


def _told(agent_id: str, count: int, last: DumpedRecord) -> JsonObject:
    """What the record of an export says."""
    return {
        "act": "exported",
        "agent_id": agent_id,
        "log_uuid": str(last.log_uuid),
        "length": count,
        "head": {"seq": last.seq, "hash": last.signed.hash},
    }


async def _write(file: BinaryIO, url: str, agent_id: str, tenant: str | None) -> tuple[int, DumpedRecord]:
    """Writes the lines; returns their number and the last record."""
    count, last = 0, None
    with _status() as show:
        async for record in dump_chain(url, agent_id, tenant=tenant):
            file.write(export_line(record.signed).encode("utf-8") + b"\n")
            count, last = count + 1, record
            show(count)
    if last is None:
        raise CommandError(
            f"the registry names agent {agent_id}, but there is no record of it: trails verify"
        )
    return count, last


def _refuse_to_replace(target: str) -> None:
    """An older export may be the only proof of what a chain was."""
    if target != _STDOUT and os.path.lexists(target):
        raise CommandError(f"{target} is there already; name another file with --out, or replace it: --force")


@contextmanager
def _output(target: str, *, force: bool) -> Iterator[BinaryIO]:
    """Standard output, or a file that gets its name when it is complete and on disk."""
    if target == _STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(target)
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not force:
            _refuse_to_replace(target)  # somebody may have made it meanwhile
        draft.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


class _Counter:
    """Shows now and then how many records are written."""

    def __init__(self, status: Status | None = None) -> None:
        self._status = status

    def __call__(self, count: int) -> None:
        if self._status is not None and count % 500 == 0:
            self._status.update(f"exporting: {count:,} records")


@contextmanager
def _status() -> Iterator[_Counter]:
    console = console_for(stderr=True)
    if not console.is_terminal:
        yield _Counter()
        return
    with console.status("exporting") as status:
        yield _Counter(status)
