"""What a tenant's rules take out of all that is written: every way into a chain leads through here (T01).

The rules are those of the tenant's verified records (``TenantStanding``): nobody turns them off by SQL.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec.structs import replace

from app.chain.canonical import canonical
from app.chain.keys import derive
from app.guard.kinds import TRACE
from app.ledger.idempotency import Stamp
from app.redaction import Findings, Redactor, RuleList
from app.trace.otlp.fragments import SPAN_CONFLICT

if TYPE_CHECKING:
    from uuid import UUID

    from app.chain.record import Draft
    from app.chain.strict import JsonObject, JsonValue
    from app.guard.bodies import Ask, Claim
    from app.guard.decide import Act
    from app.ledger.standings import Standings
    from app.principal import Grant

MEMBER: Final = "redacted"
"""Name of the payload member that says what was taken out."""

CAPACITY: Final = 1_000
"""Tenants whose rules are kept compiled."""

_OF_TRACES: Final = frozenset({"session_id", "total_nodes", "idempotency"})
_OF_EVENTS: Final = frozenset({"session_id", "occurred_at", "idempotency"})
_OF_NODES: Final = frozenset({"node_id", "parent_id", "node_type"})
"""Members that say where something belongs, and hold nothing that an agent was told."""

B = TypeVar("B", bound=msgspec.Struct)


class Redacting:
    """The redactors of all tenants."""

    def __init__(self, standings: Standings, master_key: bytes) -> None:
        self._standings = standings
        self._secret = derive(master_key, "redaction")
        self._compiled: dict[UUID, Redactor] = {}

    async def of(self, tenant_id: UUID) -> Redactor:
        """The redactor of a tenant's rules.

        Raises:
            TenantQuarantinedError: its administration chain does not verify.
            NotFoundError: no such tenant.
            UnavailableError: the database is away.
        """
        rules = (await self._standings.of(tenant_id)).redaction
        known = self._compiled.get(tenant_id)
        if known is None or known.rules != rules:
            known = self._compile(tenant_id, rules)
        return known

    async def ask(self, grant: Grant, ask: Ask, stamp: Stamp | None) -> tuple[Ask, Stamp | None]:
        """What is asked of the guard, and its stamp, without secrets.

        It stays known what exactly was asked: by a digest that tells nobody what it was made of.
        """
        redactor, found = await self.of(grant.tenant_id), Findings()
        value = redactor.value(ask.input, "/input", found)
        thought = ask.thought_process
        if thought is not None:
            thought = redactor.text(thought, "/thought_process", found)
        stamp = sealed_stamp(redactor, stamp, redacted=bool(found.removed))
        if not found.removed:
            return ask, stamp
        note = redactor.note(found.removed)
        if value is not ask.input:
            note["input"] = redactor.seal(ask.input)
        return replace(ask, input=value, thought_process=thought, redacted=note), stamp

    async def claim(self, grant: Grant, claim: Claim, stamp: Stamp | None) -> tuple[Claim, Stamp | None]:
        """A claim with the digest that it is compared by where secrets were taken out of what was allowed."""
        redactor, found = await self.of(grant.tenant_id), Findings()
        redactor.value(claim.input, "/input", found)
        is_secret = bool(found.removed)
        stamp = sealed_stamp(redactor, stamp, redacted=is_secret)
        return replace(claim, sealed=redactor.seal(claim.input), is_secret=is_secret), stamp

    async def texts(
        self, grant: Grant, body: B, stamp: Stamp | None, *members: str
    ) -> tuple[B, JsonObject | None, Stamp | None]:
        """What somebody says in free text, without secrets; the note for its record; and its stamp."""
        redactor, found = await self.of(grant.tenant_id), Findings()
        texts = {
            name: redactor.text(said, f"/{name}", found)
            for name in members
            if (said := getattr(body, name)) is not None
        }
        stamp = sealed_stamp(redactor, stamp, redacted=bool(found.removed))
        if not found.removed:
            return body, None, stamp
        return replace(body, **texts), redactor.note(found.removed), stamp

    def _compile(self, tenant_id: UUID, rules: RuleList) -> Redactor:
        if len(self._compiled) >= CAPACITY:
            del self._compiled[next(iter(self._compiled))]
        secret = hmac.digest(self._secret, tenant_id.bytes, hashlib.sha256)
        redactor = self._compiled[tenant_id] = Redactor(rules, secret)
        return redactor


def noted(act: Act, note: JsonObject | None) -> Act:
    """An act whose first record says what was taken out of it."""
    if note is None or not act.drafts:
        return act
    first = act.drafts[0]
    first = replace(first, payload={**first.payload, MEMBER: note})
    return replace(act, drafts=(first, *act.drafts[1:]))


def sealed_stamp(redactor: Redactor, stamp: Stamp | None, *, redacted: bool) -> Stamp | None:
    """The stamp of a request that secrets were taken out of: its digest would help to find them out.

    A request of before a change of the rules is recognised, too.
    """
    if stamp is None:
        return None
    sealed = redactor.seal(stamp.request)
    return replace(stamp, request=sealed, also=stamp.request) if redacted else replace(stamp, also=sealed)


# --- what is posted ----------------------------------------------------------------------------------------


def redacted_draft(redactor: Redactor, draft: Draft) -> Draft:
    """A posted trace or event without secrets; the very object when it holds none."""
    if draft.payload_text is not None and not redactor.may_hold(draft.payload_text):
        return draft
    found = Findings()
    if draft.kind == TRACE:
        payload = _trace(redactor, draft.payload, found)
    else:
        payload = _event(redactor, draft.payload, found)
    if not found.removed:
        return draft
    payload = {**payload, MEMBER: redactor.note(found.removed)}
    return replace(draft, payload=payload, payload_text=canonical(payload))


def redacted_node(redactor: Redactor, node: JsonObject) -> JsonObject:
    """A node as ``redacted_draft`` leaves it in its record."""
    return _node(redactor, node, "", Findings())


def _trace(redactor: Redactor, payload: JsonObject, found: Findings) -> JsonObject:
    kept = _members(redactor, payload, "", found, _OF_TRACES | {"trace_tree"})
    tree = payload.get("trace_tree")
    if isinstance(tree, list):
        nodes: list[JsonValue] = [
            _node(redactor, node, f"/trace_tree/{index}", found) if isinstance(node, dict) else node
            for index, node in enumerate(tree)
        ]
        kept["trace_tree"] = nodes
    return kept


def _event(redactor: Redactor, payload: JsonObject, found: Findings) -> JsonObject:
    if payload.get("type") != SPAN_CONFLICT:
        return _members(redactor, payload, "", found, _OF_EVENTS)
    # The one event that holds a node is our own.
    data = payload.get("data")
    node = data.get("node") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(node, dict):
        return payload
    return {**payload, "data": {**data, "node": _node(redactor, node, "/data/node", found)}}


def _node(redactor: Redactor, node: JsonObject, at: str, found: Findings) -> JsonObject:
    return _members(redactor, node, at, found, _OF_NODES)


def _members(
    redactor: Redactor, source: JsonObject, at: str, found: Findings, kept: frozenset[str]
) -> JsonObject:
    """An object whose members are each looked through, as ``$`` of the paths, except those of ``kept``."""
    return {
        name: member if name in kept else redactor.value(member, f"{at}/{name}", found)
        for name, member in source.items()
    }
