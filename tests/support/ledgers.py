"""Ledgers in process: one caller's view of an agent, a clock to set, and what stands in the table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

import db.ledger
from app.chain.canonical import canonical
from app.chain.link import seal_all
from app.chain.record import Draft, SignedRecord
from app.chain.strict import JsonObject
from app.chain.verify import Verifier
from app.guard import bodies
from app.guard.decide import Ask, Decision
from app.guard.policy import Policy
from app.guard.state import GuardState, fold
from app.ledger import Ledger
from app.ledger.idempotency import Keyed, Stamp, stamp
from app.ledger.mirror import row_of
from app.ledger.post import Entry, SpanKey
from app.ledger.spans.on_record import Held
from app.principal import Grant, Permission, Principal, Role, grant
from db.ledger import SpanRow, TrailRow
from db.pool import tenant_setting
from db.schema import DEFAULT_TENANT_ID
from tests.support.guard_chain import START, policy_document

MASTER_KEY = bytes(range(100, 132))
SECOND = 1_000_000
TABLE = "trails.agent_audit_trails"

Json = dict[str, Any]


class SetClock:
    """The injected clock: stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_us = START

    def __call__(self) -> int:
        return self.now_us

    def move(self, seconds: float) -> None:
        """Moves the clock, backwards too."""
        self.now_us += round(seconds * SECOND)


class Caller:
    """An operator who speaks to one ledger about one agent. ``key`` is an Idempotency-Key."""

    def __init__(self, ledger: Ledger, agent: str = "agent-1", tenant: UUID = DEFAULT_TENANT_ID) -> None:
        self.ledger = ledger
        self.agent = agent
        self.tenant = tenant

    def at(self, ledger: Ledger) -> Caller:
        """The same agent, asked about at another ledger."""
        return Caller(ledger, self.agent, self.tenant)

    def may(self, permission: Permission, *, key_of: str | None = None) -> Grant:
        """The grant of the operator's token, or of the API key of an operator of this name."""
        if key_of is None:
            caller = Principal(self.tenant, Role.OPERATOR, "operator")
        else:
            caller = Principal(self.tenant, Role.OPERATOR, key_of, key_id=f"{key_of}-key")
        return grant(caller, permission, self.agent)

    async def create(self, policy: Json | None = None, key: str | None = None, **members: Any) -> JsonObject:
        document = policy_document(**members) if policy is None else policy
        return await self.ledger.create_agent(
            self.may(Permission.CREATE_AGENT),
            Policy.parse(document),
            _stamp("agents", key, {"agent_id": self.agent, "policy": document}),
        )

    async def observe(self) -> JsonObject:
        """Creates the agent without a policy."""
        return await self.ledger.create_agent(self.may(Permission.CREATE_AGENT), None)

    async def ask(
        self, tool: str = "search", value: Any = None, key: str | None = None, **members: Any
    ) -> Decision:
        body = {"tool": tool, "input": value, **members}
        mark = _stamp("actions", key, body)
        return await self.ledger.request(self.may(Permission.REQUEST), Ask.parse(body), mark)

    async def approve(
        self, action_id: str, note: str | None = None, key: str | None = None, *, by: str | None = "alice"
    ) -> Decision:
        """Approves with the key of ``by``; None: with the operator's token."""
        body: Json = {"approver": "Alice", "note": note}
        mark = _stamp(f"actions/{action_id}/approve", key, body)
        parsed = bodies.Approve.parse(body)
        return await self.ledger.approve(self.may(Permission.DECIDE, key_of=by), action_id, parsed, mark)

    async def reject(
        self, action_id: str, reason: str = "no", scar: str | None = None, key: str | None = None
    ) -> Decision:
        body: Json = {"approver": "Bob", "reason": reason, "scar": scar}
        mark = _stamp(f"actions/{action_id}/reject", key, body)
        parsed = bodies.Reject.parse(body)
        may = self.may(Permission.DECIDE, key_of="bob")
        return await self.ledger.reject(may, action_id, parsed, mark)

    async def claim(
        self,
        action_id: str,
        tool: str = "search",
        value: Any = None,
        key: str | None = None,
        *,
        by: str = "backend",
    ) -> JsonObject:
        body: Json = {"tool": tool, "input": value}
        mark = _stamp(f"actions/{action_id}/claim", key, body)
        may = self.may(Permission.CLAIM, key_of=by)
        return await self.ledger.claim(may, action_id, bodies.Claim.parse(body), mark)

    async def report(
        self, action_id: str, status: str = "success", detail: str = "", key: str | None = None
    ) -> JsonObject:
        body: Json = {"status": status, "detail": detail}
        mark = _stamp(f"actions/{action_id}/outcome", key, body)
        parsed = bodies.Report.parse(body)
        return await self.ledger.report(self.may(Permission.REPORT), action_id, parsed, mark)

    async def scar(
        self,
        severity: str = "minor",
        reason: str = "seen",
        action_id: str | None = None,
        key: str | None = None,
    ) -> JsonObject:
        body: Json = {"severity": severity, "reason": reason, "action_id": action_id}
        mark = _stamp("scars", key, body)
        return await self.ledger.scar(self.may(Permission.SCAR), bodies.AddScar.parse(body), mark)

    async def terminate(self, reason: str = "incident", key: str | None = None) -> JsonObject:
        body: Json = {"reason": reason, "by": "ops"}
        mark = _stamp("terminate", key, body)
        return await self.ledger.terminate(self.may(Permission.TERMINATE), bodies.Terminate.parse(body), mark)

    async def status(self) -> JsonObject:
        return await self.ledger.status(self.may(Permission.READ_STATUS))

    async def action(self, action_id: str) -> JsonObject:
        return await self.ledger.action(self.may(Permission.READ_ACTION), action_id)

    async def pending(self) -> list[JsonObject]:
        return await self.ledger.pending(self.may(Permission.DECIDE))

    async def post(self, *entries: Entry, whole: bool = False, keyed: Keyed | None = None) -> list[Any]:
        """Posts all at once; receipts and errors in the order given."""
        return list(await self.ledger.post(self.may(Permission.POST), entries, whole=whole, keyed=keyed))

    async def on_record(self, *keys: SpanKey) -> dict[SpanKey, Held]:
        return await self.ledger.spans_on_record(self.may(Permission.POST), keys)

    async def verify(self) -> Json:
        return await self.ledger.verify(self.may(Permission.READ_LOG))

    async def listed(self) -> Json:
        """This agent's entry in the list of agents."""
        asking = grant(Principal(self.tenant, Role.OPERATOR, "operator"), Permission.LIST_AGENTS)
        return next(e for e in await self.ledger.agents(asking) if e["agent_id"] == self.agent)


