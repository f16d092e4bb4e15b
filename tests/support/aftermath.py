"""After a fault: what was acknowledged is on record once, the rest may be sent again, nothing is left over.

``Work`` has requests of every kind that appends and what was answered, and ``check`` proves, when the fault
is over: retries answer what was answered before; every request is on record exactly once; each agent has
spent what its distinct allowed requests cost; ``trails verify`` says intact; no transaction and no advisory
lock is left in the database. ``tests.support.load`` sends such requests without end.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import msgspec
import psycopg

from app.chain.verdict import Verdict
from tests.integration.http.client import Client
from tests.support.cli import run_trails
from tests.support.server import MASTER_KEY
from tests.support.spans import Sent as Span
from tests.support.spans import as_json, protobuf

POLICY: dict[str, Any] = {
    "budget": 1_000_000_000,
    "scar_limit": 1_000,
    "tools": {"search": {"cost": 2}, "email": {"cost": 5, "requires_approval": True}},
}

SETTLE_SECS = 40.0
"""How long a server process of the database may take to see that its client is gone: a transaction ends after
thirty seconds."""

RETRY_SECS = 60.0

_UNANSWERED = (http.client.HTTPException, ConnectionError, urllib.error.URLError, TimeoutError)

_ROWS = "SELECT agent_id, kind, trace_data FROM trails.agent_audit_trails ORDER BY log_uuid, seq"

_LEFT = """
SELECT pid, state, query FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND (state LIKE 'idle in transaction%' OR xact_start < clock_timestamp() - interval '1 second'
        OR (state = 'active' AND wait_event_type = 'Lock'))
"""

_ADVISORY = """
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

JSON = "application/json"
PROTOBUF = "application/x-protobuf"


class Row(msgspec.Struct, frozen=True):
    """What of a record tells whose request it was."""

    agent: str
    kind: str
    payload: dict[str, Any]


class Request(msgspec.Struct, eq=False):
    """One request, what is on record of it, and what was answered: None as long as nobody knows.

    With a ``key`` a retry answers the same; spans have none, and are told apart by their ids. ``agent`` is
    whose budget it is charged to, ``token`` whoever sends it where that is not the operator.
    """

    path: str
    body: bytes
    is_it: Callable[[Row], bool]
    key: str | None = None
    agent: str = ""
    token: str | None = None
    media: str = JSON
    answer: Any = None

    @property
    def headers(self) -> dict[str, str]:
        """All but who sends it."""
        named = {} if self.key is None else {"Idempotency-Key": self.key}
        return {"Content-Type": self.media, **named}

    def send(self, client: Client) -> Any:
        """Sends it; None when no answer came, or "try again"."""
        sender = client if self.token is None else client.as_(self.token)
        try:
            reply = sender.send("POST", self.path, self.body, self.headers)
        except _UNANSWERED:
            return None
        assert reply.status in {200, 201, 503}, (self.path, reply.status, reply.raw)
        return None if reply.status == 503 else self.read(reply.raw)

    def read(self, answer: bytes) -> Any:
        """What an answer says; of one in protobuf only that it came."""
        return json.loads(answer) if self.media == JSON else {}


