"""Callers under whom things break: they ask, get approvals, post and deliver, and never lose patience.

Each request carries an Idempotency-Key (spans their own ids) and is sent again, byte for byte, until there is
an answer. ``check_load`` then holds what was answered against what is on record.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import httpx2
import msgspec

from app.chain.verdict import Verdict
from tests.integration.http.client import Client
from tests.support.cli import run_trails
from tests.support.server import MASTER_KEY, OPERATOR_TOKEN
from tests.support.spans import Sent, protobuf

TRY_SECS: Final = 60.0
"""A caller who waits longer for one answer calls it a defect."""

PATIENCE_SECS: Final = 240.0
"""So long a request is sent again and again before its caller calls that a defect."""

PAUSE_SECS: Final = 0.05
POLICY: Final[dict[str, Any]] = {
    "budget": 1_000_000_000,
    "scar_limit": 1_000,
    "tools": {"search": {"cost": 1}, "send_email": {"cost": 5, "requires_approval": True}},
}
_JSON: Final = {"Content-Type": "application/json"}
_PROTOBUF: Final = {"Content-Type": "application/x-protobuf", "Authorization": f"Bearer {OPERATOR_TOKEN}"}


class Act(msgspec.Struct, frozen=True):
    """One request that was answered with 200: what it was about, the answer, and how it was marked."""

    kind: str
    agent: str
    mark: str
    answer: Any = None


class Load:
    """Callers of one service.

    Args:
        urls: where the service is; callers take turns.
        agents: names of the agents, which must be there (``create``).
        seed: of what is sent.

    Attributes:
        acts: what was answered with 200.
        tries: how often which status came, by status; 0: no answer.
        wrong: whatever else came than 200 and 503 with Retry-After, or took too long.
        slowest_secs: the longest try.
    """

    def __init__(self, urls: list[str], agents: list[str], *, seed: int = 0) -> None:
        self._urls = urls
        self.agents = agents
        self._random = random.Random(seed)  # noqa: S311  chooses what is sent
        self._run = f"{self._random.getrandbits(48):x}"
        self._count = 0
        self._tokens: dict[str, str] = {}
        self._ended = False
        self.acts: list[Act] = []
        self.tries: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.slowest_secs = 0.0

    def create(self) -> None:
        """Makes the agents."""
        for agent in self.agents:
            made = Client(self._urls[0], OPERATOR_TOKEN).create(agent, POLICY)
            self._tokens[agent] = str(made.token)

    @asynccontextmanager
    async def running(self, callers: int = 4) -> AsyncIterator[None]:
        """So many callers at once while the block runs; at its end each finishes what it has begun."""
        self._ended = False
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(timeout=TRY_SECS, limits=limits) as client:
            tasks = [asyncio.create_task(self._call(client, number)) for number in range(callers)]
            try:
                yield
            finally:
                self._ended = True
                await asyncio.gather(*tasks)

    async def until(self, more: int, *, secs: float = 60.0) -> None:
        """Returns when so many more requests were answered."""
        wanted = len(self.acts) + more
        async with asyncio.timeout(secs):
            while len(self.acts) < wanted and not self.wrong:
                await asyncio.sleep(0.02)

    async def _call(self, client: httpx2.AsyncClient, number: int) -> None:
        steps = (self._ask, self._approve, self._post, self._deliver)
        while not self._ended and not self.wrong:
            url, agent = self._urls[number % len(self._urls)], self._random.choice(self.agents)
            self._count += 1
            await self._random.choice(steps)(_Way(client, url), agent, f"{self._run}-{self._count}")

    async def _ask(self, way: _Way, agent: str, mark: str) -> None:
        await self._send(way, Act("ask", agent, mark), "actions", {"tool": "search", "input": mark})

    async def _approve(self, way: _Way, agent: str, mark: str) -> None:
        body = {"tool": "send_email", "input": mark}
        held = await self._send(way, Act("hold", agent, mark), "actions", body)
        if held is not None:
            path = f"actions/{held['action_id']}/approve"
            await self._send(way, Act("approve", agent, mark), path, {"approver": "Ada"})

    async def _post(self, way: _Way, agent: str, mark: str) -> None:
        await self._send(way, Act("post", agent, mark), "events", {"type": "note", "data": mark})

    async def _deliver(self, way: _Way, agent: str, mark: str) -> None:
        span = Sent(name=mark)
        body = protobuf(span, resource=(("service.name", agent),))
        await self._until_answered(way, Act("deliver", agent, mark), "/v1/traces", body, _PROTOBUF)

    async def _send(self, way: _Way, act: Act, path: str, body: Any) -> dict[str, Any] | None:
        # Who asks cannot approve.
        token = self._tokens[act.agent] if act.kind in {"ask", "hold"} else OPERATOR_TOKEN
        headers = {**_JSON, "Authorization": f"Bearer {token}", "Idempotency-Key": act.mark}
        raw = json.dumps(body).encode()
        return await self._until_answered(way, act, f"/v1/agents/{act.agent}/{path}", raw, headers)

    async def _until_answered(
        self, way: _Way, act: Act, path: str, body: bytes, headers: dict[str, str]
    ) -> dict[str, Any] | None:
        deadline = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < deadline:
            begun = time.monotonic()
            reply = await way.post(path, body, headers)
            self.slowest_secs = max(self.slowest_secs, time.monotonic() - begun)
            self.tries[0 if reply is None else reply.status_code] += 1
            if reply is not None and reply.status_code == 200:
                answer = None if act.kind == "deliver" else reply.json()
                self.acts.append(msgspec.structs.replace(act, answer=answer))
                return answer
            if reply is not None and (reply.status_code != 503 or "retry-after" not in reply.headers):
                self.wrong.append(f"{act.kind} {act.mark}: {reply.status_code} {reply.text}")
                return None
            await asyncio.sleep(PAUSE_SECS)
        self.wrong.append(f"{act.kind} {act.mark}: no answer in {PATIENCE_SECS:.0f} s")
        return None


class _Way(msgspec.Struct, frozen=True):
    client: httpx2.AsyncClient
    url: str

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> httpx2.Response | None:
        """The answer; None when there was none."""
        try:
            return await self.client.post(self.url + path, content=body, headers=headers)
        except httpx2.TransportError:
            return None


# --- afterwards -----------------------------------------------------------------------------------------


def check_load(load: Load, url: str, admin_url: str) -> None:
    """What must hold when everything works again.

    Args:
        load: which has ended.
        url: of the service.
        admin_url: of the database, an administrator's, straight to the server.
    """
    assert load.wrong == [], load.wrong[:3]
    operator = Client(url, OPERATOR_TOKEN)
    for agent in load.agents:
        _check_agent(operator, agent, [act for act in load.acts if act.agent == agent])
    found = run_trails(
        "verify", "--json", env={"TRAILS_DATABASE_URL": admin_url, "TRAILS_MASTER_KEY": MASTER_KEY}
    )
    assert found.json["verdict"] == Verdict.VERIFIED.value, found.json
    asyncio.run(_nothing_hangs(admin_url))


def _check_agent(operator: Client, agent: str, acts: list[Act]) -> None:
    records = log_of(operator, agent)
    of_kind: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        of_kind.setdefault(record["kind"], []).append(record["payload"])
    keys = [p["idempotency"]["key"] for r in records if "idempotency" in (p := r["payload"])]
    assert len(keys) == len(set(keys)), "a request is on record twice"
    asked = _by(of_kind.get("action_requested", []), lambda payload: str(payload["input"]))
    allowed = _by(of_kind.get("action_allowed", []), lambda payload: str(payload["action_id"]))
    noted = _by(of_kind.get("event", []), lambda payload: str(payload["data"]))
    spans = Counter(node["name"] for payload in of_kind.get("trace", []) for node in payload["trace_tree"])
    for found in (asked, allowed, noted, spans):
        assert all(count == 1 for count in found.values()), found.most_common(3)
    for act in acts:
        on_record = {"ask": asked, "hold": asked, "post": noted, "deliver": spans}.get(act.kind)
        assert on_record is None or on_record[act.mark] == 1, f"{act} was acknowledged and is not there"
        if act.kind in {"ask", "approve"}:
            assert act.answer["decision"] == "allowed"
            assert allowed[act.answer["action_id"]] == 1, act
    costs = {payload["action_id"]: payload["cost"] for payload in of_kind.get("action_requested", [])}
    status = operator.get(f"/v1/agents/{agent}").json
    assert status["spent"] == sum(costs[action_id] for action_id in allowed), "something was charged twice"


def _by(payloads: list[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> Counter[str]:
    return Counter(map(name, payloads))


def log_of(operator: Client, agent: str) -> list[dict[str, Any]]:
    """All records of an agent."""
    records: list[dict[str, Any]] = []
    while True:
        after = f"&after={records[-1]['seq']}" if records else ""
        page = operator.get(f"/v1/agents/{agent}/log?limit=5000{after}").json
        records += page["records"]
        if not page["records"] or records[-1]["seq"] == page["head"]["seq"]:
            return records


async def _nothing_hangs(admin_url: str) -> None:
    """No transaction of the service's stays open, and none waits for a lock."""
    admin = await asyncpg.connect(admin_url)
    try:
        async with asyncio.timeout(40):  # a transaction whose client is gone ends after thirty seconds
            while await admin.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND usename = 'trails_app' AND state <> 'idle'"
                " AND (xact_start < now() - interval '1 s' OR wait_event_type = 'Lock')"
            ):
                await asyncio.sleep(0.1)
    finally:
        await admin.close()
