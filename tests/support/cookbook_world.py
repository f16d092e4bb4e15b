"""A tenant's trail made through the product, and a plain account of what was posted.

The account is kept beside the product: every list here is filled from what a caller sent and was answered, so
that what SQL says can be computed a second time without any of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

import msgspec
import pytest

from app.chain.record import Draft
from app.errors import ConflictError
from app.guard.kinds import TRACE
from app.ledger import Ledger
from app.ledger.export.wanted import Format, Wanted
from app.ledger.post import Entry
from app.ledger.tenancy.administration import NewKey
from app.principal import Permission, Principal, Role, grant
from db.schema import DEFAULT_TENANT_ID
from tests.support.ledgers import Caller, SetClock, json_of

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
FIRST_DAY = 1_767_225_600 * SECOND
"""2026-01-01T00:00:00Z in microseconds."""

BUYER_POLICY = {
    "budget": 200,
    "scar_limit": 1_000,
    "tools": {
        "search": {"cost": 2},
        "pay": {"cost": 30},
        "email": {"cost": 5, "requires_approval": True},
        "quote": {"cost": 1, "max_calls": 1},
    },
}
ROOKIE_POLICY = {"budget": 20, "scar_limit": 10, "tools": {"search": {"cost": 8}}}

WEIGHTS = {"minor": 1, "moderate": 3, "severe": 10}


class Act(msgspec.Struct):
    """One action of the guard as its callers know it; times in microseconds."""

    agent: str
    action_id: str
    tool: str
    input: Any
    cost: int
    at: int
    thought: str | None = None
    session: str | None = None
    held: bool = False
    decision: str = "pending"
    reason: str | None = None
    decided_at: int = 0
    by: str | None = None
    outcome: str | None = None
    detail: str = ""
    reported_at: int = 0
    joins: int = 0


class Sent(msgspec.Struct):
    """One node as it was sent, or as an action left it."""

    agent: str
    session: str
    node: dict[str, Any]
    at: int
    guarded: bool = False
    actor: str = ""
    seq: int = 0

    @property
    def id(self) -> str:
        """Its id, as it is compared."""
        return str(self.node["node_id"]).lower()

    @property
    def parent(self) -> str | None:
        parent = self.node.get("parent_id")
        return None if parent is None else str(parent).lower()

    @property
    def type(self) -> str:
        return str(self.node["node_type"])

    @property
    def name(self) -> str:
        return str(self.node["name"])

    @property
    def outputs(self) -> dict[str, Any]:
        return self.node.get("outputs") or {}

    @property
    def metadata(self) -> dict[str, Any]:
        return self.node.get("metadata") or {}

    @property
    def status(self) -> str | None:
        return self.outputs.get("status")

    @property
    def began(self) -> int | None:
        """When it says that it began."""
        return None if "timestamp" not in self.metadata else micros(self.metadata["timestamp"])

    @property
    def is_tool_call(self) -> bool:
        return self.type == "TOOL_CALL"

    @property
    def content(self) -> dict[str, Any]:
        """What it says; a mark that the service may set is none of it."""
        metadata = {name: value for name, value in self.metadata.items() if name != "nested_in"}
        return {**self.node, "metadata": metadata} if "metadata" in self.node else self.node

    @property
    def error(self) -> str | None:
        """Why it failed, in the forms that are sent here."""
        error = self.outputs.get("error")
        return error["message"] if isinstance(error, dict) else error or self.outputs.get("detail")


def micros(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moment(us: int) -> str:
    """As the product writes a time."""
    at = datetime(1970, 1, 1) + timedelta(microseconds=us)  # noqa: DTZ001  UTC by definition
    return at.isoformat(timespec="microseconds") + "Z"


def day(us: int) -> str:
    return moment(us)[:10]


class World:
    """Carries everything out and writes it down."""

    def __init__(self, ledger: Ledger, clock: SetClock) -> None:
        self.ledger, self.clock = ledger, clock
        clock.now_us = FIRST_DAY + 9 * HOUR
        self.acts: list[Act] = []
        self.sent: list[Sent] = []
        self.scars: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.conflicts: list[dict[str, Any]] = []
        self.chains: dict[str, str] = {}
        self.administered: list[dict[str, Any]] = []

    # --- what callers do --------------------------------------------------------------------------

    async def create(self, agent: str, policy: dict[str, Any] | None) -> None:
        caller = Caller(self.ledger, agent)
        status: Any = await (caller.observe() if policy is None else caller.create(policy))
        self.chains[agent] = status["log_uuid"]
        self._administered("operator", "agents_created", agent)

    async def verify(self, agent: str) -> None:
        verdict: Any = await self.ledger.verify_on_record(Caller(self.ledger, agent).may(Permission.READ_LOG))
        self._administered("operator", "verified", agent, records=verdict["records"], intact="yes")

    async def export(self, agent: str, records: int) -> None:
        """As ``trails export`` tells of it."""
        told: dict[str, Any] = {"act": "exported", "agent_id": agent, "length": records}
        await self.ledger.administration.record(DEFAULT_TENANT_ID, "root", told)
        self._administered("root", "exported", agent, records=records)

    async def export_over_http(self, wanted: Wanted, about: str, rows: int, agent: str | None = None) -> None:
        """As ``GET /v1/export`` does; ``about`` is the view, or the format of the file."""
        granted = grant(Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.EXPORT)
        async with self.ledger.export(granted, wanted) as exported:
            async for _ in exported.pieces:
                pass
        self._administered("operator", "export_begun", agent, what=about)
        self._administered("operator", "exported", agent, what=about, records=rows)

    async def issue_key(self, name: str, agent: str) -> None:
        asking = grant(Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.ISSUE_KEY)
        await self.ledger.administration.issue_key(asking, NewKey(Role.AGENT, name, agent))
        self._administered("operator", "key_issued", agent, what=name)

    def _administered(self, actor: str, act: str, agent: str | None, **members: Any) -> None:
        told = {"what": None, "records": None, "intact": None} | members
        self.administered.append(
            {"at": self.clock.now_us, "actor": actor, "act": act, "agent_id": agent} | told
        )

    async def ask(self, agent: str, tool: str, cost: int, **members: Any) -> Act:
        """Asks; ``cost`` is what the policy says that it costs. A denial leaves a node, and mostly a scar."""
        self.clock.move(60)
        members = {"value": f"{tool} {len(self.acts)}", **members}
        value = members.pop("value")
        answer = json_of(await Caller(self.ledger, agent).ask(tool, value, **members))
        if any(act.action_id == answer["action_id"] and act.agent == agent for act in self.acts):
            act = self.act(agent, answer["action_id"])
            act.joins += 1
            return act
        act = Act(
            agent,
            answer["action_id"],
            tool,
            value,
            cost,
            self.clock.now_us,
            thought=members.get("thought_process"),
            session=members.get("session_id"),
            decision={"pending_approval": "pending"}.get(answer["decision"], answer["decision"]),
        )
        act.held = act.decision == "pending"
        self.acts.append(act)
        if not act.held:
            act.decided_at = self.clock.now_us
        if act.decision == "denied":
            act.reason = answer["reason"]["code"]
            self._leave_node(act, "denied", {"reason": answer["reason"]}, members.get("parent_id"))
            self._scar_of_denial(act)
        return act

    def act(self, agent: str, action_id: str) -> Act:
        return next(act for act in self.acts if (act.agent, act.action_id) == (agent, action_id))

    async def approve(self, act: Act, after_secs: int, note: str | None = None) -> None:
        self.clock.move(after_secs)
        answer = json_of(await Caller(self.ledger, act.agent).approve(act.action_id, note))
        act.decision, act.by, act.decided_at = "approved", "alice", self.clock.now_us
        assert answer["decision"] == "allowed"

    async def reject(self, act: Act, after_secs: int, reason: str, scar: str | None = None) -> None:
        self.clock.move(after_secs)
        answer: Any = json_of(await Caller(self.ledger, act.agent).reject(act.action_id, reason, scar))
        act.decision, act.by, act.decided_at, act.reason = "rejected", "bob", self.clock.now_us, "rejected"
        self._leave_node(act, "denied", {"reason": answer["reason"]}, None)
        if scar is not None:
            self._scar(act, scar, f"rejected by bob: {reason}", actor="bob")

    async def report(self, act: Act, status: str, detail: str = "", parent: str | None = None) -> None:
        self.clock.move(60)
        answer: Any = json_of(await Caller(self.ledger, act.agent).report(act.action_id, status, detail))
        act.outcome, act.detail, act.reported_at = status, detail, self.clock.now_us
        node_status = {"failure": "failed"}.get(status, status)
        self._leave_node(act, node_status, {"detail": detail}, parent)
        # A scar follows the outcome.
        self.sent[-1].seq = answer["head"]["seq"] - (status in {"failure", "harmful"})
        if status in {"failure", "harmful"}:
            severity, words = {
                "failure": ("minor", "action failed"),
                "harmful": ("severe", "action caused harm"),
            }[status]
            self._scar(act, severity, f"{words}: {detail}")

    async def contradict(self, act: Act, status: str, detail: str) -> None:
        """Reports another outcome than the one on record: refused, and kept as an event."""
        self.clock.move(60)
        with pytest.raises(ConflictError):
            await Caller(self.ledger, act.agent).report(act.action_id, status, detail)
        data = {"action_id": act.action_id, "recorded": act.outcome, "reported": status, "detail": detail}
        self.conflicts.append({"agent": act.agent, "at": self.clock.now_us, "data": data})

    async def terminate(self, agent: str, reason: str) -> None:
        self.clock.move(60)
        await Caller(self.ledger, agent).terminate(reason)
        self._end(agent, reason)

    async def post(self, agent: str, session: str, *nodes: dict[str, Any]) -> None:
        self.clock.move(60)
        payload: Any = {"session_id": session, "total_nodes": len(nodes), "trace_tree": [*nodes]}
        caller = Caller(self.ledger, agent)
        entry = Entry(Draft(kind=TRACE, payload=payload, actor=agent))
        [receipt] = await self.ledger.post(caller.may(Permission.POST), [entry])
        assert not isinstance(receipt, Exception), receipt
        self.sent += [
            Sent(agent, session, node, self.clock.now_us, actor=agent, seq=receipt.seq) for node in nodes
        ]

    def _scar(self, act: Act, severity: str, reason: str, *, actor: str = "operator") -> None:
        entry = {"agent": act.agent, "severity": severity, "reason": reason, "action_id": act.action_id}
        entry["actor"] = actor
        self.scars.append(
            {**entry, "at": self.clock.now_us, "score": self.score(act.agent) + WEIGHTS[severity]}
        )

    def _scar_of_denial(self, act: Act) -> None:
        if act.reason == "tool_not_allowed":
            self._scar(act, "moderate", f"tool '{act.tool}' is not allowed")
        elif act.reason == "tool_call_limit":
            self._scar(act, "minor", f"tool '{act.tool}' reached its limit of 1 calls")

    def score(self, agent: str) -> int:
        return sum(WEIGHTS[scar["severity"]] for scar in self.scars if scar["agent"] == agent)

    def _end(self, agent: str, reason: str) -> None:
        self.ended.append({"agent": agent, "reason": reason, "at": self.clock.now_us})

    def _leave_node(self, act: Act, status: str, outputs: dict[str, Any], parent: str | None) -> None:
        chain = self.chains[act.agent]
        node = {
            "node_id": str(uuid5(UUID(chain), act.action_id)),
            "parent_id": parent,
            "node_type": "TOOL_CALL",
            "name": act.tool,
            "inputs": act.input,
            "thought_process": act.thought,
            "outputs": {**outputs, "status": status},
            "metadata": {
                "action_id": act.action_id,
                "cost": act.cost,
                "timestamp": moment(self.clock.now_us),
            },
        }
        self.sent.append(
            Sent(act.agent, act.session or chain, node, self.clock.now_us, guarded=True, actor="operator")
        )

    # --- what follows from it -----------------------------------------------------------------------

    def nodes(self) -> list[Sent]:
        """Each node once: the guard's last word, else the last sending, in the order of the records."""
        last: dict[tuple[str, str, str], Sent] = {}
        for one in self.sent:
            before = last.get((one.agent, one.session, one.id))
            if before is None or one.guarded or not before.guarded:
                last[one.agent, one.session, one.id] = one
        return [one for one in self.sent if any(one is kept for kept in last.values())]

    def sessions(self) -> dict[str, list[Sent]]:
        """The nodes of each session, those of chains without a session left out."""
        found: dict[str, list[Sent]] = {}
        for one in self.nodes():
            if one.session not in self.chains.values():
                found.setdefault(one.session, []).append(one)
        return found

    def calls(self) -> list[Sent]:
        """Calls of tools; one that was seen from both ends counts by its outer one."""
        return [one for one in self.nodes() if one.is_tool_call and not self.is_inner_end(one)]

    def is_inner_end(self, one: Sent) -> bool:
        """Whether it is another call of its chain, seen from inside (this story marks none across chains)."""
        return "nested_in" in one.metadata and any(
            (other.agent, other.session, other.id, other.name) == (one.agent, one.session, outer, one.name)
            and other.is_tool_call
            and str(other.metadata.get("nested_in", other.id)).lower() == other.id
            and one.status in {None, "success", other.status}
            for other in self.nodes()
            for outer in [str(one.metadata["nested_in"]).lower()]
        )

    def failed(self) -> list[Sent]:
        return [one for one in self.calls() if one.status == "failed"]

    def corrections(self) -> Iterator[tuple[Sent, Sent, str]]:
        """Failed call, what followed it, and where that stands."""
        calls = self.calls()
        for failed in self.failed():
            for other in self.nodes():
                again = other.name == failed.name and any(other is call for call in calls)
                same_kind = other.type == "SELF_CORRECTION" or again
                if other.session != failed.session or other is failed or not same_kind:
                    continue
                if other.parent == failed.id:
                    yield failed, other, "child"
                elif failed.parent is not None and other.parent == failed.parent and later(other, failed):
                    yield failed, other, "sibling"

    def names(self, one: Sent) -> list[str]:
        by_id = {other.id: other for other in self.nodes() if other.session == one.session}
        return [above.name for above in reversed(walk_up(by_id, one)) if above is not None]


