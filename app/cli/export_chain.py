"""One agent's records as export lines and nothing else: a file that any verifier of the format reads.

An export that is interrupted keeps what it has in ``FILE.part``. ``--resume`` goes on from there: what is on
disk is verified first, and the record that it ends in must be the one that the chain has at that place.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import UUID

import msgspec

from app.audit.dump import DumpedRecord, dump_chain
from app.chain.export import ExportReader
from app.chain.record import Head, export_line
from app.chain.strict import JsonObject
from app.cli.exits import CommandError, complain
from app.cli.output import STDOUT, Output, Show, Writing, output, progress, refuse_to_replace

_LINE_FEED: Final = b"\n"
_LARGEST_LINE: Final = 64 * 1024 * 1024


class Written(msgspec.Struct, frozen=True):
    """What stands in the file."""

    records: int
    resumed_after: int | None
    tenant_id: UUID
    log_uuid: UUID
    head: tuple[int, str]

    def on_record(self, agent_id: str) -> JsonObject:
        """What the record of the export says."""
        seq, digest = self.head
        return {
            "act": "exported",
            "agent_id": agent_id,
            "log_uuid": str(self.log_uuid),
            "length": self.records,
            "head": {"seq": seq, "hash": digest},
        }


def export_chain(url: str, agent_id: str, tenant: str | None, to: Output, *, resume: bool) -> Written:
    """Writes the chain of an agent.

    Raises:
        CommandError: the file is there, or what was begun cannot be gone on with; says what to do.
        TrailsError: as ``dump_chain``.
        OSError: the file cannot be written.
    """
    records = _Records(url, agent_id, tenant)
    target, force = to.target, to.force
    if target == STDOUT:
        if resume:
            raise CommandError("--resume goes on with a file; standard output is none")
        with output(to) as file, progress(None, shown=to.shown) as show:
            return asyncio.run(_write(file, records, None, show))
    part = Path(f"{target}.part")
    if not force:
        refuse_to_replace(target)
    if not (resume or force) and os.path.lexists(part):
        raise CommandError(
            f"{part} is there, of an export that was interrupted; go on with --resume, or begin anew: --force"
        )
    with _part(part, anew=not resume) as file, progress(None, shown=to.shown) as show:
        before = _verified(file, part) if resume else None
        written = asyncio.run(_write(file, records, before, show))
        file.flush()
        os.fsync(file.fileno())
        if not force:
            refuse_to_replace(target)  # somebody may have made it meanwhile
        part.replace(target)
    return written


@contextmanager
def _part(path: Path, *, anew: bool) -> Iterator[BinaryIO]:
    """The file to write, which this process alone writes; one that holds nothing is not left behind."""
    with os.fdopen(
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+b"
    ) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"{path} is being written by another export") from None
        if anew:
            file.truncate()
        try:
            yield file
        except BaseException as error:
            with suppress(OSError):  # the disk is full: what is on it is gone on with all the same
                file.flush()
            if not file.tell() or not path.exists():
                path.unlink(missing_ok=True)
            elif not isinstance(error, CommandError):
                complain(f"what was written is kept in {path}; go on with the same command and --resume")
            raise


def _verified(file: BinaryIO, path: Path) -> Head | None:
    """The last record of what is on disk, all of which verifies; a line that was cut is taken off.

    Raises:
        CommandError: it does not verify.
    """
    reader, end = ExportReader(), 0
    while (line := file.readline(_LARGEST_LINE)).endswith(_LINE_FEED):
        reader.take(line)
        end += len(line)
    report = reader.report()
    if report.fault_count or (end and report.head is None):
        raise CommandError(f"{path} does not verify, so that it is not gone on with; begin anew: --force")
    file.seek(end)
    file.truncate()
    return report.head


class _Records(msgspec.Struct, frozen=True):
    """Whose records, and where they are."""

    url: str
    agent_id: str
    tenant: str | None

    def after(self, seq: int) -> AsyncIterator[DumpedRecord]:
        """Those behind ``seq``."""
        return dump_chain(self.url, self.agent_id, tenant=self.tenant, after=seq)


async def _write(file: Writing, records: _Records, before: Head | None, show: Show) -> Written:
    """Writes the lines behind ``before``."""
    count, last = 0, None
    after = -1 if before is None else before.seq - 1
    async for record in _gone_on(records.after(after), before):
        if before is None or record.seq > before.seq:
            file.write(export_line(record.signed).encode("utf-8") + _LINE_FEED)
        count, last = count + 1, record
        show(after + 1 + count)
    if last is None:
        raise CommandError(
            f"the registry names agent {records.agent_id}, but there is no record of it: trails verify"
        )
    return Written(
        records=after + 1 + count,
        resumed_after=None if before is None else before.seq,
        tenant_id=last.tenant_id,
        log_uuid=last.log_uuid,
        head=(last.seq, last.signed.hash),
    )


async def _gone_on(records: AsyncIterator[DumpedRecord], before: Head | None) -> AsyncIterator[DumpedRecord]:
    """The records, of which the first must be the one that is on disk already.

    Raises:
        CommandError: the chain has another one there, or none.
    """
    first = True
    async for record in records:
        if first and before is not None and (record.seq, record.signed.hash) != (before.seq, before.hash):
            raise CommandError(_ANOTHER.format(seq=before.seq))
        first = False
        yield record
    if first and before is not None:
        raise CommandError(_ANOTHER.format(seq=before.seq))


_ANOTHER: Final = (
    "the chain has another record at seq {seq} than what is on disk: it is another chain, or one of the two "
    "was changed (trails verify); begin anew: --force"
)
