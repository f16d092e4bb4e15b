"""Reads: answers from verified records, never from state that is older than the question."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import db.ledger
from app.chain.record import ZERO_HASH, SignedRecord, export_line, format_timestamp, hash_text
from app.chain.strict import RECORD_DEPTH, RECORD_STRING, parse
from app.chain.verify import verify_detached
from app.errors import ChainError, MirrorError, NotFoundError
from app.guard.kinds import ACTION_ALLOWED, OUTCOME
from app.guard.standing import waiting_standing
from app.guard.state import Action, GuardState, Pending, fold_action
from app.ledger.mirror import check_mirror
from app.moment import to_microseconds

if TYPE_CHECKING:
    from app.chain.record import VerifiedRecord
    from app.chain.strict import JsonObject, JsonValue
    from app.ledger.chain import Chain
    from app.ledger.keys.keystore import TenantKeys
    from db.ledger import TrailRow
    from db.pool import Pool

MAX_LOG_PAGE = 5_000
"""Records in one page of a log, as in Lineage's guard server."""

GONE = "record {seq} was verified here before and is no longer in the table"
"""Why a chain is quarantined whose table was set back or meddled with under a running server."""

_SCAR_MEMBERS = ("severity", "reason", "action_id")


async def status_of(pool: Pool, chain: Chain, state: GuardState) -> JsonObject:
    """The agent's standing in the shape of Lineage's guard server, at exactly the head of ``state``."""
    policy, head = state.policy, state.head
    scars = await _scars(pool, chain, state) if state.scar_count else []
    return {
        "agent_id": chain.id.agent_id,
        "alive": state.terminated is None,
        "termination_reason": state.terminated,
        "budget": policy.budget if policy else None,
        "spent": state.spent,
        "remaining": state.remaining if policy else None,
        "scar_score": state.scar_score,
        "scar_limit": policy.scar_limit if policy else None,
        "scars": scars,
        "actions_allowed": state.allowed,
        "actions_denied": state.denied,
        "actions_pending": len(state.pending),
        "head": None if head is None else {"seq": head.seq, "hash": head.hash},
        "public_key": None if chain.genesis_key is None else chain.genesis_key.hex,
        "guarded": chain.id.guarded,
        "log_uuid": str(chain.id.log_uuid),
    }


async def _scars(pool: Pool, chain: Chain, state: GuardState) -> list[JsonValue]:
    """The agent's scars from the table, proven against the digest that the fold kept of them."""
    upto = -1 if state.head is None else state.head.seq
    rows = await db.ledger.scar_rows(pool, chain.id.tenant_id, chain.id.log_uuid, upto)
    digest = ZERO_HASH
    scars: list[JsonValue] = []
    for row in rows:
        digest = hashlib.sha256(bytes.fromhex(digest) + bytes.fromhex(row.hash)).hexdigest()
        payload = _proven(chain, row)
        scars.append({"seq": row.seq, **{name: payload.get(name) for name in _SCAR_MEMBERS}})
    if digest != state.scar_digest:
        raise chain.quarantine("the scars in the table are not those that were verified")
    return scars


async def action_of(pool: Pool, chain: Chain, keys: TenantKeys, action_id: str) -> Action:
    """One action, folded from its own records.

    Raises:
        NotFoundError: the chain has no such action.
        QuarantinedError: a record of it does not verify.
    """
    rows = await db.ledger.action_rows(pool, chain.id.tenant_id, chain.id.log_uuid, action_id)
    upto = -1 if chain.head is None else chain.head.seq
    records = [verified_row(chain, keys, row) for row in rows if row.seq <= upto]
    if not records:
        raise NotFoundError("action not found")
    records = await _with_claim(pool, chain, keys, action_id, records)
    waiting = chain.state.pending.get(action_id)
    if waiting is not None and records[0].hash != waiting.hash:
        raise chain.quarantine(f"the request of {action_id} in the table is not the one that was verified")
    try:
        return fold_action(records)
    except ChainError as error:
        raise chain.quarantine(f"{action_id}: {error}") from error


