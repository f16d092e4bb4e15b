"""What a tenant's rules take out of all that is written: every way into a chain leads through here (T01).

The rules are those of the tenant's verified records (``TenantStanding``): nobody turns them off by SQL.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec.structs import replace

from app.chain.canonical import canonical
from app.chain.keys import derive
from app.guard.fields import MAX_TOOL_CHARS
from app.guard.kinds import TRACE
from app.ledger.idempotency import Stamp
from app.ledger.rebuild import QUICK_CHARS
from app.redaction import RuleList
from app.redaction.redactor import Findings, Redactor
from app.trace.otlp.fragments import SPAN_CONFLICT

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from app.chain.record import Draft
    from app.chain.strict import JsonObject, JsonValue
    from app.guard.bodies import Ask, Claim
    from app.guard.decide import Act
    from app.ledger.tenancy.standings import Standings
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
T = TypeVar("T")


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
        thought = ask.thought_process

        def look() -> tuple[str, JsonValue, str | None, JsonObject | None]:
            tool = _tool(redactor, ask.tool, found)
            value = redactor.value(ask.input, "/input", found)
            kept = None if thought is None else redactor.text(thought, "/thought_process", found)
            if not found.removed:
                return tool, value, kept, None
            note = redactor.note(found)
            if value is not ask.input or tool != ask.tool:
                note["input"] = _sealed(redactor, ask, tool)
            return tool, value, kept, note

        tool, value, thought, note = await _looked_through(look, _length(ask.input) + len(thought or ""))
        stamp = sealed_stamp(redactor, stamp, redacted=note is not None)
        if note is None:
            return ask, stamp
        return replace(ask, tool=tool, input=value, thought_process=thought, redacted=note), stamp

    async def claim(self, grant: Grant, claim: Claim, stamp: Stamp | None) -> tuple[Claim, Stamp | None]:
        """A claim with the digest that it is compared by where secrets were taken out of what was allowed."""
        redactor, found = await self.of(grant.tenant_id), Findings()

        def look() -> tuple[str, str]:
            tool = _tool(redactor, claim.tool, found)
            redactor.value(claim.input, "/input", found)
            return tool, _sealed(redactor, claim, tool)

        tool, sealed = await _looked_through(look, _length(claim.input))
        is_secret = bool(found.removed)
        stamp = sealed_stamp(redactor, stamp, redacted=is_secret)
        return replace(claim, tool=tool, sealed=sealed, is_secret=is_secret), stamp

    async def texts(
        self, grant: Grant, body: B, stamp: Stamp | None, *members: str
    ) -> tuple[B, JsonObject | None, Stamp | None]:
        """What somebody says in free text, without secrets; the note for its record; and its stamp."""
        redactor, found = await self.of(grant.tenant_id), Findings()
        said: dict[str, str] = {name: text for name in members if (text := getattr(body, name)) is not None}

        def look() -> dict[str, str]:
            return {name: redactor.text(text, f"/{name}", found) for name, text in said.items()}

        texts = await _looked_through(look, sum(map(len, said.values())))
        stamp = sealed_stamp(redactor, stamp, redacted=bool(found.removed))
        if not found.removed:
            return body, None, stamp
        return replace(body, **texts), redactor.note(found), stamp

    async def reason(
        self, tenant_id: UUID, reason: str, stamp: Stamp | None
    ) -> tuple[JsonObject, Stamp | None]:
        """Why somebody does something to a tenant, as the members of its record; and the stamp."""
        redactor, found = await self.of(tenant_id), Findings()
        told: JsonObject = {"reason": redactor.text(reason, "/reason", found)}
        if found.removed:
            told[MEMBER] = redactor.note(found)
        return told, sealed_stamp(redactor, stamp, redacted=MEMBER in told)

    def _compile(self, tenant_id: UUID, rules: RuleList) -> Redactor:
        if len(self._compiled) >= CAPACITY:
            del self._compiled[next(iter(self._compiled))]
        secret = hmac.digest(self._secret, tenant_id.bytes, hashlib.sha256)
        redactor = self._compiled[tenant_id] = Redactor(rules, secret)
        return redactor


async def _looked_through(look: Callable[[], T], chars: int) -> T:
    """What ``look`` finds; looking through much text lets the event loop work meanwhile."""
    return await asyncio.to_thread(look) if chars > QUICK_CHARS else look()


def _tool(redactor: Redactor, tool: str, found: Findings) -> str:
    """A tool's name without secrets, no longer than one may be: some name it by a whole command."""
    return redactor.name(tool, "/tool", found)[:MAX_TOOL_CHARS]


def _sealed(redactor: Redactor, asked: Ask | Claim, tool: str) -> str:
    """The seal of an action's input, and of its tool as it was named where that held a secret."""
    if tool == asked.tool:
        return redactor.seal(asked.input)
    return redactor.seal({"tool": asked.tool, "input": asked.input})


def _length(value: JsonValue) -> int:
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return 0  # no JSON: it is refused at once


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
    payload = {**payload, MEMBER: redactor.note(found)}
    return replace(draft, payload=payload, payload_text=canonical(payload), within_limits=False)


def redacted_node(redactor: Redactor, node: JsonObject) -> JsonObject:
    """A node as ``redacted_draft`` leaves it in its record."""
    return _node(redactor, node, "", Findings())


def _trace(redactor: Redactor, payload: JsonObject, found: Findings) -> JsonObject:
    kept = redactor.members(payload, "", found, _OF_TRACES | {"trace_tree"})
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
        return redactor.members(payload, "", found, _OF_EVENTS)
    # The one event that holds a node is our own.
    data = payload.get("data")
    node = data.get("node") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(node, dict):
        return payload
    return {**payload, "data": {**data, "node": _node(redactor, node, "/data/node", found)}}


def _node(redactor: Redactor, node: JsonObject, at: str, found: Findings) -> JsonObject:
    return redactor.members(node, at, found, _OF_NODES)
