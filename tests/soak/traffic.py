"""The requests of a soak test, by kind: a mixed load at a steady rate, well below what the machine could do.

Agents come and go: each asks for so many actions, has them approved where its policy wants that, reports how
they went, and makes room for the next one. Readers read what has ended, so that the same question is as much
work at the end as at the beginning; only auditors' questions over the whole table grow with it.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.cli.query_values import read_values
from db.cookbook import recipes
from tests.bench import documents, load, spans
from tests.bench.stage import OPERATOR_TOKEN
from tests.bench.steady import Act, Channel, Latency, Reply
from tests.soak.record import Record

RATES: Mapping[str, float] = {
    "ask": 20,
    "approve": 4,
    "outcome": 25,
    "trace": 5,
    "event": 5,
    "otlp": 4,
    "session": 4,
    "log": 2,
    "verify": 1,
    "pending": 1,
    "sql": 1,
}
"""Of each kind how many a second, at most: nobody approves or reports more than there is."""

LANES: Mapping[str, int] = {"ask": 8, "outcome": 8, "approve": 4, "trace": 4, "event": 2, "otlp": 2, "sql": 2}
"""Of each kind its connections, half to each server; one, where none is named."""

ASKED_OF = timedelta(minutes=2)
"""How far back auditors ask: what they ask of is as much at the end as at the beginning."""

LIFETIME = 100
"""Actions that an agent asks for; then the next one takes its place."""

POLICY = {
    "budget": 10**9,
    "scar_limit": 10**6,
    "tools": {"search": {"cost": 1}, "send_email": {"cost": 5, "requires_approval": True}},
}
HELD_EVERY, UNKNOWN_EVERY = 8, 10
TRACES_AN_EXPORT = 2
_KEPT = 50
_FAULTS, _TOLD = 10, 300
_PROTOBUF = "application/x-protobuf"


class Agent(msgspec.Struct):
    """A guarded agent, and how many actions it has asked for."""

    name: str
    token: str
    asked: int = 0


class Action(msgspec.Struct, frozen=True):
    """An action that waits for somebody."""

    agent: Agent
    action_id: str


class Traffic:
    """All lanes of all kinds, and what they share.

    Args:
        ports: of the servers; lanes take them in turn.
        readers: URLs of auditors' SQL logins, one a lane of ``sql``.
        record: of what was acknowledged.
        lifetime: actions of one agent.
    """

    def __init__(
        self, ports: Sequence[int], readers: Sequence[str], record: Record, lifetime: int = LIFETIME
    ) -> None:
        self.measured: dict[str, list[Latency]] = {kind: [] for kind in RATES}
        self.errors: dict[str, int] = dict.fromkeys(RATES, 0)
        self.faults: list[str] = []
        self._ports = ports
        self._readers = readers
        self._record = record
        self._lifetime = lifetime
        self._rng = random.Random(0)  # noqa: S311  the same load in every run
        self._held: deque[Action] = deque()
        self._allowed: deque[Action] = deque()
        self._living: deque[str] = deque(maxlen=LANES["ask"])
        self._ended: deque[str] = deque(maxlen=_KEPT)
        self._sessions: deque[str] = deque(maxlen=_KEPT)
        self._agents = 0
        self._close: list[Callable[[], None]] = []

    async def lanes(self, kind: str) -> list[Act]:
        """The lanes of one kind, connected."""
        count = LANES.get(kind, 1)
        if kind == "sql":
            return [await self._sql(url, number) for number, url in enumerate(self._readers[:count])]
        made: list[Act] = []
        for number in range(count):
            client = _Client(self._ports[number % len(self._ports)])
            self._close.append(client.close)
            work = getattr(self, f"_{kind}")(client, number)
            made.append(self._guarded(kind, work))
        return made

    def close(self) -> None:
        """Closes every connection."""
        for close in self._close:
            close()

    def _guarded(self, kind: str, work: Act) -> Act:
        """The same work; an error is counted, and the next request goes on."""

        async def act() -> bool:
            try:
                return await work()
            except (RuntimeError, OSError, EOFError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                self.errors[kind] += 1
                if len(self.faults) < _FAULTS:
                    self.faults.append(f"{kind}: {type(error).__name__}: {str(error)[:_TOLD]}")
                return True

        return act

    def _ask(self, client: _Client, _number: int) -> Act:
        agent: Agent | None = None

        async def act() -> bool:
            nonlocal agent
            if agent is None or agent.asked >= self._lifetime:
                if agent is not None:
                    self._ended.append(agent.name)
                agent = await self._new_agent(client)
            agent.asked += 1
            mark = self._record.mark()
            tool = "send_email" if agent.asked % HELD_EVERY == 1 else "search"
            path = f"/v1/agents/{agent.name}/actions"
            said = await client.post(path, {"tool": tool, "input": {"q": mark}}, agent.token, mark)
            self._record.acknowledge("ask", mark)
            waiting = self._allowed if said["decision"] == "allowed" else self._held
            waiting.append(Action(agent, said["action_id"]))
            return True

        return act

    async def _new_agent(self, client: _Client) -> Agent:
        self._agents += 1
        name = f"soak-{self._agents}"
        said = await client.post("/v1/agents", {"agent_id": name, "policy": POLICY})
        self._living.append(name)
        return Agent(name, said["token"])

    def _approve(self, client: _Client, _number: int) -> Act:
        async def act() -> bool:
            if not self._held:
                return False
            action, mark = self._held.popleft(), self._record.mark()
            path = f"/v1/agents/{action.agent.name}/actions/{action.action_id}/approve"
            await client.post(path, {"approver": "Alice", "note": mark}, OPERATOR_TOKEN, mark)
            self._record.acknowledge("approve", mark)
            self._allowed.append(action)
            return True

        return act

    def _outcome(self, client: _Client, _number: int) -> Act:
        async def act() -> bool:
            if not self._allowed:
                return False
            action, mark = self._allowed.popleft(), self._record.mark()
            path = f"/v1/agents/{action.agent.name}/actions/{action.action_id}/outcome"
            status = "unknown" if self._rng.randrange(UNKNOWN_EVERY) == 0 else "success"
            await client.post(path, {"status": status, "detail": mark}, action.agent.token, mark)
            self._record.acknowledge("outcome", mark)
            return True

        return act

    def _trace(self, client: _Client, number: int) -> Act:
        async def act() -> bool:
            tree = documents.tree(self._rng)
            await client.post(f"/v1/agents/tracing-{number}/traces", tree)
            self._record.acknowledge("trace", tree["session_id"])
            self._sessions.append(tree["session_id"])
            return True

        return act

    def _event(self, client: _Client, number: int) -> Act:
        async def act() -> bool:
            mark = self._record.mark()
            body = {"type": "step", "data": {"mark": mark}}
            await client.post(f"/v1/agents/tracing-{number}/events", body, OPERATOR_TOKEN, mark)
            self._record.acknowledge("event", mark)
            return True

        return act

    def _otlp(self, client: _Client, _number: int) -> Act:
        async def act() -> bool:
            body = spans.export(self._rng, TRACES_AN_EXPORT)
            await client.send(load.post("/v1/traces", body, OPERATOR_TOKEN, _PROTOBUF))
            for trace_id in _trace_ids(body):
                self._record.acknowledge("otlp", trace_id)
            return True

        return act

    def _session(self, client: _Client, _number: int) -> Act:
        return self._reading(client, self._sessions, "/v1/sessions/{}")

    def _log(self, client: _Client, _number: int) -> Act:
        return self._reading(client, self._ended, "/v1/agents/{}/log?limit=500")

    def _verify(self, client: _Client, _number: int) -> Act:
        return self._reading(client, self._ended, "/v1/agents/{}/verify", b'"ok":true')

    def _pending(self, client: _Client, _number: int) -> Act:
        return self._reading(client, self._living, "/v1/agents/{}/actions/pending")

    def _reading(self, client: _Client, names: deque[str], path: str, expect: bytes = b"") -> Act:
        async def act() -> bool:
            if not names:
                return False
            reply = await client.send(load.get(path.format(self._rng.choice(names)), OPERATOR_TOKEN))
            if expect not in reply.body:
                raise RuntimeError(f"{reply.body!r}")
            return True

        return act

    async def _sql(self, url: str, number: int) -> Act:
        """An auditor who asks the questions of the cookbook in turn, of the last minutes as a dashboard does.

        What has no range looks at all that there is each time, and would slow the machine down more and more.
        """
        connection = await asyncpg.connect(url)
        self._close.append(connection.terminate)
        cookbook = [recipe for recipe in recipes().values() if recipe.parameter("since") is not None]
        turn = number * len(cookbook) // 2

        async def act() -> bool:
            nonlocal turn
            recipe = cookbook[turn % len(cookbook)]
            turn += 1
            now = datetime.now(UTC)
            since = f"since={(now - ASKED_OF).isoformat()}"
            await connection.fetch(recipe.statement, *read_values(recipe, [since], now))
            return True

        return self._guarded("sql", act)


class _Client:
    """One connection to one server; a broken one is opened again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._channel: Channel | None = None

    async def post(
        self, path: str, body: object, token: str = OPERATOR_TOKEN, key: str | None = None
    ) -> dict[str, str]:
        """Posts JSON, under an Idempotency-Key if one is given; returns the JSON of the answer."""
        message = load.post(path, json.dumps(body).encode(), token)
        if key is not None:
            message = message.replace(b"\r\n", f"\r\nIdempotency-Key: {key}\r\n".encode(), 1)
        answer: dict[str, str] = json.loads((await self.send(message)).body)
        return answer

    async def send(self, message: bytes) -> Reply:
        """Sends a request.

        Raises:
            RuntimeError: the answer is not 200.
            OSError, EOFError: the connection broke.
        """
        try:
            self._channel = self._channel or await Channel.open(self._port)
            reply = await self._channel.send(message)
        except BaseException:
            self.close()
            raise
        if reply.status != 200:
            raise RuntimeError(f"{reply.status} {reply.body!r}")
        return reply

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _trace_ids(body: bytes) -> set[str]:
    export = ExportTraceServiceRequest.FromString(body)
    found = (span.trace_id.hex() for span in export.resource_spans[0].scope_spans[0].spans)
    return set(found)


async def observed(port: int) -> None:
    """The agents that traces and events are posted for."""
    client = _Client(port)
    for number in range(LANES["trace"]):
        await client.post("/v1/agents", {"agent_id": f"tracing-{number}", "policy": None})
    client.close()
