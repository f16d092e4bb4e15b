"""The outbox: what was recorded reaches the service, once, in order, whatever happens meanwhile.

Everything is written to a journal on disk before it counts as queued (``app.client.journal``; in memory, with
a warning, while the disk is full). One thread
sends it. A request, its bytes and its Idempotency-Key, is fixed in the journal before it is sent for the
first time, so that sending it again, after a lost answer or by another process after this one was killed,
is exactly the same request, and the service stores it once.

What the service says to it decides what is next (``app.client.batch``): stored, again later, less at once,
or refused for good; the last is kept aside with the reason and hinders nothing else.

When the journal holds as much as it may, recording waits; nothing is ever dropped.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import random
import ssl
import threading
import time
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

import msgspec

from app.client.batch import MAX_BATCH_NODES, Again, Entry, Fixed, OtherKey, Settled, TooMuch, verdict
from app.client.errors import OutboxClosedError, OutboxFullError, SpoolError, UnreachableError
from app.client.journal import Journal, Refusal, adoptable
from app.client.settings import Service, default_spool
from app.client.transport import JSON, TIMEOUT_SECS, Request, Transport

MAX_QUEUED: Final = 100_000
"""Entries that may wait in one process's journal: a day of an agent that does one thing a second."""

MAX_QUEUED_BYTES: Final = 256 * 1024 * 1024
"""Bytes that may wait in one process's journal."""

LINGER_SECS: Final = 0.05
"""After a pause the first node waits this long for others to go with it."""

EXIT_SECS: Final = 5.0
"""How long the end of the program waits for what is queued; the next program sends the rest."""

MAX_RETRY_AFTER_SECS: Final = 3_600.0
"""A longer wait than this is not believed."""

_log = logging.getLogger("trails.client")


class Backoff(msgspec.Struct, frozen=True):
    """Seconds between attempts. Each is shortened at random by up to a half, so that clients spread."""

    first: float = 0.5
    most: float = 60.0
    slow: float = 10.0
    """The most while a person has to change something (a token, a missing agent, a URL): it grows as slowly
    as the other, and whoever has put it right does not wait long."""

    def delay(self, failures: int, *, slowly: bool, retry_after: float | None) -> float:
        """How long to wait after this many failures in a row; never less than the service asked for."""
        secs = min(self.slow if slowly else self.most, self.first * 2.0 ** min(failures - 1, 30))
        jittered = secs * random.uniform(0.5, 1.0)  # noqa: S311  spreading, no secret
        if retry_after is None:
            return jittered
        return min(retry_after, MAX_RETRY_AFTER_SECS) + jittered * 0.1


class Report(msgspec.Struct, frozen=True):
    """What ``flush`` found. True when everything that was recorded is on record at the service."""

    waiting: int
    """Entries that are still to be sent. Each is a node, or a whole request."""
    refused: tuple[Refusal, ...] = ()
    """What the service refused for good, until it is discarded."""
    trouble: str | None = None
    """While something waits: what stood in the way at the last attempt."""

    def __bool__(self) -> bool:
        return not self.waiting and not self.refused