def _stamp(endpoint: str, key: str | None, body: Json) -> Stamp | None:
    return None if key is None else stamp(endpoint, key, canonical(body))


class Table:
    """The trail as a superuser sees it."""

    def __init__(self, admin: asyncpg.Connection[asyncpg.Record]) -> None:
        self.admin = admin

    async def rows(self, agent: str = "agent-1", tenant: UUID = DEFAULT_TENANT_ID) -> list[asyncpg.Record]:
        return await self.admin.fetch(
            f"SELECT * FROM {TABLE} WHERE tenant_id = $1 AND agent_id = $2 ORDER BY seq",
            tenant,
            agent,
        )

    async def records(self, agent: str = "agent-1", tenant: UUID = DEFAULT_TENANT_ID) -> list[Json]:
        """The signed texts, decoded."""
        return [msgspec.json.decode(row["signed_text"]) for row in await self.rows(agent, tenant)]

    async def kinds(self, agent: str = "agent-1", *, after: int = -1) -> list[str]:
        """The kinds of the records behind ``after``."""
        return [record["kind"] for record in await self.records(agent) if record["seq"] > after]

    async def folded(self, agent: str = "agent-1", tenant: UUID = DEFAULT_TENANT_ID) -> GuardState:
        """What the rows say, verified and folded without any ledger."""
        verifier = Verifier()
        return fold(
            verifier.step(SignedRecord(row["signed_text"], row["hash"], row["signature"]))
            for row in await self.rows(agent, tenant)
        )

    async def unlock(self) -> None:
        """Switches off what keeps the table honest, as somebody with all rights would."""
        checks = await self.admin.fetch(
            f"SELECT conname FROM pg_constraint WHERE conrelid = '{TABLE}'::regclass AND contype = 'c'"
        )
        for check in checks:
            await self.admin.execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT {check['conname']}")
        await self.admin.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER USER")

    async def until_waiting(self, count: int) -> None:
        """Returns when ``count`` sessions of this database wait for a lock."""
        async with asyncio.timeout(20):
            while await self._waiting() < count:
                await asyncio.sleep(0.01)

    async def _waiting(self) -> int:
        found = await self.admin.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(found)


