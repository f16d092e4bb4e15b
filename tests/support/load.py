"""Callers under whom things break: they ask, get approvals, post and deliver, and never lose patience.

Each request is sent again, byte for byte, until there is an answer. ``check_load`` then proves of all of them
what ``tests.support.aftermath`` proves of requests.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import msgspec

from tests.integration.http.client import Client
from tests.support.aftermath import POLICY, PROTOBUF, Request, Work, approve, ask, event, spans
from tests.support.server import OPERATOR_TOKEN

TRY_SECS: Final = 60.0
"""A caller who waits longer for one answer calls it a defect."""

PATIENCE_SECS: Final = 240.0
"""So long a request is sent again and again before its caller calls that a defect."""

PAUSE_SECS: Final = 0.05


class Load:
    """Callers of one service.

    Args:
        urls: where the service is; callers take turns.
        agents: names of the agents, which must be there (``create``).
        seed: of what is sent.

    Attributes:
        requests: what was answered with 200.
        tries: how often which status came, by status; 0: no answer.
        wrong: whatever else came than 200 and 503 with Retry-After, or took too long.
        slowest_secs: the longest try.
    """

    def __init__(self, urls: list[str], agents: list[str], *, seed: int = 0) -> None:
        self._urls = urls
        self.agents = agents
        self._random = random.Random(seed)  # noqa: S311  chooses what is sent
        self._tokens: dict[str, str] = {}
        self._ended = False
        self.requests: list[Request] = []
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
        wanted = len(self.requests) + more
        async with asyncio.timeout(secs):
            while len(self.requests) < wanted and not self.wrong:
                await asyncio.sleep(0.02)

    async def _call(self, client: httpx2.AsyncClient, number: int) -> None:
        steps = (self._ask, self._hold_and_approve, self._post, self._deliver)
        while not self._ended and not self.wrong:
            url, agent = self._urls[number % len(self._urls)], self._random.choice(self.agents)
            await self._random.choice(steps)(_Way(client, url), agent)

    async def _ask(self, way: _Way, agent: str) -> None:
        await self._until_answered(way, ask(agent, token=self._tokens[agent]))

    async def _hold_and_approve(self, way: _Way, agent: str) -> None:
        held = ask(agent, "email", token=self._tokens[agent])
        if await self._until_answered(way, held):
            await self._until_answered(way, approve(agent, held.answer["action_id"]))

    async def _post(self, way: _Way, agent: str) -> None:
        await self._until_answered(way, event(agent))

    async def _deliver(self, way: _Way, agent: str) -> None:
        await self._until_answered(way, spans(agent, PROTOBUF))

    async def _until_answered(self, way: _Way, request: Request) -> bool:
        deadline = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < deadline:
            begun = time.monotonic()
            reply = await way.post(request)
            self.slowest_secs = max(self.slowest_secs, time.monotonic() - begun)
            self.tries[0 if reply is None else reply.status_code] += 1
            if reply is not None and reply.status_code == 200:
                request.answer = request.read(reply.content)
                self.requests.append(request)
                return True
            if reply is not None and (reply.status_code != 503 or "retry-after" not in reply.headers):
                self.wrong.append(f"{request.path}: {reply.status_code} {reply.text}")
                return False
            await asyncio.sleep(PAUSE_SECS)
        self.wrong.append(f"{request.path}: no answer in {PATIENCE_SECS:.0f} s")
        return False


class _Way(msgspec.Struct, frozen=True):
    client: httpx2.AsyncClient
    url: str

    async def post(self, request: Request) -> httpx2.Response | None:
        """The answer; None when there was none."""
        token = request.token or OPERATOR_TOKEN
        headers = {**request.headers, "Authorization": f"Bearer {token}"}
        try:
            return await self.client.post(self.url + request.path, content=request.body, headers=headers)
        except httpx2.TransportError:
            return None


def check_load(load: Load, url: str, admin_url: str) -> None:
    """What must hold when everything works again.

    Args:
        load: which has ended.
        url: of the service.
        admin_url: of the database, an administrator's, straight to the server.
    """
    assert load.wrong == [], load.wrong[:3]
    work = Work(admin_url, lambda: Client(url, OPERATOR_TOKEN))
    work.requests += load.requests
    work.check()
