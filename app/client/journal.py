"""One file of the outbox: what is to be sent, on disk, until the service has it (SQLite, WAL).

A journal belongs to one process, which holds a lock (flock) on the file beside it for as long as it lives.
The system lets go of the lock when the process dies, however it dies, and so tells the next program that
the journal may be adopted. What is committed survives the end of the process at any moment (kill -9); when
the machine itself loses power the last moments may be missing.

A disk that is full or fails stops nothing: the journal goes on in memory, says so (WARNING), and moves back
to its file when there is room. Killed meanwhile, a program loses what it recorded since; what it had sent
since, the next program may send once more, under the same node ids.

A new request's Idempotency-Key is made of the journal's name and the request's own bytes: one key never
stands for other bytes, and the same entries sent together again are the same request.

The lock is on a file of its own: SQLite locks the journal in a way (POSIX) that any other descriptor of the
same file, once closed, would undo.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from app.chain.record import format_timestamp
from app.client.batch import Entry, Fixed, No, Settled, ndjson, next_lines
from app.client.errors import SpoolError
from app.client.settings import Service
from app.client.transport import NDJSON

J = TypeVar("J", bound="Journal")
T = TypeVar("T")

FORMAT: Final = 1
"""``user_version`` of the file. A file of another format is left as it is."""

SUFFIX: Final = ".journal"

BACK_SECS: Final = 30.0
"""A journal that had to go on in memory tries this often whether its disk has room again."""

_NO_ROOM_ON_DISK: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})

_log = logging.getLogger("trails.client")

_SCHEMA: Final = """
CREATE TABLE about (url TEXT NOT NULL, agent TEXT NOT NULL, tenant TEXT NOT NULL);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT, node_id TEXT, alone INTEGER NOT NULL DEFAULT 0,
    path TEXT, content_type TEXT, key TEXT,
    body BLOB NOT NULL);
CREATE TABLE fixed (
    path TEXT NOT NULL, content_type TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL,
    lines TEXT NOT NULL, attempts INTEGER NOT NULL);
CREATE TABLE refused (
    id INTEGER PRIMARY KEY, refused_at TEXT NOT NULL, status INTEGER NOT NULL, reason TEXT NOT NULL,
    session TEXT, node_id TEXT, path TEXT, content_type TEXT, key TEXT,
    body BLOB NOT NULL);
"""

_ADD: Final = (
    "INSERT INTO entries (session, node_id, path, content_type, key, body) VALUES (?, ?, ?, ?, ?, ?)"
)
_HEAD: Final = "SELECT id, body, session, node_id, alone, path, content_type, key FROM entries ORDER BY id"
_REFUSE: Final = (
    "INSERT INTO refused SELECT id, ?, ?, ?, session, node_id, path, content_type, key, body"
    " FROM entries WHERE id = ?"
)
_REFUSED: Final = (
    "SELECT refused_at, status, reason, session, node_id, path, body FROM refused ORDER BY id LIMIT 1000"
)
"""More than anybody reads; the rest shows when these are discarded."""
_DISCARD: Final = "DELETE FROM refused WHERE id IN (SELECT id FROM refused ORDER BY id LIMIT 1000)"
_RESTORE: Final = (
    "INSERT INTO entries (session, node_id, alone, path, content_type, key, body)"
    " SELECT session, node_id, 1, path, content_type, key, body FROM refused ORDER BY id"
)

_ABANDONED: list[object] = []
"""Connections of a parent process: closing one here could touch what the parent is writing."""


class Refusal(msgspec.Struct, frozen=True):
    """Something that the service refused for good. It is kept in the journal until it is discarded."""

    refused_at: str
    """RFC 3339, UTC."""
    status: int
    reason: str
    session_id: str | None
    node_id: str | None
    path: str | None
    """Of a request that was put whole; None for a node."""
    body: bytes
    """The node, or the request's body."""