async def _with_claim(
    pool: Pool, chain: Chain, keys: TenantKeys, action_id: str, records: list[VerifiedRecord]
) -> list[VerifiedRecord]:
    """The action's records with its claim, which stands between the permission and the outcome.

    Only looked for where the fold says that a claim can be.
    """
    allowed = next((record.seq for record in records if record.kind == ACTION_ALLOWED), None)
    if allowed is None:
        return records
    outcome = next((record.seq for record in records if record.kind == OUTCOME), None)
    upto = chain.state.last_claim if outcome is None else min(chain.state.last_claim, outcome)
    if upto < allowed:
        return records
    row = await db.ledger.claim_row(
        pool, chain.id.tenant_id, chain.id.log_uuid, action_id, after=allowed, upto=upto
    )
    claims = [] if row is None else [verified_row(chain, keys, row)]
    return sorted([*records, *claims], key=lambda record: record.seq)


async def pending_of(pool: Pool, chain: Chain, state: GuardState, now_us: int) -> list[JsonObject]:
    """What waits for a person, with the input exactly as requested, oldest first.

    What waited too long at ``now_us`` (µs) is among it, as ``expired``, until its end is on record.
    """
    waiting = sorted(state.pending.values(), key=lambda pending: pending.seq)
    rows = await db.ledger.rows_at(
        pool, chain.id.tenant_id, chain.id.log_uuid, [item.seq for item in waiting]
    )
    found = {row.seq: row for row in rows}
    listed: list[JsonObject] = []
    for item in waiting:
        row = found.get(item.seq)
        if row is None or row.hash != item.hash:
            raise chain.quarantine(GONE.format(seq=item.seq))
        listed.append(pending_entry(chain, state, item, row, now_us))
    return listed


def pending_entry(chain: Chain, state: GuardState, item: Pending, row: TrailRow, now_us: int) -> JsonObject:
    """One action that waits, from the row of its request, whose hash is the one that was verified."""
    requested_at = format_timestamp(to_microseconds(row.created_at))
    entry: JsonObject = {"requested_at": requested_at, "seq": row.seq, "action": _proven(chain, row)}
    return entry | waiting_standing(state, item, now_us)


async def log_page(pool: Pool, chain: Chain, after: int | None, limit: int) -> tuple[list[str], JsonObject]:
    """Export lines with ``seq`` above ``after``, unchanged, and the head of the whole chain."""
    start = -1 if after is None else after
    rows = await db.ledger.records(
        pool, chain.id.tenant_id, chain.id.log_uuid, after=start, limit=min(limit, MAX_LOG_PAGE)
    )
    head = chain.head
    try:
        lines = [export_line(signed_of(row)) for row in rows if head is not None and row.seq <= head.seq]
    except MirrorError as error:
        raise chain.quarantine(str(error)) from error
    return lines, {} if head is None else {"seq": head.seq, "hash": head.hash}


def signed_of(row: TrailRow) -> SignedRecord:
    """The record as it stands in a row, not verified yet.

    Raises:
        MirrorError: it does not stand there whole: no row that the table allows, unless somebody changed it.
    """
    if None in (row.signed_text, row.hash, row.signature):
        raise MirrorError("the text, its hash or its signature is NULL", seq=row.seq)
    return SignedRecord(text=row.signed_text, hash=row.hash, signature=row.signature)


def _proven(chain: Chain, row: TrailRow) -> JsonObject:
    """The payload of a row whose hash the fold has seen and verified; only the text is checked again."""
    if hash_text(row.signed_text) != row.hash:
        raise chain.quarantine(f"record {row.seq}: the text in the table is not the one that was signed")
    record = parse(row.signed_text.encode(), max_depth=RECORD_DEPTH, max_string=RECORD_STRING).value
    payload = record.get("payload") if isinstance(record, dict) else None
    return payload if isinstance(payload, dict) else {}


def verified_row(chain: Chain, keys: TenantKeys, row: TrailRow) -> VerifiedRecord:
    """One row verified out of its chain: text, columns, and the signature of the key that it names."""
    key = keys.public(row.key_id)
    if key is None:
        raise chain.quarantine(f"record {row.seq} names a key that is not the tenant's")
    try:
        record = verify_detached(signed_of(row), key)
        check_mirror(chain.id, row, record, key)
    except ChainError as error:
        raise chain.quarantine(str(error)) from error
    return record
