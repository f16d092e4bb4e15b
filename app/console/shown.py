"""A record as a page shows it: what it says in words, its exact payload, and the times that senders gave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from app.chain.canonical import canonical
from app.chain.record import export_line, format_timestamp
from app.chain.strict import JsonObject, JsonValue
from app.console.acts import sentence
from app.console.json_text import SHOWN_CHARS, in_lines, visible
from app.errors import ChainError
from app.ledger.read import signed_of
from app.moment import to_microseconds
from app.text import printable
from app.trace.instant import is_skewed, parse_instant

if TYPE_CHECKING:
    from app.chain.record import VerifiedRecord
    from app.ledger.trail_reader import ReadRecord

IN_LIST_CHARS: Final = 4_000
"""Characters of a payload that a list shows; the record's own page has the rest."""

MOST_LINE_CHARS: Final = 1_000_000
"""Longest export line that a page holds to be copied; longer ones are for exports."""

_SUMMARY_CHARS: Final = 160

_WORDS: Final = (
    "action_id",
    "tool",
    "status",
    "severity",
    "type",
    "reason",
    "detail",
    "by",
    "approved_by",
    "note",
)
"""Members of a payload that say the most, in this order."""


class ClientTime(msgspec.Struct, frozen=True):
    """A time that a sender gave: where it stands, how far from the record's own, whether that is too far."""

    where: str
    said: str
    away: str
    is_skewed: bool


class Shown(msgspec.Struct, frozen=True):
    """One record of a page; ``fault`` and ``why`` are there when it does not verify."""

    seq: int
    time: str
    kind: str
    actor: str
    what: str
    session_id: str | None
    action_id: str | None
    hash: str
    prev_hash: str
    signature: str
    key_id: str
    payload: str
    is_whole: bool
    line: str | None
    client_times: tuple[ClientTime, ...]
    fault: str | None = None
    why: str | None = None

    @property
    def visible_line(self) -> str:
        """Its export line with what steers or hides text as escapes of JSON: for eyes, not for files."""
        return visible(self.line or "")

    @property
    def is_skewed(self) -> bool:
        """Whether a sender's clock is too far from ours."""
        return any(one.is_skewed for one in self.client_times)


def shown(read: ReadRecord, most: int = SHOWN_CHARS, *, alone: bool = False) -> Shown:
    """A record for a page; ``alone`` on its own page, with its line to copy."""
    if read.record is None:
        return _doubtful(read, most)
    record, row = read.record, read.row
    payload, is_whole = _lines(canonical(record.payload), most)
    line = export_line(record) if alone and len(record.text) <= MOST_LINE_CHARS else None
    action_id = record.payload.get("action_id")
    return Shown(
        seq=record.seq,
        time=record.timestamp,
        kind=record.kind,
        actor=record.actor,
        what=summary(record.kind, record.payload),
        session_id=None if row.session_id == row.log_uuid else str(row.session_id),
        action_id=action_id if isinstance(action_id, str) else None,
        hash=record.hash,
        prev_hash=record.prev_hash,
        signature=record.signature,
        key_id=row.key_id,
        payload=payload,
        is_whole=is_whole,
        line=line,
        client_times=tuple(client_times(record)),
    )


def summary(kind: str, payload: JsonObject) -> str:
    """What a record says, in some words."""
    if kind == "admin":
        return sentence(payload)
    found = [payload.get(name) for name in _WORDS]
    words = [_word(value) for value in found if value is not None and value != ""]
    if kind == "trace":
        words.append(f"{payload.get('total_nodes')} nodes")
    if kind == "policy":
        words.append(_policy_words(payload.get("policy")))
    said = " · ".join(words)
    return said if len(said) <= _SUMMARY_CHARS else said[: _SUMMARY_CHARS - 1] + "…"


def client_times(record: VerifiedRecord) -> Iterator[ClientTime]:
    """The times that senders gave in a record: of an event, and of a trace's nodes the one furthest away."""
    occurred = _instant(record.payload.get("occurred_at")) if record.kind == "event" else None
    if occurred is not None:
        yield _compared("occurred_at", occurred, record.timestamp_us)
    tree = record.payload.get("trace_tree")
    nodes = tree if isinstance(tree, list) else []
    said = [(place, at) for place, node in enumerate(nodes) if (at := _began(node)) is not None]
    if said:
        place, at = max(said, key=lambda one: abs(one[1] - record.timestamp_us))
        where = f"trace_tree[{place}].metadata.timestamp"
        yield _compared(where, at, record.timestamp_us)


def _compared(where: str, said_us: int, recorded_us: int) -> ClientTime:
    difference = said_us - recorded_us
    side = "ahead of" if difference > 0 else "behind"
    away = f"{_long(abs(difference) // 1_000_000)} {side} the service's own"
    return ClientTime(where, format_timestamp(said_us), away, is_skewed(said_us, recorded_us))


def _long(secs: int) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if secs >= size:
            return f"{secs // size} {unit}"
    return f"{secs} s"


def _began(node: JsonValue) -> int | None:
    metadata = node.get("metadata") if isinstance(node, dict) else None
    return _instant(metadata.get("timestamp")) if isinstance(metadata, dict) else None


def _instant(said: JsonValue) -> int | None:
    try:
        return parse_instant(said) if isinstance(said, str) else None
    except ValueError:
        return None


def _word(value: JsonValue) -> str:
    if isinstance(value, dict):
        value = value.get("code") or value.get("reason") or "…"
    return printable(str(value)[: 2 * _SUMMARY_CHARS])


def _policy_words(policy: JsonValue) -> str:
    if not isinstance(policy, dict):
        return ""
    tools = policy.get("tools")
    count = len(tools) if isinstance(tools, dict) else 0
    return f"budget {policy.get('budget')}, scar limit {policy.get('scar_limit')}, {count} tools"


def _lines(written: str, most: int) -> tuple[str, bool]:
    """The first ``most`` characters of a JSON text, in lines, and whether that is all of it."""
    return visible(in_lines(written[:most])), len(written) <= most


def _doubtful(read: ReadRecord, most: int) -> Shown:
    """What the row says, of which nothing is proven."""
    row, fault = read.row, read.fault or ChainError("it does not verify")
    text, is_whole = _lines(row.signed_text or "", most)
    try:
        line = export_line(signed_of(row)) if row.signed_text else None
    except ChainError:
        line = None
    return Shown(
        seq=row.seq,
        time=format_timestamp(to_microseconds(row.created_at)),
        kind=str(row.kind),
        actor=str(row.actor),
        what="",
        session_id=None,
        action_id=None,
        hash=row.hash or "",
        prev_hash=row.prev_hash or "",
        signature=row.signature or "",
        key_id=row.key_id or "",
        payload=text,
        is_whole=is_whole,
        line=line if line is not None and len(line) <= MOST_LINE_CHARS else None,
        client_times=(),
        fault=fault.fault,
        why=fault.reason,
    )