def identity(service: Service) -> str:
    """Whom a journal is for, as 16 hex of its name: one agent of one tenant at one service."""
    text = f"{service.url}\n{service.tenant}\n{service.agent}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare_folder(folder: Path) -> None:
    """Makes the spool folder, for its owner alone.

    Raises:
        SpoolError: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SpoolError(f"{folder}: {error.strerror}; give spool=… a folder that can be written") from error


class Journal:
    """A journal that this process holds. Its methods may be called from any thread."""

    def __init__(self, path: Path, lock: int | None, connection: sqlite3.Connection) -> None:
        self.path = path
        self.mutex = threading.RLock()
        self._flock = lock
        self._connection = connection
        self._disk: sqlite3.Connection | None = None  # while it goes on in memory
        self._next_try = 0.0
        self._closed = False
        row = connection.execute("SELECT count(*), total(length(body)) FROM entries").fetchone()
        self.waiting: int = row[0]
        """Entries that the service does not have yet, as far as is known."""
        self.waiting_bytes = int(row[1])
        self.refused: int = connection.execute("SELECT count(*) FROM refused").fetchone()[0]
        """Entries that the service refused."""

    # --- beginning and end -------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, service: Service) -> Self:
        """A new journal.

        On a full disk it is in memory only.

        Raises:
            SpoolError: it cannot be made.
        """
        born = f"{time.time_ns():020}-{os.getpid()}-{secrets.token_hex(4)}"  # names sort by age
        path = folder / f"{identity(service)}-{born}{SUFFIX}"
        try:
            prepare_folder(folder)
            return cls._on_disk(path, service)
        except SpoolError as error:
            if not _is_full(error.__cause__):
                raise
            with suppress(OSError):
                _remove(path)
            _log.warning("%s; until the disk has room, what is recorded is in memory only", error)
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.executescript(_SCHEMA)
        return cls(path, None, connection)

    @classmethod
    def _on_disk(cls, path: Path, service: Service) -> Self:
        with _Claim(path) as claim:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o600))
            connection = claim.open()
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
            about = (service.url, service.agent, service.tenant)
            connection.execute("INSERT INTO about VALUES (?, ?, ?)", about)
            return claim.journal(cls)
        raise SpoolError(f"{path.parent}: was removed at the same moment")

    @property
    def in_memory(self) -> bool:
        """Whether what is added is in memory only, since the disk is full."""
        return self._disk is not None or self.is_without_a_file

    @property
    def is_without_a_file(self) -> bool:
        """Whether it was made while the disk was full; it never gets a file."""
        return self._flock is None

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """The journal of a process that is gone; None when it is not gone, or the file is none of ours.

        Raises:
            SpoolError: the file is damaged, or of another format; it stays as it is.
        """
        with _Claim(path) as claim:
            if not claim.held or not _is_own_file(path):
                return None
            connection = claim.open()
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                claim.discard()  # its process was killed while it made the file
                return None
            if version != FORMAT:
                raise SpoolError(f"{path}: has format {version}; this program reads format {FORMAT}")
            return claim.journal(cls)
        return None  # its owner was done with it meanwhile

    def close(self) -> None:
        """Lets go of the file, and removes it when there is nothing in it any more. Idempotent."""
        with self.mutex:
            if self._closed:
                return
            kept = self.waiting or self.refused
            self._return_to_disk(at_once=True)
            self._closed = True
            if kept and self.in_memory:
                _log.error(
                    "%s: the disk is full, and %d entries that are only in memory end with this program",
                    self.path, kept,
                )  # fmt: skip
            self._connection.close()
            if self._disk is not None:
                self._disk.close()
            if self._flock is not None:
                if not kept:
                    _remove(self.path)
                os.close(self._flock)

    def abandon(self) -> None:
        """Lets go of a journal that is the parent's, in a forked child: it does not touch the file."""
        self._closed = True
        _ABANDONED.append((self._connection, self._disk))
        if self._flock is not None:
            os.close(self._flock)  # the parent's descriptor keeps the lock

    # --- what is to be sent ------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Puts an entry at the end (its ``id`` is given here). It is on disk when this returns, if it can be.

        Raises:
            SpoolError: it could not be written; it was not recorded.
        """
        values = (entry.session, entry.node_id, entry.path, entry.content_type, entry.key, entry.body)
        with self.mutex:
            self._write(lambda connection: connection.execute(_ADD, values))
            self.waiting += 1
            self.waiting_bytes += len(entry.body)

    def next(self, traces: str, limit: int) -> Fixed | None:
        """The request to send now: the one that was begun, else a new one, which is fixed hereby.

        Args:
            traces: where nodes are posted to.
            limit: most entries to take into a new one.
        """
        return self._transact(lambda connection: self._next(connection, traces, limit))

    def _next(self, connection: sqlite3.Connection, traces: str, limit: int) -> Fixed | None:
        found = connection.execute("SELECT path, content_type, key, body, lines, attempts FROM fixed")
        for row in found:
            lines = msgspec.json.decode(row[4], type=tuple[tuple[int, ...], ...])
            return Fixed(row[0], row[1], row[2], row[3], lines, row[5])
        with closing(connection.execute(_HEAD)) as rows:
            chosen = next_lines(map(_entry, rows), limit)
        if not chosen:
            return None
        fixed = self._fixed(chosen, traces)
        encoded = msgspec.json.encode(fixed.lines).decode()
        connection.execute(
            "INSERT INTO fixed VALUES (?, ?, ?, ?, ?, 0)",
            (fixed.path, fixed.content_type, fixed.key, fixed.body, encoded),
        )
        return fixed

    def _fixed(self, chosen: Sequence[Sequence[Entry]], traces: str) -> Fixed:
        lines = tuple(tuple(entry.id for entry in line) for line in chosen)
        first = chosen[0][0]
        if first.path is not None:
            return Fixed(first.path, first.content_type or "", first.key or "", first.body, lines)
        body = ndjson(chosen)
        named = f"{self.path.name}\n{first.id}\n".encode()
        return Fixed(traces, NDJSON, hashlib.sha256(named + body).hexdigest()[:32], body, lines)

    def count_attempt(self, fixed: Fixed) -> Fixed:
        """Counts the attempt to send the fixed request that is about to be made."""
        self._transact(lambda connection: connection.execute("UPDATE fixed SET attempts = attempts + 1"))
        return msgspec.structs.replace(fixed, attempts=fixed.attempts + 1)

    def renew_key(self) -> None:
        """Gives the fixed request another key: its own stands for something else at the service."""
        key = secrets.token_hex(16)
        self._transact(lambda connection: connection.execute("UPDATE fixed SET key = ?", (key,)))

    def settle(self, outcome: Settled) -> None:
        """Takes out what the service has, sets aside what it refused; the fixed request is over."""
        gone = [*outcome.done, *(entry for no in outcome.refused for entry in no.entries)]
        with self.mutex:
            size = self._transact(lambda connection: _settled(connection, outcome, gone))
            self.waiting -= len(gone)
            self.waiting_bytes -= size
            self.refused += sum(len(no.entries) for no in outcome.refused)

    def unfix(self) -> None:
        """Gives the fixed request up, of which nothing was stored; its entries stay in their places."""
        self._transact(lambda connection: connection.execute("DELETE FROM fixed"))

    # --- what was refused --------------------------------------------------------------------------

    def refusals(self) -> list[Refusal]:
        """What the service refused, oldest first; the first 1,000."""
        return self._transact(lambda connection: [Refusal(*row) for row in connection.execute(_REFUSED)])

    def discard_refused(self) -> None:
        """Deletes what ``refusals`` lists: somebody has seen it."""
        with self.mutex:
            self.refused -= self._transact(lambda connection: connection.execute(_DISCARD).rowcount)

    def restore_refused(self) -> None:
        """Puts what was refused at the end of what is to be sent."""
        with self.mutex:
            count, size = self._transact(_restored)
            self.waiting += count
            self.waiting_bytes += size
            self.refused = 0

    # --- writing -----------------------------------------------------------------------------------

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of ``work``, in a transaction."""

        def transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # of some errors SQLite has rolled back itself
                    connection.execute("ROLLBACK")
                raise
            return result

        return self._write(transaction)

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of ``work``, in memory where the disk has no room.

        Raises:
            SpoolError: it could not be written.
        """
        with self.mutex:
            if self._closed:
                raise SpoolError(f"{self.path}: the journal is closed")
            if self._disk is not None:
                self._return_to_disk()
            try:
                return work(self._connection)
            except sqlite3.Error as error:
                if self.in_memory or not _is_full(error):
                    raise SpoolError(f"{self.path}: {error}") from error
                full = error
            try:
                self._go_on_in_memory(full)
                return work(self._connection)
            except sqlite3.Error as error:
                raise SpoolError(f"{self.path}: {error}") from full

    def _go_on_in_memory(self, error: sqlite3.Error) -> None:
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            self._connection.backup(memory)
        except sqlite3.Error:
            memory.close()
            raise
        self._disk, self._connection = self._connection, memory
        self._next_try = time.monotonic() + BACK_SECS
        _log.warning(
            "%s: %s; until it is sent or there is room, what is recorded is in memory only, and lost when "
            "this program is killed", self.path, error,
        )  # fmt: skip

    def _return_to_disk(self, *, at_once: bool = False) -> None:
        """Writes everything to the file again, when it is time to try and there is room."""
        if self._disk is None or not (at_once or time.monotonic() >= self._next_try):
            return
        self._next_try = time.monotonic() + BACK_SECS
        try:
            self._connection.backup(self._disk)
        except sqlite3.Error:
            return
        self._connection.close()
        self._connection, self._disk = self._disk, None
        _log.info("%s: there is room again; it is on disk", self.path)


def adoptable(folder: Path, service: Service) -> Iterable[Path]:
    """Journals for the same agent and service, oldest first. Their owners may be alive."""
    with suppress(OSError):
        found = [path for path in folder.iterdir() if path.suffix == SUFFIX]
        return sorted(path for path in found if path.name.startswith(f"{identity(service)}-"))
    return []


def _is_full(error: BaseException | None) -> bool:
    """Whether there is no room, or the disk fails."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_ROOM_ON_DISK
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def _settled(connection: sqlite3.Connection, outcome: Settled, gone: Sequence[int]) -> int:
    """Takes entries out; how many bytes they had."""
    now = format_timestamp(time.time_ns() // 1_000)
    for no in outcome.refused:
        _set_aside(connection, no, now)
    size = sum(_size(connection, entry) for entry in gone)
    connection.executemany("DELETE FROM entries WHERE id = ?", ((entry,) for entry in gone))
    alone = ((entry,) for entry in outcome.alone)
    connection.executemany("UPDATE entries SET alone = 1 WHERE id = ?", alone)
    connection.execute("DELETE FROM fixed")
    return size


def _restored(connection: sqlite3.Connection) -> tuple[int, int]:
    """Puts refused entries at the end; how many, and their bytes."""
    connection.execute(_RESTORE)
    count, size = connection.execute("SELECT count(*), total(length(body)) FROM refused").fetchone()
    connection.execute("DELETE FROM refused")
    return count, int(size)


def _set_aside(connection: sqlite3.Connection, no: No, now: str) -> None:
    rows = ((now, no.status, no.reason, entry) for entry in no.entries)
    connection.executemany(_REFUSE, rows)


def _size(connection: sqlite3.Connection, entry: int) -> int:
    row = connection.execute("SELECT length(body) FROM entries WHERE id = ?", (entry,)).fetchone()
    return row[0] if row is not None else 0


def _entry(row: tuple[int, bytes, str | None, str | None, int, str | None, str | None, str | None]) -> Entry:
    identifier, body, session, node_id, alone, path, content_type, key = row
    return Entry(identifier, body, session, node_id, bool(alone), path, content_type, key)


class _Claim:
    """The lock of a journal and a connection to it, let go of unless a ``Journal`` takes them over.

    Raises:
        SpoolError: on leaving the block, for what the system or SQLite says; not when the file is gone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None

    @property
    def held(self) -> bool:
        """Whether the lock is ours; it is not while another process lives."""
        return self._lock is not None

    def open(self) -> sqlite3.Connection:
        """The connection, with the lock held."""
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=1.0)
        self._connection = connection
        # Nobody else may write, so nothing is asked of the file system before each transaction.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def journal(self, kind: type[J]) -> J:
        """The journal, which has lock and connection from now on."""
        assert self._lock is not None  # noqa: S101  for the type checker; nobody opens without it
        assert self._connection is not None  # noqa: S101  as above
        made = kind(self._path, self._lock, self._connection)
        self._lock = self._connection = None
        return made

    def discard(self) -> None:
        """Removes the files, in which there is nothing."""
        _remove(self._path)

    def __enter__(self) -> Self:
        try:
            self._lock = _locked(self._path.with_suffix(".lock"))
        except OSError as error:
            raise SpoolError(f"{self._path}: {error}") from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
        if isinstance(error, FileNotFoundError):
            self._path.with_suffix(".lock").unlink(missing_ok=True)
            return True
        if isinstance(error, OSError | sqlite3.Error):
            raise SpoolError(f"{self._path}: {error}; look at the disk and the rights") from error
        return False


def _remove(path: Path) -> None:
    """The journal and what stands beside it; the lock last, which says that somebody is at it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock; None when another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT, 0o600)
    held = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its owner may have removed it between our opening and our locking.
        held = os.path.samestat(os.fstat(descriptor), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not held:
            os.close(descriptor)
    return descriptor if held else None


def _is_own_file(path: Path) -> bool:
    """A plain file of this user: nobody else can plant what we would send."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
