"""Verifying a bundle: its manifest, every member against it, and every chain in it. Needs no network.

Cut or with a member gone it is incomplete; with a member changed, added or moved, or a manifest that does not
verify, it is tampered with.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import IO, BinaryIO, Final, cast

import msgspec

from app.chain.statement import Statement, read_statement
from app.chain.verdict import Verdict
from app.errors import ChainError, UnavailableError
from app.verification.chain import ChainOfFile, SaidChain, said_chain
from app.verification.chunks import Shared
from app.verification.end import ChainKeys, End, sealed, untrusted
from app.verification.exported import STDIN, FileOptions, Progress, lines_of
from app.verification.outcome import Outcome, reason_of
from app.workers import DIED

ZIP: Final = b"PK\x03\x04"
"""How a ZIP file begins."""

MANIFEST: Final = "manifest.json"
"""The last member, which names all others."""

_END_OF_DIRECTORY: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
_LOCAL_HEADER: Final = struct.Struct("<26x2H")
"""What stands before a member: its last two fields say how long its name and its extra field are."""

_DESCRIPTOR_BYTES: Final = 24
"""What may stand behind a member that was written as a stream: its lengths once more."""

_MAX_MANIFEST: Final = 256 * 1024 * 1024
_LOTS_EACH: Final = 8
"""Lots of members for each worker: chains are of many lengths, and none shall wait for another at the end."""

_KEPT_IN_MEMORY: Final = 16 * 1024 * 1024
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)
"""What unpacking a member that was changed ends in."""


class Member(msgspec.Struct, frozen=True):
    """A member as the manifest tells of it; ``log_uuid`` is there when it holds a chain."""

    name: str
    bytes: int
    sha256: str
    agent_id: str | None = None
    log_uuid: str | None = None
    records: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    head_hash: str | None = None

    @property
    def chain(self) -> SaidChain | None:
        """What it says of a chain."""
        return None if self.log_uuid is None else said_chain(msgspec.structs.asdict(self))


class _Manifest(msgspec.Struct, frozen=True):
    members: list[Member]


def verify_bundle(
    name: str, file: BinaryIO, options: FileOptions, progress: Progress, shared: Shared | None = None
) -> list[Outcome]:
    """All outcomes: of each chain, and of the bundle where that is not as it was exported.

    Args:
        name: the file's.
        file: it.
        options: what the command line says.
        progress: told how many bytes were unpacked.
        shared: workers that verify members, each some of them, where the file can be opened by its name.
    """
    bundle = _Bundle(name, options, progress, None if name == STDIN else shared)
    try:
        with _seekable(file) as found:
            bundle.read(found)
    except Exception as error:  # noqa: BLE001  what could not be read must not hide what was found
        bundle.trouble(Verdict.UNCHECKED, reason_of(error))
    return bundle.outcomes()


def _seekable(file: BinaryIO) -> IO[bytes]:
    """The file, or a copy of what a pipe gives: the directory of a ZIP file stands at its end."""
    if file.seekable():
        return cast("IO[bytes]", _Kept(file))
    copy = tempfile.SpooledTemporaryFile(max_size=_KEPT_IN_MEMORY)  # noqa: SIM115  the caller closes it
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return cast("IO[bytes]", copy)


class _Kept:
    """Somebody else's open file, which is left open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __enter__(self) -> BinaryIO:
        return self._file

    def __exit__(self, *_: object) -> None:
        pass


