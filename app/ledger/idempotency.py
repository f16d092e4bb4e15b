"""Idempotency keys: the same key and the same body is the same act, for ever.

The stamp is part of the signed payload of the act's first record, so a retry is recognised after any
restart and by any server process. The key's scope is (tenant, agent, endpoint); only hashes are kept.

A post of several documents is one request too: its first record carries the key, each further one a key made
of it, and all of them the digest of the whole. So whatever comes later under the key is the same request or
another one, never a part of one.
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
    """Identity of one request: ``key`` and ``request`` are digests, 64 lowercase hex.

    ``also`` is the other form under which the same request may be on record, see ``redacting.sealed_stamp``.
    """

    key: str
    request: str
    also: str | None = None

    @property
    def requests(self) -> tuple[str, ...]:
        """The forms under which this request may be on record."""
        return (self.request,) if self.also is None else (self.request, self.also)


def stamp(endpoint: str, idempotency_key: str, canonical_body: str) -> Stamp:
    """Makes the stamp of a request to ``endpoint`` (such as ``actions/act-3/outcome``).

    Args:
        endpoint: the route within the agent, with its ids.
        idempotency_key: the client's header, as sent.
        canonical_body: the body as canonical JSON, so that reordered members are the same request.
    """
    return Stamp(_key(endpoint, idempotency_key), digest_of(canonical_body))


class Keyed(msgspec.Struct, frozen=True):
    """A post of one or more documents under an Idempotency-Key: one request, whatever form it came in.

    Attributes:
        endpoint: as for ``stamp``.
        key: the client's header, as sent.
        digests: of all documents that were sent, in order, those that were refused already as ``refused``
            marks them.
        places: which of them are to become records, as indices of ``digests``.
    """

    endpoint: str
    key: str
    digests: tuple[str, ...]
    places: tuple[int, ...]

    def stamps(self, sound: Sequence[bool]) -> list[Stamp]:
        """The stamps of the records, in order.

        Which documents are refused counts as well: should a later version judge one differently, that is a
        conflict, and no record is ever given out as that of another document.

        Args:
            sound: of each document that is to become a record, whether it does.
        """
        digests = list(self.digests)
        for place, is_sound in zip(self.places, sound, strict=True):
            digests[place] = digests[place] if is_sound else refused(digests[place])
        # One document alone has the stamp that ``stamp`` makes of it.
        request = digests[0] if len(digests) == 1 else digest_of("\n".join(digests))
        return [Stamp(self._nth_key(number), request) for number in range(1, sum(sound) + 1)]

    def _nth_key(self, number: int) -> str:
        """The key of the n-th record: the first one has the client's own, whatever the request's form."""
        return _key(self.endpoint if number == 1 else f"{self.endpoint}/{number}", self.key)


def digest_of(document: str | bytes) -> str:
    """The digest of a document: of its canonical text, or of its bytes where they are no JSON."""
    raw = document.encode() if isinstance(document, str) else document
    return hashlib.sha256(raw).hexdigest()


def refused(digest: str) -> str:
    """The digest of a document that was refused."""
    return f"!{digest}"


def stamped(drafts: Sequence[Draft], mark: Stamp | None) -> tuple[Draft, ...]:
    """Puts ``mark`` and the number of the act's records into the payload of the first draft."""
    if mark is None or not drafts:
        return tuple(drafts)
    member: JsonObject = {"key": mark.key, "request": mark.request, "records": len(drafts)}
    first = drafts[0]
    text = None if first.payload_text is None else with_member(first.payload_text, MEMBER, member)
    first = msgspec.structs.replace(
        first, payload={**first.payload, MEMBER: member}, payload_text=text, within_limits=False
    )
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
    if member.get("request") not in mark.requests:
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


def _key(endpoint: str, idempotency_key: str) -> str:
    return hashlib.sha256(f"{endpoint}\n{idempotency_key}".encode()).hexdigest()