async def next_rows(caller: Caller, *drafts: Draft, after: int = 0) -> list[TrailRow]:
    """Honest rows, signed with the tenant's key, that follow on the chain's head as the ledger knows it.

    Args:
        caller: whose chain.
        drafts: what the rows say.
        after: how far the clock is moved on for them, seconds.
    """
    ledger = caller.ledger
    chain = await ledger._chain(caller.may(Permission.READ_STATUS))
    await ledger._actor.refresh(chain)
    keys = await ledger._keystore.of(caller.tenant)
    records = seal_all(drafts, chain.head, ledger._clock() + after * SECOND, keys.newest)
    return [row_of(chain.id, record, keys.newest.public.key_id) for record in records]


def one_writer(ledger: Ledger) -> None:
    """Leaves the ledger one connection to write on, so that appends wait for each other and are grouped."""
    del ledger._committer._idle[1:]


def event(**payload: Any) -> Draft:
    """A draft that no guard minds."""
    return Draft(kind="event", payload=payload, actor="somebody else")


def posted(payload: Json, key: str | None = None, *, endpoint: str = "events") -> Entry:
    """An entry of kind event, under an Idempotency-Key when one is given."""
    text = canonical(payload)
    mark = None if key is None else stamp(endpoint, key, text)
    return Entry(Draft("event", payload, "operator", text), mark)


def spans(*numbers: int, trace: int = 1, session_id: str | None = None, **metadata: Any) -> Entry:
    """A trace entry with one node for each of these spans of one trace."""
    keys = tuple(span(number, trace=trace) for number in numbers)
    nodes = [_span_node(key, metadata) for key in keys]
    payload: Json = {
        "session_id": session_id or str(UUID(int=trace)),
        "total_nodes": len(nodes),
        "trace_tree": nodes,
    }
    return Entry(Draft("trace", payload, "operator", canonical(payload)), spans=keys)


def span(number: int, *, trace: int = 1) -> SpanKey:
    """The identity of a span."""
    return SpanKey(trace.to_bytes(16), number.to_bytes(8))


def _span_node(key: SpanKey, metadata: Json) -> Json:
    otel = {"trace_id": key.trace_id.hex(), "span_id": key.span_id.hex(), **metadata}
    return {
        "node_id": str(UUID(bytes=key.span_id * 2)),
        "node_type": "LLM_CALL",
        "name": "chat",
        "metadata": {"otel": otel},
    }


@asynccontextmanager
async def holding(
    admin_url: str, rows: Sequence[TrailRow], spans: Sequence[SpanRow] = ()
) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Another writer that has inserted ``rows`` and not committed yet; it rolls back at the end."""
    connection = await asyncpg.connect(admin_url)
    transaction = connection.transaction()
    try:
        await transaction.start()
        await connection.execute(
            "SELECT set_config('trails.tenants', $1, true)", tenant_setting(rows[0].tenant_id)
        )
        await db.ledger.append(connection, rows, spans=spans)
        yield connection
    finally:
        await connection.close()


async def outcomes(*acts: Awaitable[Any]) -> list[Any]:
    """Runs all at once; results and errors in the order given."""
    return list(await asyncio.gather(*acts, return_exceptions=True))


def decisions(answers: Sequence[Any]) -> list[str]:
    """``allowed``, ``denied`` … of each answer; an error's class name in its place."""
    return [
        type(answer).__name__ if isinstance(answer, Exception) else str(answer.to_json()["decision"])
        for answer in answers
    ]


def json_of(answer: Any) -> Json:
    """A decision or a status as JSON."""
    made: Json = answer if isinstance(answer, dict) else answer.to_json()
    return made


Opener = Callable[[], Awaitable[Ledger]]
"""Opens one more ledger on the same database, as a restarted process does."""