class Work:
    """Requests to one service, whose address may change, on agents of their own.

    Args:
        admin_url: of the database that it works on, an administrator's, straight to the server.
        client: gives the operator's client as the service now is.
    """

    def __init__(self, admin_url: str, client: Callable[[], Client]) -> None:
        self.admin_url = admin_url
        self.client = client
        self.requests: list[Request] = []
        self._spent = Counter[str]()

    def prepare(self, agents: int = 2) -> list[Request]:
        """Makes agents, and for each of them one request of every kind, and several of some."""
        made = [request for _ in range(agents) for request in self._of_new_agent()]
        self.requests += made
        return made

    def send(self, requests: Iterable[Request]) -> None:
        """Sends all at once, and keeps the answers."""
        waiting = list(requests)

        def one(request: Request) -> None:
            request.answer = request.send(self.client())

        with ThreadPoolExecutor(len(waiting)) as threads:
            list(threads.map(one, waiting))

    def check(self) -> None:
        """Proves all that is said above; the service is up again."""
        self._retry()
        self._compare_with_the_record()
        self.check_database()

    def check_database(self) -> None:
        """Proves what can be said whoever worked on it: everything verifies, and nothing is left over."""
        self._verify()
        self._nothing_is_left()

    def _nothing_is_left(self) -> None:
        """No transaction that nobody ends, no statement that waits, no advisory lock."""
        deadline = time.monotonic() + SETTLE_SECS
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            while left := connection.execute(_LEFT).fetchall():
                assert time.monotonic() < deadline, left
                time.sleep(0.1)
            assert connection.execute(_ADVISORY).fetchone() == (0,)

    @property
    def unanswered(self) -> int:
        """Requests of which nobody knows."""
        return sum(request.answer is None for request in self.requests)

    # --- the proofs ---------------------------------------------------------------------------------

    def _retry(self) -> None:
        """Each request once more, as its sender would: until there is an answer, and then it is the first."""
        client = self.client()
        for request in self.requests:
            deadline = time.monotonic() + RETRY_SECS
            while (again := request.send(client)) is None:
                assert time.monotonic() < deadline, f"no answer to {request.path}"
                time.sleep(0.05)
            if request.answer is not None and request.key is not None:
                assert again == request.answer, request.path
            request.answer = again

    def _compare_with_the_record(self) -> None:
        with psycopg.connect(self.admin_url) as connection:
            rows = [Row(*row) for row in connection.execute(_ROWS)]
        spent = self._spent.copy()
        for request in self.requests:
            found = sum(request.is_it(row) for row in rows)
            assert found == 1, (request.path, request.body, found)
            if request.answer.get("decision") == "allowed":
                spent[request.agent] += request.answer["cost"]
        agents = {request.agent for request in self.requests} - {""}
        told = Counter({agent: self.client().get(f"/v1/agents/{agent}").json["spent"] for agent in agents})
        charged = Counter[str]()
        for row in rows:
            if row.kind == "action_allowed" and row.agent in agents:
                charged[row.agent] += row.payload["cost"]
        assert told == charged == spent, "something was charged twice, or not at all"

    def _verify(self) -> None:
        env = {"TRAILS_DATABASE_URL": self.admin_url, "TRAILS_MASTER_KEY": MASTER_KEY}
        said = run_trails("verify", "--json", env=env)
        assert said.code == 0, said.out + said.err
        assert Verdict(said.json["verdict"]).exit_code == 0

    # --- the requests -------------------------------------------------------------------------------

    def _of_new_agent(self) -> list[Request]:
        client, agent = self.client(), f"agent-{uuid4().hex[:12]}"
        own = client.create(agent, POLICY)
        actions = f"/v1/agents/{agent}/actions"
        done = own.post(actions, {"tool": "search", "input": "before"}).json
        self._spent[agent] += done["cost"]
        held = own.post(actions, {"tool": "email", "input": "before"}).json
        return [
            *(ask(agent) for _ in range(4)),
            approve(agent, held["action_id"]),
            _outcome(agent, done["action_id"]),
            *(event(agent) for _ in range(2)),
            _trace(agent),
            spans(f"sender-{agent[-8:]}"),
            _creation(),
        ]


def ask(agent: str, tool: str = "search", *, token: str | None = None) -> Request:
    """A question of an agent's guard; about ``email`` it waits for a person."""
    mine = uuid4().hex
    return _request(
        f"/v1/agents/{agent}/actions",
        {"tool": tool, "input": mine},
        lambda row: row.kind == "action_requested" and row.payload["input"] == mine,
        agent=agent,
        token=token,
    )


def approve(agent: str, action_id: str) -> Request:
    """A person's word on what waits; who asked with the same key may not give it."""
    return _request(
        f"/v1/agents/{agent}/actions/{action_id}/approve",
        {"approver": "Ada"},
        lambda row: _is(row, agent, "action_allowed", action_id),
        agent=agent,
    )


def _outcome(agent: str, action_id: str) -> Request:
    return _request(
        f"/v1/agents/{agent}/actions/{action_id}/outcome",
        {"status": "success", "detail": "done"},
        lambda row: _is(row, agent, "outcome", action_id),
    )


def event(agent: str) -> Request:
    """An event of an agent."""
    mine = uuid4().hex
    return _request(
        f"/v1/agents/{agent}/events",
        {"type": "note", "data": {"mine": mine}},
        lambda row: row.kind == "event" and row.payload["data"] == {"mine": mine},
    )


def _trace(agent: str) -> Request:
    mine = str(uuid4())
    node = {"node_id": mine, "parent_id": None, "node_type": "PLANNING", "name": "n"}
    return _request(
        f"/v1/agents/{agent}/traces",
        {"session_id": str(uuid4()), "total_nodes": 1, "trace_tree": [node]},
        lambda row: row.kind == "trace" and row.payload["trace_tree"][0]["node_id"] == mine,
    )


def _creation() -> Request:
    agent = f"new-{uuid4().hex[:12]}"
    return _request(
        "/v1/agents",
        {"agent_id": agent, "policy": POLICY},
        lambda row: row.kind == "genesis" and row.agent == agent,
    )


def _request(
    path: str, body: Any, is_it: Callable[[Row], bool], *, agent: str = "", token: str | None = None
) -> Request:
    return Request(path, json.dumps(body).encode(), is_it, key=uuid4().hex, agent=agent, token=token)


def spans(sender: str, media: str = JSON) -> Request:
    """Three spans of one trace, as OTLP."""
    trace = uuid4()
    spans = [Span(name=f"{trace}/{n}", trace_id=trace.bytes, span_id=(n + 1).to_bytes(8)) for n in range(3)]
    names = [span.name for span in spans]
    encode = protobuf if media == PROTOBUF else as_json
    return Request(
        "/v1/traces",
        encode(*spans, resource={"service.name": sender}),
        lambda row: (
            row.agent == sender and row.kind == "trace" and names == _names(row.payload["trace_tree"])
        ),
        media=media,
    )


def _names(nodes: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(node["name"] for node in nodes)


def _is(row: Row, agent: str, kind: str, action_id: str) -> bool:
    return row.agent == agent and row.kind == kind and row.payload["action_id"] == action_id
