"""A draft that was parsed strictly keeps the limits of records, until the service puts a member into it."""

from __future__ import annotations

import pytest

from app.chain.canonical import canonical
from app.chain.link import seal
from app.chain.record import Draft
from app.chain.strict import MAX_MEMBERS, JsonObject
from app.errors import InvalidJsonError
from app.ledger.idempotency import Stamp, stamped
from app.ledger.redacting import redacted_draft
from app.redaction.redactor import Redactor
from app.redaction.rules import DEFAULT_RULES
from tests.support.rows import KEY

PAYLOAD: JsonObject = {"password": "hunter2", **{f"m{number}": 0 for number in range(1, MAX_MEMBERS)}}
FULL = Draft("trace", PAYLOAD, "bot", canonical(PAYLOAD), within_limits=True)
"""One member more and no verifier would read it."""


def test_a_stamp_may_be_one_member_too_many() -> None:
    [draft] = stamped([FULL], Stamp("ab" * 32, "cd" * 32))
    assert_refused(draft)


def test_a_note_of_what_was_taken_out_may_be_one_member_too_many() -> None:
    draft = redacted_draft(Redactor(DEFAULT_RULES, bytes(32)), FULL)
    assert "redacted" in draft.payload
    assert_refused(draft)


def assert_refused(draft: Draft) -> None:
    first = seal(Draft("genesis", {"public_key": KEY.public.hex}, "bot"), None, 0, KEY)
    seal(FULL, first.head, 0, KEY)
    with pytest.raises(InvalidJsonError, match="members"):
        seal(draft, first.head, 0, KEY)
