"""Verifying an exported chain against a bare loop of SHA-256 and Ed25519 over the same bytes.

The loop uses the same implementation of both: the ratio shows what reading and linking a record cost.
"""

from __future__ import annotations

import hashlib
import time

from nacl.bindings import crypto_sign_open

from app.chain.keys import SigningKey
from app.chain.link import seal
from app.chain.record import DOMAIN, Draft, Head, SignedRecord
from app.chain.strict import JsonObject
from app.chain.verdict import Verdict
from app.chain.verify import verify_chain
from tests.bench.rows import Row, interleaved

RECORDS = 4_000
ROUNDS = 5
_START_US = 1_790_000_000_000_000


def rows() -> list[Row]:
    """The verify row, one process."""
    key = SigningKey.from_raw(bytes(range(32)))
    chain = _chain(key)
    return [
        interleaved(
            "verify a chain",
            "records/s",
            ours=lambda: _ours(key, chain),
            floor=lambda: _floor(key, chain),
            rounds=ROUNDS,
            at_least=0.7,
            aim=0.9,
        )
    ]


def _ours(key: SigningKey, chain: list[SignedRecord]) -> float:
    started = time.perf_counter()
    report = verify_chain(chain, key.public)
    seconds = time.perf_counter() - started
    if report.verdict is not Verdict.VERIFIED or report.checked != len(chain):
        raise RuntimeError(f"the chain does not verify: {report.to_json()}")
    return len(chain) / seconds


def _floor(key: SigningKey, chain: list[SignedRecord]) -> float:
    public = bytes.fromhex(key.public.hex)
    parts = [(record.text.encode(), bytes.fromhex(record.signature)) for record in chain]
    started = time.perf_counter()
    for text, signature in parts:
        crypto_sign_open(signature + hashlib.sha256(DOMAIN + text).digest(), public)
    return len(chain) / (time.perf_counter() - started)


def _chain(key: SigningKey) -> list[SignedRecord]:
    """A guarded agent's chain: every request is two records."""
    genesis: JsonObject = {"log_id": "bench", "public_key": key.public.hex, "tenant": "bench", "log_uuid": ""}
    drafts = [Draft(kind="genesis", payload=genesis, actor="bench")]
    for number in range(1, RECORDS // 2):
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
