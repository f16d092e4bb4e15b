"""What is sent at once, and what the answer says about it. No I/O and no clock.

A batch is NDJSON for ``POST /v1/agents/{id}/traces``: one fragment a line, all nodes of one session that
stand in the batch. The answer has a result a line. A request that was put into the outbox whole is sent as
it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from app.client.transport import NDJSON, Answer

MAX_BATCH_NODES: Final = 500
"""Nodes of one request: more would gain nothing, and each line of a batch is one record."""

MAX_BATCH_BYTES: Final = 1024 * 1024
"""Of one request, unless a single node is larger; the service takes 4 MiB."""

SERVER_FAULTS: Final = 20
"""Answers 500 to the same thing, after which it is set aside: the fault seems to be about it."""

_PASSING = frozenset({408, 425, 429})
_KEEP_ASKING = frozenset({401, 403, 404, 405, 407})
"""Of a whole request: something about the token or the agent, or something else is at the URL."""


class Entry(msgspec.Struct, frozen=True):
    """One thing in a journal: a node (``session`` is set) or a whole request (``path`` is set)."""

    id: int
    body: bytes
    session: str | None = None
    node_id: str | None = None
    alone: bool = False
    """A node that is sent in a line of its own, since the fragment that it was in was refused."""
    path: str | None = None
    content_type: str | None = None
    key: str | None = None


class Fixed(msgspec.Struct, frozen=True):
    """A request as the journal has it: it is sent like this and never otherwise."""

    path: str
    content_type: str
    key: str
    body: bytes
    lines: tuple[tuple[int, ...], ...]
    """Ids of the entries of each line; a whole request has one line with one entry."""
    attempts: int = 0
    """How often it was sent, the present attempt included."""

    @property
    def entries(self) -> int:
        """How many entries it carries."""
        return sum(map(len, self.lines))

    @property
    def is_batch(self) -> bool:
        """Whether it is answered line by line."""
        return self.content_type == NDJSON and self.path.endswith("/traces")


class No(msgspec.Struct, frozen=True):
    """Entries that the service refuses for good, and why."""

    entries: tuple[int, ...]
    status: int
    reason: str


class Settled(msgspec.Struct, frozen=True):
    """The request has its answer. What is in none of the two stays in the journal, to be sent alone."""

    done: tuple[int, ...] = ()
    refused: tuple[No, ...] = ()
    alone: tuple[int, ...] = ()


class Again(msgspec.Struct, frozen=True):
    """The same request is to be sent again."""

    reason: str
    retry_after: float | None = None
    slowly: bool = False
    """A person has to change something first."""


class TooMuch(msgspec.Struct, frozen=True):
    """Nothing of the request was stored; less at once may pass."""

    reason: str


class OtherKey(msgspec.Struct, frozen=True):
    """The key stands for another request at the service, so that nothing of this one was stored under it."""

    reason: str


Verdict: TypeAlias = Settled | Again | TooMuch | OtherKey


def next_lines(entries: Iterable[Entry], limit: int) -> list[list[Entry]]:
    """The first entries as the lines of one request, in order within each session.

    Args:
        entries: the queue, oldest first; no more of it is read than is taken, and one.
        limit: most entries to take.
    """
    lines: list[list[Entry]] = []
    open_lines: dict[str, tuple[list[Entry], set[str | None]]] = {}
    size = 0
    for number, entry in enumerate(entries):
        size += len(entry.body)
        if number and (number >= limit or size > MAX_BATCH_BYTES or entry.session is None):
            break
        if entry.session is None:
            return [[entry]]
        line, ids = open_lines.get(entry.session, ([], set()))
        # One fragment never holds an id twice: the service refuses that.
        if not line or entry.alone or line[-1].alone or entry.node_id in ids:
            line, ids = open_lines[entry.session] = ([], set())
            lines.append(line)
        line.append(entry)
        ids.add(entry.node_id)
    return lines


def ndjson(lines: Sequence[Sequence[Entry]]) -> bytes:
    """The lines as fragments; the nodes are put in as they are in the journal."""
    return b"".join(_fragment(line) for line in lines)


def _fragment(line: Sequence[Entry]) -> bytes:
    nodes = b",".join(entry.body for entry in line)
    head = f'{{"session_id":"{line[0].session}","total_nodes":{len(line)},"trace_tree":['
    return head.encode() + nodes + b"]}\n"


def verdict(sent: Fixed, answer: Answer) -> Verdict:
    """What an answer means for the entries of a request."""
    if answer.ok:
        return _lines(sent, answer) if sent.is_batch else Settled(done=sent.lines[0])
    reason = str(answer.error())
    if answer.status >= 500 or answer.status in _PASSING:
        if answer.status == 500 and sent.attempts >= SERVER_FAULTS:
            return _too_much_or_refused(sent, answer.status, reason)
        return Again(reason, answer.retry_after)
    problem = answer.problem() or {}
    if sent.is_batch and problem.get("code") == "idempotency_conflict":
        return OtherKey(reason)
    if answer.status == 413 or (problem and answer.status not in _KEEP_ASKING) or _final(sent, problem):
        return _too_much_or_refused(sent, answer.status, reason)
    return Again(reason, answer.retry_after, slowly=True)


def _final(sent: Fixed, problem: dict[str, Any]) -> bool:
    """An action that does not exist will not come to exist; an agent may be created yet."""
    return not sent.is_batch and problem.get("code") == "unknown_action"


def _too_much_or_refused(sent: Fixed, status: int, reason: str) -> Verdict:
    if sent.entries > 1:
        return TooMuch(reason)
    return Settled(refused=(No(sent.lines[0], status, reason),))


def _lines(sent: Fixed, answer: Answer) -> Verdict:
    results = _results(answer)
    if results is None or len(results) != len(sent.lines):
        return Again(f"not an answer of Lineage Trails: {answer.body[:200]!r}", slowly=True)
    done: list[int] = []
    refused: list[No] = []
    alone: list[int] = []
    for entries, result in zip(sent.lines, results, strict=True):
        status = result["status"]
        reason = f"{status} {result.get('code', 'refused')}: {result.get('error', '')}"
        if 200 <= status < 300:
            done += entries
        elif (status >= 500 or status in _PASSING) and not (status == 500 and sent.attempts >= SERVER_FAULTS):
            # The whole request again, the same to the byte: what is stored gives the same receipts.
            return Again(reason, answer.retry_after)
        elif len(entries) > 1:
            alone += entries
        else:
            refused.append(No(entries, status, reason))
    return Settled(tuple(done), tuple(refused), tuple(alone))


def _results(answer: Answer) -> list[dict[str, Any]] | None:
    """The results of the lines, in order; None when this is no such answer."""
    if answer.content_type != NDJSON:
        return None
    try:
        results = [msgspec.json.decode(line) for line in answer.body.splitlines() if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    for number, result in enumerate(results, start=1):
        if not isinstance(result, dict) or type(result.get("status")) is not int:
            return None
        if result.get("line", number) != number:
            return None
    return results