class _Bundle:
    """Reads one bundle."""

    def __init__(self, name: str, options: FileOptions, progress: Progress, shared: Shared | None) -> None:
        self._name = name
        self._options = options
        self._progress = progress
        self._shared = shared
        self._chains: list[Outcome] = []
        self._troubles: list[tuple[Verdict, str]] = []
        self._keys: list[ChainKeys] = []

    def read(self, file: IO[bytes]) -> None:
        """Verifies all that is in it."""
        try:
            archive = zipfile.ZipFile(file)
        except _BROKEN:
            has_end = _has_end(file)
            self.trouble(
                Verdict.TAMPERED if has_end else Verdict.INCOMPLETE,
                "the directory of the ZIP file was changed"
                if has_end
                else "cut: the end of the file is not there",
            )
            return
        with archive:
            names = [
                info.filename for info in sorted(archive.infolist(), key=lambda info: info.header_offset)
            ]
            if not _is_bare(archive, file):
                self.trouble(
                    Verdict.TAMPERED,
                    "it holds more than its members: other programs may read something else in it",
                )
            statement = self._manifest(archive, names)
            if statement is not None:
                self._members(archive, names, statement)

    def trouble(self, verdict: Verdict, reason: str) -> None:
        """Something is wrong with the bundle as a whole."""
        self._troubles.append((verdict, reason))

    def outcomes(self) -> list[Outcome]:
        """What it came to."""
        troubles = [Outcome(self._name, verdict, note=reason) for verdict, reason in self._troubles]
        found = [*self._chains, *troubles]
        wanted = self._options.agent_id
        note = "the bundle holds no record" if wanted is None else f"no record of agent {wanted}"
        return found or [Outcome(self._name, Verdict.NOTHING, note=note)]

    def _manifest(self, archive: zipfile.ZipFile, names: list[str]) -> Statement | None:
        if MANIFEST not in names:
            self.trouble(
                Verdict.INCOMPLETE, f"{MANIFEST} is not there: a bundle without it was cut, or is none"
            )
            return None
        try:
            with archive.open(MANIFEST) as member:
                text = member.read(_MAX_MANIFEST).decode("utf-8")
            return read_statement(text.removesuffix("\n"), "manifest")
        except (ChainError, UnicodeDecodeError, *_BROKEN) as error:
            self.trouble(Verdict.TAMPERED, f"{MANIFEST}: {error}")
            return None

    def _members(self, archive: zipfile.ZipFile, names: list[str], statement: Statement) -> None:
        try:
            members = msgspec.convert(statement.says, _Manifest).members
        except msgspec.ValidationError as error:
            self.trouble(Verdict.TAMPERED, f"{MANIFEST}: {error}")
            return
        self._compare(names, [member.name for member in members])
        there = set(names)
        for found in self._verified(archive, [member for member in members if member.name in there]):
            self._troubles += found.troubles
            self._keys.append(found.keys)
            self._chains += [] if found.outcome is None else [found.outcome]
        if not self._troubles:
            self._look_at_signer(statement)

    def _compare(self, names: list[str], told: list[str]) -> None:
        """The members that there are with those that the manifest names, which is the last of all."""
        there, expected = set(names), {*told, MANIFEST}
        for name in [name for name in told if name not in there]:
            self.trouble(Verdict.INCOMPLETE, f"{name} is not there, which the manifest names")
        for name in sorted(there - expected):
            self.trouble(Verdict.TAMPERED, f"{name} was added: the manifest does not name it")
        if len(names) != len(there):
            self.trouble(Verdict.TAMPERED, "members stand in it twice")
        elif there == expected and names != [*told, MANIFEST]:
            self.trouble(Verdict.TAMPERED, "its members stand in another order than the manifest says")

    def _verified(self, archive: zipfile.ZipFile, members: Sequence[Member]) -> Iterator[_Found]:
        """What was found of each member, in their order."""
        if self._shared is None or sum(member.log_uuid is not None for member in members) < 2:
            for member in members:
                yield _verify(archive, member, self._name, self._options, self._progress)
            return
        lots = _lots(members, self._shared.jobs * _LOTS_EACH)
        under_way: list[Future[list[_Found]]] = []
        executor = self._shared.executor
        try:
            under_way.extend(executor.submit(_verify_lot, self._name, lot, self._options) for lot in lots)
            for lot, future in zip(lots, under_way, strict=True):
                yield from future.result()
                self._progress(sum(member.bytes for member in lot))
        except BrokenProcessPool:
            raise UnavailableError(DIED) from None
        finally:
            for future in under_way:
                future.cancel()

    def _look_at_signer(self, statement: Statement) -> None:
        end = End(MANIFEST, "bundle", statement.says.get("taken_at"), statement.signed_by)
        if (reason := untrusted(end, self._keys, self._options.pinned)) is not None:
            self.trouble(Verdict.OTHER_KEY, reason)
            return
        self._chains = sealed(end, self._chains, self._options.pinned)


class _Found(msgspec.Struct, frozen=True):
    """What was found of one member; without ``outcome`` it holds no chain, or none that was asked about."""

    troubles: tuple[tuple[Verdict, str], ...]
    keys: ChainKeys
    outcome: Outcome | None


def _verify(
    archive: zipfile.ZipFile, member: Member, name: str, options: FileOptions, progress: Progress
) -> _Found:
    """Verifies one member: against the manifest, and the chain in it."""
    digest, size = hashlib.sha256(), 0
    chain = None
    if member.chain is not None:
        chain = ChainOfFile(name, options, (), partial=False)
    try:
        with (
            archive.open(member.name) as packed,
            io.BufferedReader(cast("io.RawIOBase", packed)) as lines,
        ):
            for line in lines_of(cast("BinaryIO", lines), progress):
                digest.update(line)
                size += len(line)
                if size > member.bytes:
                    break  # what it would unpack to may have no end
                if chain is not None:
                    chain.take(line)
    except _BROKEN as error:
        return _Found(((Verdict.TAMPERED, f"{member.name} was changed: {error}"),), ChainKeys(), None)
    troubles: tuple[tuple[Verdict, str], ...] = ()
    if (size, digest.hexdigest()) != (member.bytes, member.sha256):
        reason = f"{member.name} was changed: its SHA-256 is not the manifest's"
        troubles = ((Verdict.TAMPERED, reason),)
    if chain is None or not (chain.has_lines or member.records):
        return _Found(troubles, ChainKeys(), None)
    return _Found(troubles, chain.keys, chain.end(member.chain))


def _verify_lot(path: str, members: Sequence[Member], options: FileOptions) -> list[_Found]:
    """The same of several members, by a process that shares the work."""
    with zipfile.ZipFile(path) as archive:
        return [_verify(archive, member, path, options, lambda _: None) for member in members]


def _lots(members: Sequence[Member], most: int) -> list[list[Member]]:
    """The members in their order, in about so many lots of about as many bytes."""
    each = sum(member.bytes for member in members) // most + 1
    lots: list[list[Member]] = [[]]
    size = 0
    for member in members:
        if size >= each:
            lots.append([])
            size = 0
        lots[-1].append(member)
        size += member.bytes
    return lots


def _is_bare(archive: zipfile.ZipFile, file: IO[bytes]) -> bool:
    """Whether the file is its members one behind the other, their directory, and nothing else.

    Beside them another archive could stand, which a program that reads from the front takes for this one.
    """
    end, most = 0, 0  # the first member begins the file
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if not end <= info.header_offset <= end + most:
            return False
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size:
            return False
        end = info.header_offset + len(header) + sum(_LOCAL_HEADER.unpack(header)) + info.compress_size
        most = _DESCRIPTOR_BYTES
    return end <= archive.start_dir <= end + most and _has_end(file)


def _has_end(file: IO[bytes]) -> bool:
    """Whether the file ends in what a ZIP file ends in."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _END_BYTES))
    return file.read().startswith(_END_OF_DIRECTORY)
