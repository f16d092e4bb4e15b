"""The feed and webhooks while things fail: a stop under load (H27), no database, a process that dies."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
import urllib.error
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

import asyncpg
import pytest

from app.ledger import Ledger
from app.ledger.feed import feed as feed_module
from app.ledger.feed import poller
from app.ledger.feed.batches import ALL
from app.ledger.feed.feed import Told
from tests.integration.http.client import Client
from tests.integration.http.posting import event
from tests.support.events import streamed
from tests.support.faults import rounds
from tests.support.ledgers import Caller
from tests.support.postgres import Database
from tests.support.proxy import Proxy
from tests.support.receiving import SECS, Delivered, receiving
from tests.support.server import ServerProcess, StartServer

Live = AsyncGenerator[Told]

CLIENTS = 3
SENDERS = 3
ENOUGH = rounds(60, 400)
"""Acknowledged before the signal comes."""

END_SECS = 10
"""A stop under load takes less, when all that is open ends by itself."""


class Listener:
    """A client that reads its stream to the end, and comes back with the last id that it has."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.seqs: list[int] = []
        self.last_id = ""
        self.ends: list[str] = []
        self.begun = threading.Event()

    def read(self, count: int | None = None) -> None:
        """Reads until the stream ends, or until so many records were told in all."""
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        port = int(self.server.base_url.rpartition(":")[2])
        path = "/v1/feed?agent=busy&kind=event"
        with streamed(port, path, self.server.operator_token, headers) as stream:
            stream.parser.last_id = self.last_id
            while count is None or len(self.seqs) < count:
                line = stream.answer.readline()
                if not line:
                    return
                one = stream.parser.line(line.decode().rstrip("\n"))
                self.last_id = stream.parser.last_id
                if self.last_id:
                    self.begun.set()
                if one is not None and one.event == "end":
                    self.ends.append(json.loads(one.data)["code"])
                elif one is not None:
                    self.seqs.append(json.loads(one.data)["data"]["seq"])


class Senders:
    """Clients that post until the service takes no more."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.acknowledged: list[int] = []

    def send(self) -> None:
        client = Client(self.server.base_url, self.server.operator_token)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                reply = client.post("/v1/agents/busy/events", event())
            except (http.client.HTTPException, ConnectionError, urllib.error.URLError):
                return
            if reply.status == 200:
                self.acknowledged.append(reply.json["seq"])
            time.sleep(0.01)


@contextmanager
def running(*threads: threading.Thread) -> Iterator[None]:
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_h27_streams_end_with_the_service_and_miss_nothing(start_server: StartServer) -> None:
    server = start_server(env={"TRAILS_STOP_DELAY_SECS": "1"})
    Client(server.base_url, server.operator_token).create("busy", None)
    listeners = [Listener(server) for _ in range(CLIENTS)]
    senders = Senders(server)
    with running(*(threading.Thread(target=one.read) for one in listeners)):
        assert all(one.begun.wait(30) for one in listeners)
        with running(*(threading.Thread(target=senders.send) for _ in range(SENDERS))):
            deadline = time.monotonic() + 60
            while len(senders.acknowledged) < ENOUGH:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < END_SECS
    assert [one.ends for one in listeners] == [["leaving"]] * CLIENTS
    assert "Traceback" not in server.log

    server.start()
    log = Client(server.base_url, server.operator_token).get("/v1/agents/busy/log?limit=5000").json["records"]
    posted = [record["seq"] for record in log if record["kind"] == "event"]
    assert set(senders.acknowledged) <= set(posted)
    for one in listeners:
        one.read(len(posted))
        assert one.seqs == posted


@pytest.fixture
async def live(ledger: Ledger, agent: Caller, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """A live stream of a ledger behind the proxy, once the agent is there."""
    for module in (poller, feed_module):
        monkeypatch.setattr(module, "AWAY_SECS", 0.05)
    monkeypatch.setattr(poller, "POLL_SECS", 0.05)
    cursor = await ledger.feed.from_now(agent.tenant)
    async with aclosing(ledger.feed.live(agent.tenant, cursor, ALL)) as stream:
        yield stream


async def test_g27_a_stream_waits_for_a_database_that_is_away(
    live: Live, twin: Caller, proxy: Proxy, database: Database
) -> None:
    """What others write meanwhile is told when it is back, once."""

    async def told(count: int) -> list[int]:
        return [json.loads((await anext(live)).event or "{}")["data"]["seq"] for _ in range(count)]

    async with asyncio.timeout(30):
        await twin.ask()
        assert await told(2) == [2, 3]
        for _ in range(rounds(2, 10)):
            following = asyncio.ensure_future(told(2))
            proxy.lead_to("127.0.0.1", 1)
            proxy.cut()
            await twin.ask()
            # It has tried in vain when the proxy was asked for connections that it could not make.
            before = proxy.refused
            while proxy.refused < before + 2:
                await asyncio.sleep(0.01)
            assert not following.done()
            proxy.lead_to(database.server.host, database.server.port)
            first, second = await following
            assert second == first + 1


def test_another_process_delivers_what_one_that_died_did_not(
    database: Database, start_server: StartServer
) -> None:
    env = {"TRAILS_WEBHOOK_ALLOW": "127.0.0.0/8"}
    one = start_server(env=env)
    client = Client(one.base_url, one.operator_token)
    client.create("busy", None)
    with receiving() as receiver:

        def killing(delivered: Delivered) -> int:
            """It has the sixth, and whoever sent it dies before it hears of that."""
            if delivered.place[1] == 6:
                receiver.answer = lambda _: 204
                is_posted.wait(SECS)
                one.kill()
            return 204

        is_posted, receiver.answer = threading.Event(), killing
        made = client.post("/v1/webhooks", {"name": "desk", "url": receiver.url, "agents": ["busy"]})
        assert made.status == 200, made.raw
        for _ in range(10):
            client.post("/v1/agents/busy/events", event())
        is_posted.set()
        receiver.wait_for(6)
        asyncio.run(_let_go(database.admin_url))
        client = Client(start_server(env=env).base_url, one.operator_token)
        for _ in range(5):
            client.post("/v1/agents/busy/events", event())
        receiver.wait(lambda: {one.place[1] for one in receiver.taken} == set(range(1, 16)))
        told = [(one.place[1], one.headers["webhook-id"]) for one in receiver.taken]
    assert [seq for seq, _ in told[:6]] == [1, 2, 3, 4, 5, 6]
    again = [seq for seq, _ in told[6:]]
    assert again == list(range(again[0], 16)), "in order, from where the one that died had noted it was"
    assert again[0] <= 6, "nobody noted that the sixth was taken"
    assert len(set(told)) == 15, "what comes again has its id"


async def _let_go(url: str) -> None:
    """As if the minute had passed for which nobody else takes what a process holds."""
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE trails.webhook_progress SET lease_until = '1970-01-01'")
    await connection.close()
