"""Idempotency keys: the same key and the same body is the same act, for ever.

The stamp is part of the signed payload of the act's first record, so a retry is recognised after any
restart and by any server process. The key's scope is (tenant, agent, endpoint); only hashes are kept.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from app.chain.canonical import with_member
from app.errors import FormatError, IdempotencyConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.chain.record import Draft, VerifiedRecord
    from app.chain.strict import JsonObject

MEMBER = "idempotency"
"""Name of the payload member that carries a stamp."""


class Stamp(msgspec.Struct, frozen=True):
    """Identity of one request: ``key`` and ``request`` are SHA-256 digests, 64 lowercase hex."""

    key: str
    request: str


def stamp(endpoint: str, idempotency_key: str, canonical_body: str) -> Stamp:
    """Makes the stamp of a request to ``endpoint`` (such as ``actions/act-3/outcome``).

    Args:
        endpoint: the route within the agent, with its ids.
        idempotency_key: the client's header, as sent.
        canonical_body: the body as canonical JSON, so that reordered members are the same request.
    """
    scoped = f"{endpoint}\n{idempotency_key}"
    return Stamp(
        key=hashlib.sha256(scoped.encode()).hexdigest(),
        request=hashlib.sha256(canonical_body.encode()).hexdigest(),
    )


def stamped(drafts: Sequence[Draft], mark: Stamp | None) -> tuple[Draft, ...]:
    """Puts ``mark`` and the number of the act's records into the payload of the first draft."""
    if mark is None or not drafts:
        return tuple(drafts)
    member: JsonObject = {"key": mark.key, "request": mark.request, "records": len(drafts)}
    first = drafts[0]
    text = None if first.payload_text is None else with_member(first.payload_text, MEMBER, member)
    first = msgspec.structs.replace(first, payload={**first.payload, MEMBER: member}, payload_text=text)
    return (first, *drafts[1:])


def act_length(first: VerifiedRecord, mark: Stamp) -> int:
    """How many records the stamped act has, when ``mark`` is the same request.

    Raises:
        IdempotencyConflictError: the key was used with another body.
        FormatError: the record carries no sound stamp.
    """
    member = first.payload.get(MEMBER)
    if not isinstance(member, dict):
        raise FormatError("the record carries no idempotency stamp", seq=first.seq)
    if member.get("request") != mark.request:
        raise IdempotencyConflictError
    length = member.get("records")
    if not isinstance(length, int) or length < 1:
        raise FormatError("the idempotency stamp has no count of records", seq=first.seq)
    return length


def key_of(record: VerifiedRecord) -> str | None:
    """The idempotency key's digest in a record's payload, as the table's column mirrors it."""
    member = record.payload.get(MEMBER)
    key = member.get("key") if isinstance(member, dict) else None
    return key if isinstance(key, str) else None