class Outbox:
    """Sends what it is given to one agent of one service.

    Args:
        service: where to, and for whom. The token is never written to disk.
        spool: the folder of journals; by default below ``$XDG_STATE_HOME`` or ``~/.local/state``.
        max_queued: most entries in this process's journal; then ``put`` waits.
        max_queued_bytes: the same in bytes.
        timeout: seconds that one request may take.
        backoff: how long to wait between attempts.
        verify: True, or an ``ssl.SSLContext`` with your own authority.

    Raises:
        SpoolError: the folder cannot be used.
    """

    def __init__(
        self,
        service: Service,
        *,
        spool: str | os.PathLike[str] | None = None,
        max_queued: int = MAX_QUEUED,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        timeout: float = TIMEOUT_SECS,
        backoff: Backoff | None = None,
        verify: ssl.SSLContext | Literal[True] = True,
    ) -> None:
        self.service = service
        self.folder = default_spool() if spool is None else Path(spool)
        self._traces = f"/v1/agents/{service.agent}/traces"
        self._bounds = (max(1, max_queued), max(1, max_queued_bytes))
        self._backoff = backoff or Backoff()
        self._transport = Transport(service, timeout=timeout, verify=verify)
        self._users = 1
        self._begin()
        self._adopt()
        _OPEN[id(self)] = self

    @classmethod
    def shared(
        cls,
        service: Service,
        *,
        spool: str | os.PathLike[str] | None = None,
        **options: Any,  # noqa: ANN401  those of the class
    ) -> Self:
        """The outbox of this process with these settings, made when there is none. Arguments as above.

        So a tracker made for each session or request costs no thread and no file of its own. The outbox is
        closed when each of its users has closed it.
        """
        folder = default_spool() if spool is None else Path(spool)
        defaults = inspect.signature(cls).parameters
        given = {name: value for name, value in options.items() if value != defaults[name].default}
        key = (cls, service, folder.absolute(), tuple(sorted(given.items(), key=lambda item: item[0])))
        with _SHARING:
            found = _SHARED.get(key)
            if found is None or found.closed:
                found = _SHARED[key] = cls(service, spool=folder, **options)
            else:
                found._users += 1
            return cast("Self", found)

    @property
    def closed(self) -> bool:
        """Whether it takes nothing any more."""
        return self._closed

    def _begin(self) -> None:
        """The state of a process that has recorded nothing yet; also of a forked child."""
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._urgent = threading.Event()
        self._own: Journal | None = None
        self._adopted: list[Journal] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failures = 0
        self._not_before = 0.0
        self._asked_to_wait = False
        self._trouble: str | None = None
        self._limit = MAX_BATCH_NODES
        self._held: list[Journal] = []
        self._last = Report(0)

    # --- recording ---------------------------------------------------------------------------------

    def put(
        self,
        path: str,
        body: bytes,
        idempotency_key: str,
        content_type: str = JSON,
        *,
        timeout: float | None = None,
    ) -> None:
        """Queues a whole POST request; it is on disk when this returns, and is sent in its turn.

        Args:
            path: from the service's root, such as ``/v1/agents/a/events``.
            body: sent exactly like this.
            idempotency_key: sent with it each time.
            content_type: of the body.
            timeout: seconds to wait for room; None waits for ever.

        Raises:
            OutboxFullError: there was no room in time; nothing was recorded.
            OutboxClosedError: after ``close``.
            SpoolError: the journal cannot be written; nothing was recorded.
        """
        self._add(Entry(0, body, path=path, content_type=content_type, key=idempotency_key), timeout)

    def put_node(self, session_id: str, node_id: str, body: bytes, *, timeout: float | None = None) -> None:
        """Queues a node (a JSON object) of a session; nodes are sent together. Raises as ``put``."""
        self._add(Entry(0, body, session=session_id, node_id=node_id), timeout)

    def _add(self, entry: Entry, timeout: float | None) -> None:
        with self._changed:
            if not self._changed.wait_for(self._has_room, timeout):
                most, most_bytes = self._bounds
                raise OutboxFullError(
                    f"{most} entries or {most_bytes} bytes wait for {self.service.url}"
                    f" ({self._trouble or 'it is slower than what is recorded'}); this was not recorded"
                )
            self._journal().add(entry)
            if self._thread is None:
                self._start()
        if not self._wake.is_set():
            self._wake.set()

    def _has_room(self) -> bool:
        if self._closed:
            raise OutboxClosedError("this outbox was closed; make a new tracker")
        most, most_bytes = self._bounds
        own = self._own
        return own is None or (own.waiting < most and own.waiting_bytes < most_bytes)

    def _journal(self) -> Journal:
        if self._own is None:
            self._own = Journal.create(self.folder, self.service)
        return self._own

    # --- what became of it -------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Entries that the service does not have yet, those of adopted journals included."""
        return self._last.waiting if self._closed else sum(j.waiting for j in self._journals())

    @property
    def refused(self) -> list[Refusal]:
        """What the service refused for good and nobody has discarded yet."""
        with self._changed:
            if self._closed:
                return list(self._last.refused)
            return [refusal for journal in self._journals() for refusal in journal.refusals()]

    def discard_refused(self) -> None:
        """Deletes what ``refused`` lists: somebody has seen it."""
        with self._changed:
            for journal in self._journals():
                journal.discard_refused()
            self._let_go()

    def restore_refused(self) -> None:
        """Sends what was refused once more, e.g. after a limit of the service was raised."""
        with self._changed:
            for journal in self._journals():
                journal.restore_refused()
            if self._thread is None and self.waiting:
                self._start()
        self._wake.set()

    def flush(self, timeout: float | None = 30.0) -> Report:
        """Waits until everything is sent, and asks at once where the last attempt failed.

        Args:
            timeout: seconds; None waits for ever.
        """
        with self._changed:
            if not self._closed:
                self._adopt()  # children of this program may have ended meanwhile
            if not self._asked_to_wait:
                self._not_before = 0.0
            self._urgent.set()
            self._wake.set()
            self._changed.wait_for(lambda: self._closed or not self.waiting, timeout)
            self._urgent.clear()
            if self._closed:
                return self._last
            return Report(self.waiting, tuple(self.refused), self._in_the_way())

    def _in_the_way(self) -> str | None:
        """Why something waits still."""
        if not self.waiting:
            return None
        said = self._trouble or f"{self.service.url} has not answered yet"
        if any(journal.in_memory for journal in self._journals()):
            said += "; the disk is full, so that what waits is in memory only"
        return said

    def close(self, timeout: float | None = EXIT_SECS) -> Report:
        """Flushes, ends the thread and lets go of the journal. What is left the next program sends.

        A shared outbox is flushed, and ends with its last user. Idempotent.

        Args:
            timeout: seconds for the flush.
        """
        with _SHARING:
            self._users -= 1
            last = self._users <= 0
        report = self.flush(timeout)
        return self.end(report) if last and not self._closed else report

    def end(self, report: Report) -> Report:
        """Closes it whoever uses it, after a flush that gave ``report``."""
        with self._changed:
            self._last, self._closed = report, True
            self._urgent.set()
            self._wake.set()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(0 if report.waiting else EXIT_SECS)
        for journal in self._journals():
            journal.close()
        _OPEN.pop(id(self), None)
        if report.waiting:
            _log.warning(
                "%d entries for %s are left in %s; the next program for the same agent sends them (%s)",
                report.waiting, self.service.url, self.folder, report.trouble or "no time",
            )  # fmt: skip
        return report

    # --- the thread --------------------------------------------------------------------------------

    def _journals(self) -> list[Journal]:
        """Adopted ones first: they are older."""
        return [*self._adopted, *([] if self._own is None else [self._own])]

    def _adopt(self) -> None:
        for path in adoptable(self.folder, self.service):
            try:
                journal = Journal.adopt(path)
            except SpoolError as error:
                _log.error("a journal cannot be adopted: %s", error)
                continue
            if journal is None:
                continue
            _log.info("adopted %s: %d to send", path, journal.waiting)
            if journal.refused:
                _log.warning("%s keeps %d entries that were refused; see refused", path, journal.refused)
            self._adopted.append(journal)
        self._let_go()
        if self.waiting and self._thread is None:
            self._start()

    def _let_go(self) -> None:
        """Closes, and so removes, adopted journals with nothing in them."""
        for journal in [j for j in self._adopted if not j.waiting and not j.refused]:
            self._adopted.remove(journal)
            journal.close()
        own = self._own
        if own is not None and own.is_without_a_file and not own.waiting and not own.refused:
            self._own = None  # the next one may find room on the disk
            own.close()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="lineage-trails-outbox", daemon=True)
        self._thread.start()
        if parent_process() is not None:
            # A child of multiprocessing ends without what atexit knows.
            Finalize(None, _close_all, exitpriority=0)

    def _run(self) -> None:
        with self._transport:  # nobody else uses it
            self._send_all()

    def _send_all(self) -> None:
        while not self._closed:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001  the thread must not end before the outbox does
                if self.closed:
                    return  # what it was sending stays in the journal, for the next one
                if not isinstance(error, SpoolError):
                    _log.exception("the outbox goes on after an unexpected error")
                self._failed(Again(f"{type(error).__name__}: {error}"))

    def _turn(self) -> None:
        """Sends one request, or waits for one to send."""
        self._wake.clear()
        journal = next((journal for journal in self._journals() if journal.waiting), None)
        if journal is None:
            self._wake.wait()
            self._urgent.wait(LINGER_SECS)
            return
        pause = self._not_before - time.monotonic()
        if pause > 0:
            if self._wake.wait(pause) and not self._urgent.is_set():
                self._urgent.wait(max(0.0, self._not_before - time.monotonic()))
            return
        fixed = journal.next(self._traces, self._limit)
        if fixed is not None:
            self._send(journal, fixed)

    def _send(self, journal: Journal, fixed: Fixed) -> None:
        fixed = journal.count_attempt(fixed)
        request = Request("POST", fixed.path, fixed.body, fixed.content_type, fixed.key)
        try:
            outcome = verdict(fixed, self._transport.send(request))
        except UnreachableError as error:
            outcome = Again(str(error))
        match outcome:
            case Again():
                self._failed(outcome)
            case TooMuch():
                journal.unfix()
                self._limit = max(1, fixed.entries // 2)
                _log.info("sending at most %d entries at once: %s", self._limit, outcome.reason)
            case OtherKey():
                journal.renew_key()
                self._failed(Again(f"{outcome.reason}; it is sent under another key", slowly=True))
            case Settled():
                journal.settle(outcome)
                self._succeeded(outcome)

    def _succeeded(self, outcome: Settled) -> None:
        for no in outcome.refused:
            _log.error(
                "%s refused what agent %s recorded; it is kept in %s and is not sent again: %s",
                self.service.url, self.service.agent, self.folder, no.reason,
            )  # fmt: skip
        with self._changed:
            if self._failures:
                _log.info("%s takes records again", self.service.url)
            self._failures, self._not_before, self._trouble = 0, 0.0, None
            self._asked_to_wait = False
            self._limit = min(MAX_BATCH_NODES, self._limit * 2)
            self._let_go()
            self._changed.notify_all()

    def _failed(self, again: Again) -> None:
        with self._changed:
            self._failures += 1
            delay = self._backoff.delay(self._failures, slowly=again.slowly, retry_after=again.retry_after)
            self._not_before = time.monotonic() + delay
            self._asked_to_wait = again.retry_after is not None
            self._trouble = f"{again.reason} (agent {self.service.agent})" if again.slowly else again.reason
        if not self._failures & (self._failures - 1):  # the 1st, 2nd, 4th, 8th … in a row
            _log.warning(
                "%d entries of agent %s wait; attempt %d failed, the next one is in %.1f s: %s",
                self.waiting, self.service.agent, self._failures, delay, again.reason,
            )  # fmt: skip

    # --- forks -------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Of ``os.register_at_fork``: nobody is in the middle of a write while the process is copied."""
        self._changed.acquire()
        self._held = self._journals()
        for journal in self._held:
            journal.mutex.acquire()

    def after_fork_in_parent(self) -> None:
        """Of ``os.register_at_fork``: the parent goes on."""
        for journal in self._held:
            journal.mutex.release()
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """Of ``os.register_at_fork``: the journals are the parent's; a child begins one of its own."""
        for journal in self._held:
            journal.abandon()
        closed = self._closed
        self._begin()
        self._closed = closed


_OPEN: dict[int, Outbox] = {}
"""The outboxes of this process that are not closed, by their ids."""

_SHARED: dict[object, Outbox] = {}
_SHARING = threading.Lock()


def _before_fork() -> None:
    _SHARING.acquire()
    for outbox in list(_OPEN.values()):
        outbox.before_fork()


def _after_fork_in_parent() -> None:
    for outbox in list(_OPEN.values()):
        outbox.after_fork_in_parent()
    _SHARING.release()


def _after_fork_in_child() -> None:
    for outbox in list(_OPEN.values()):
        outbox.after_fork_in_child()
    _SHARING.release()


def _close_all() -> None:
    """At the end of the program: what can be sent in time is sent."""
    deadline = time.monotonic() + EXIT_SECS
    for outbox in list(_OPEN.values()):
        outbox.end(outbox.flush(max(0.0, deadline - time.monotonic())))


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(_close_all)
