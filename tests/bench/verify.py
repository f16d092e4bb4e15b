"""Verifying an exported chain against a bare loop of SHA-256 and Ed25519 over the same bytes.

The loop uses the same implementation of both: the ratio shows what reading and linking a record cost.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

from nacl.bindings import crypto_sign_open

from app.chain.audit import verify_chain
from app.chain.keys import SigningKey
from app.chain.link import seal
from app.chain.record import DOMAIN, Draft, Head, SignedRecord
from app.chain.strict import JsonObject
from app.chain.verdict import Verdict
from tests.bench.form import Form
from tests.bench.rows import Row, Timed, interleaved

KEY = "verify"
RECORDS = (200, 4_000)
ROUNDS = (1, 7)
_START_US = 1_790_000_000_000_000


def rows(form: Form) -> Iterator[Row]:
    """The verify row, one process."""
    key = SigningKey.from_raw(bytes(range(32)))
    chain = _chain(key, form.pick(*RECORDS))
    sides = interleaved(lambda: _ours(key, chain), lambda: _floor(key, chain), form.pick(*ROUNDS))
    yield Row(
        KEY,
        "verify a chain",
        "rec/s",
        *sides,
        "bare SHA-256 and Ed25519, one process",
        bound=0.7,
        aim=0.9,
    )


def _ours(key: SigningKey, chain: list[SignedRecord]) -> Timed:
    started = time.perf_counter()
    report = verify_chain(chain, key.public)
    seconds = time.perf_counter() - started
    if report.verdict is not Verdict.VERIFIED or report.checked != len(chain):
        raise RuntimeError(f"the chain does not verify: {report.to_json()}")
    return Timed(len(chain) / seconds)


def _floor(key: SigningKey, chain: list[SignedRecord]) -> Timed:
    public = bytes.fromhex(key.public.hex)
    parts = [(record.text.encode(), bytes.fromhex(record.signature)) for record in chain]
    started = time.perf_counter()
    for text, signature in parts:
        crypto_sign_open(signature + hashlib.sha256(DOMAIN + text).digest(), public)
    return Timed(len(chain) / (time.perf_counter() - started))


def _chain(key: SigningKey, records: int) -> list[SignedRecord]:
    """A guarded agent's chain: every request is two records."""
    genesis: JsonObject = {"log_id": "bench", "public_key": key.public.hex, "tenant": "bench", "log_uuid": ""}
    drafts = [Draft(kind="genesis", payload=genesis, actor="bench")]
    for number in range(1, records // 2):
        action: JsonObject = {"action_id": f"act-{number}", "cost": 1}
        request: JsonObject = {**action, "tool": "search", "input": {"q": "refund policy", "top": 5}}
        drafts.append(Draft(kind="action_requested", payload=request, actor="bench"))
        drafts.append(Draft(kind="action_allowed", payload={**action, "remaining": number}, actor="bench"))
    head: Head | None = None
    chain = []
    for number, draft in enumerate(drafts):
        record = seal(draft, head, _START_US + number, key)
        head = record.head
        chain.append(SignedRecord(record.text, record.hash, record.signature))
    return chain