def walk_up(by_id: dict[str, Sent], one: Sent) -> list[Sent | None]:
    """The node and those above it; ends in None when it goes round."""
    path: list[Sent | None] = [one]
    at = by_id.get(one.parent or "")
    while at is not None:
        if at in path:
            return [*path, None]
        path.append(at)
        at = by_id.get(at.parent or "")
    return path


def later(one: Sent, than: Sent) -> bool:
    if one.began is not None and than.began is not None and one.began != than.began:
        return one.began > than.began
    return one.at > than.at


# --- the story --------------------------------------------------------------------------------------


def ident(number: int) -> str:
    return str(UUID(int=(0xC0DE << 96) + number))


RUN, PLAN, NOTES, BROKEN, NESTED = (ident(1_000 + number) for number in range(5))
"""Sessions: guarded calls, a full run, one without output, one with a cycle, one with a call seen twice."""


def node(number: int, parent: int | None, type_: str, name: str, **members: Any) -> dict[str, Any]:
    made = {
        "node_id": ident(number),
        "parent_id": None if parent is None else ident(parent),
        "node_type": type_,
        "name": name,
        "outputs": {"status": "success"},
    }
    return {**made, **members}


def at(time: str, **metadata: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-01-{time}Z", **metadata}


FAILED = {"status": "failed"}


async def tell(world: World) -> None:
    """Three days of four agents."""
    for agent, policy in (("buyer", BUYER_POLICY), ("rookie", ROOKIE_POLICY), ("thrifty", ROOKIE_POLICY)):
        await world.create(agent, policy)
    for agent in ("planner", "scribe"):
        await world.create(agent, None)
    await _first_day(world)
    await world.issue_key("laptop", "buyer")
    await world.verify("buyer")
    world.clock.now_us = FIRST_DAY + DAY + 9 * HOUR
    await _second_day(world)
    world.clock.now_us = FIRST_DAY + 2 * DAY + 9 * HOUR
    await _third_day(world)
    await world.verify("scribe")
    await world.export("buyer", 12)
    await world.export_over_http(Wanted(Format.CSV, view="scars"), "scars", len(world.scars))
    await world.export_over_http(Wanted(Format.JSONL, agents=("buyer",)), "jsonl", 45, "buyer")


async def _first_day(world: World) -> None:
    await world.post("planner", RUN, node(1, None, "PLANNING", "shop", metadata=at("01T09:00:30")))
    below: dict[str, Any] = {"session_id": RUN, "parent_id": ident(1)}
    first = await world.ask("buyer", "search", 2, thought_process="look first", **below)
    await world.report(first, "failure", "index is down", ident(1))
    second = await world.ask("buyer", "search", 2, **below)
    await world.report(second, "success", "3 hits", ident(1))
    await world.ask("buyer", "rm", 0, thought_process="clean up")
    await world.report(await world.ask("buyer", "quote", 1, **below), "failure", "no answer", ident(1))
    await world.ask("buyer", "quote", 1, **below)
    mail = await world.ask("buyer", "email", 5)
    await world.approve(mail, 90, "ticket 4711")
    await world.report(mail, "success", "sent")
    twice = await world.ask("buyer", "email", 5, value="to everybody")
    assert await world.ask("buyer", "email", 5, value="to everybody") is twice
    await world.reject(twice, 30, "too many", scar="minor")
    await world.ask("buyer", "email", 5, value="still waiting")
    await world.post(
        "planner",
        PLAN,
        node(10, None, "PLANNING", "plan", metadata=at("01T09:10:00")),
        node(
            11,
            10,
            "TOOL_CALL",
            "fetch",
            outputs={**FAILED, "error": {"message": "timeout"}},
            metadata=at("01T09:10:01", cost=3, duration_ms=120),
        ),
        node(12, 11, "SELF_CORRECTION", "try a mirror", metadata=at("01T09:10:02")),
        node(
            13,
            10,
            "TOOL_CALL",
            "fetch",
            metadata=at("01T09:10:03", cost=4, duration_ms=80, tokens={"input": 5, "output": 7}),
        ),
        node(
            14,
            10,
            "LLM_CALL",
            "summarise",
            metadata=at("01T09:10:04", model="m-large", cost=0.5, tokens={"prompt": 100, "completion": 20}),
        ),
        node(
            15,
            None,
            "AGENT",
            "planner",
            metadata=at("01T09:10:05", model="m-large", cost=9, tokens={"total": 1_000}),
        ),
    )
    await world.post("planner", PLAN, node(16, 10, "OUTPUT", "answer"))


async def _second_day(world: World) -> None:
    paid = await world.ask("buyer", "pay", 30, thought_process="the invoice is due")
    await world.report(paid, "harmful", "paid twice")
    await world.report(await world.ask("buyer", "search", 2), "unknown", "no answer")
    later_known = await world.ask("buyer", "search", 2)
    await world.report(later_known, "unknown", "no answer")
    await world.report(later_known, "success", "found in the log")
    await world.ask("buyer", "search", 2)
    await world.contradict(paid, "success", "it was fine")
    for agent in ("rookie", "thrifty"):
        for _ in range(2):
            await world.report(await world.ask(agent, "search", 8), "success")
        await world.ask(agent, "search", 8)
    for _ in range(3):
        await world.ask("rookie", "rm", 0)
    await world.post(
        "scribe",
        NOTES,
        node(
            20,
            None,
            "TOOL_CALL",
            "fetch",
            outputs={**FAILED, "error": "no route"},
            metadata=at("02T09:00:00", duration_ms=300),
        ),
    )
    await world.post("scribe", NOTES, node(21, None, "TOOL_CALL", "write", outputs=FAILED))
    await world.post("scribe", NOTES, node(21, None, "TOOL_CALL", "write", metadata=at("02T09:00:02")))
    await world.post(
        "scribe",
        NOTES,
        node(22, None, "LLM_CALL", "draft", metadata=at("02T09:00:03", model="m-small", tokens=40)),
    )
    await world.post("planner", NOTES, node(22, None, "PLANNING", "draft", thought_process="mine"))
    painted = next(one.node for one in world.sent if one.guarded and one.session == RUN)
    await world.post("buyer", RUN, {**painted, "outputs": {"status": "success"}})


async def _third_day(world: World) -> None:
    await world.ask("rookie", "rm", 0)
    world._end("rookie", "scar limit reached (12 >= 10)")
    await world.ask("rookie", "search", 8)
    await world.terminate("thrifty", "project ended")
    await world.create("eager", ROOKIE_POLICY)
    for _ in range(2):
        await world.report(await world.ask("eager", "search", 8), "success")
    await world.post("scribe", BROKEN, node(30, 39, "RETRIEVAL", "lost", metadata=at("01T03:00:00")))
    await world.post("scribe", BROKEN, node(31, 32, "PLANNING", "round"), node(33, 30, "RETRIEVAL", "below"))
    await world.post("scribe", BROKEN, node(32, 31, "PLANNING", "and round"))
    await world.post(
        "planner",
        BROKEN,
        node(34, None, "AGENT", "helper", metadata=at("03T12:00:00", model="m-large", tokens=500, cost=2)),
    )
    await world.post(
        "planner", PLAN, node(17, None, "AGENT", "planner", metadata=at("03T12:00:00", tokens=900, cost=9))
    )
    await world.post("scribe", NESTED, node(41, 40, "TOOL_CALL", "fetch", outputs=FAILED, metadata={}))
    await world.post(
        "scribe",
        NESTED,
        node(40, None, "TOOL_CALL", "fetch", outputs={**FAILED, "detail": "gone"}),
        node(41, 40, "TOOL_CALL", "fetch", outputs=FAILED, metadata={"nested_in": ident(40)}),
    )
    for agent in ("scribe", "planner"):
        await world.post(agent, NESTED, node(42, None, "OUTPUT", "done"))
    await world.post(
        "scribe",
        NESTED,
        node(43, None, "TOOL_CALL", "store", metadata={"cost": 6}),
        node(44, 43, "TOOL_CALL", "store", metadata={"cost": 6, "tokens": 9, "nested_in": ident(43)}),
        # Marks that hide nothing: of another tool's call, and of one that is marked itself.
        node(45, None, "TOOL_CALL", "store", metadata={"cost": 7, "nested_in": ident(40)}),
        node(46, 45, "TOOL_CALL", "store", metadata={"cost": 8, "tokens": 3, "nested_in": ident(45)}),
    )
