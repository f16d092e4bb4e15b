"""Walks through the feed while transactions stay open and commit late (case H33): each record exactly once.

Readers page, stop anywhere, come back with the cursor that they have, and listen. Nothing is told twice in
one walk, nothing is left out, and of each chain everything comes in its order.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from uuid import UUID

import pytest

from app.ledger.chain import Chains
from app.ledger.feed import batches, poller
from app.ledger.feed.batches import Wanted
from app.ledger.feed.feed import Feed, Told
from db.pool import Pool, create_pool
from tests.support.faults import rounds
from tests.support.late_commits import MOST_OPEN, LateCommits
from tests.support.pgbouncer import running_pooler
from tests.support.postgres import Database
from tests.support.rows import register_tenant

KEY = bytes(range(32))
ALL = Wanted()
WALKS = rounds(2, 100)
STEPS = rounds(50, 400)

Place = tuple[UUID, int]


def place_of(event: str) -> Place:
    log_uuid, _, seq = json.loads(event)["id"].partition("/")
    return UUID(log_uuid), int(seq)


def feed_of(pool: Pool) -> Feed:
    """As a process of its own has it: a cursor is all that goes from one to the other."""
    return Feed(pool, Chains(pool, capacity=10), KEY)


def check(told: Sequence[Place], committed: Sequence[Place]) -> None:
    """Each once, and each chain in its order."""
    assert len(set(told)) == len(told), "a record was told twice"
    assert set(told) == set(committed)
    by_chain: dict[UUID, list[int]] = {}
    for log_uuid, seq in told:
        by_chain.setdefault(log_uuid, []).append(seq)
    assert all(seqs == sorted(seqs) for seqs in by_chain.values())


class Reader:
    """Pages through the feed, each time as if it came back after a while."""

    def __init__(self, pool: Pool, tenant_id: UUID, chance: random.Random) -> None:
        self.pool = pool
        self.tenant_id = tenant_id
        self.chance = chance
        self.cursor = ""
        self.told: list[Place] = []
        self.stops: list[tuple[str, int]] = []
        """Cursors it has had, each with how much was told before."""

    async def begin(self) -> None:
        feed = feed_of(self.pool)
        self.cursor = feed.seal(self.tenant_id, await feed.from_start(self.tenant_id))

    async def page(self) -> bool:
        self.stops.append((self.cursor, len(self.told)))
        feed = feed_of(self.pool)
        cursor = await feed.resumed(self.tenant_id, self.cursor)
        page = await feed.page(self.tenant_id, cursor, ALL, self.chance.randint(1, 9))
        self.told += [place_of(event) for event in page.events]
        self.cursor = page.next
        return page.more

    async def read_all(self) -> None:
        while await self.page():
            pass


@pytest.fixture(params=[1, 2, 100])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages end where nobody would expect it: few chains at once, and little text."""
    monkeypatch.setattr(batches, "SLICE", request.param)
    monkeypatch.setattr(batches, "SLICES", 3)
    monkeypatch.setattr(batches, "PAGE_BYTES", 900 * request.param)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(WALKS))
async def test_h33_every_record_comes_exactly_once_per_walk(pool: Pool, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  no secret
    tenant_id = await register_tenant(pool, "late")
    writers = LateCommits(pool, tenant_id, chance)
    reader = Reader(pool, tenant_id, chance)
    await reader.begin()
    for _ in range(STEPS):
        await writers.step()
        if chance.random() < 0.4:
            await reader.page()
    await writers.end()
    await reader.read_all()
    assert writers.held_back
    check(reader.told, writers.committed)

    # Whoever comes back to an old cursor gets all that came behind it, in whatever order, and nothing else.
    cursor, before = chance.choice(reader.stops)
    again = Reader(pool, tenant_id, chance)
    again.cursor = cursor
    await again.read_all()
    check(again.told, reader.told[before:])


@pytest.mark.usefixtures("small")
async def test_h33_it_is_the_same_behind_a_pooler(database: Database) -> None:
    """In transaction mode each transaction reaches any of the server's sessions."""
    with running_pooler(database, size=MOST_OPEN + 2) as between:
        async with await create_pool(between.app_url, max_size=8, through_pooler=True) as pool:
            chance = random.Random(1)  # noqa: S311  no secret
            tenant_id = await register_tenant(pool, "late")
            writers, reader = LateCommits(pool, tenant_id, chance), Reader(pool, tenant_id, chance)
            await reader.begin()
            for _ in range(STEPS):
                await writers.step()
                await reader.page()
            await writers.end()
            await reader.read_all()
    check(reader.told, writers.committed)


@pytest.mark.parametrize("seed", range(rounds(2, 40)))
async def test_h33_listeners_get_every_record_once_wherever_they_are_cut_off(
    pool: Pool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "POLL_SECS", 0.01)
    monkeypatch.setattr(poller, "PAGE_ROWS", 5)
    monkeypatch.setattr(poller, "KEPT_PAGES", 2)
    chance = random.Random(seed)  # noqa: S311  no secret
    tenant_id = await register_tenant(pool, "late")
    writers = LateCommits(pool, tenant_id, chance)
    feed = feed_of(pool)
    begun = feed.seal(tenant_id, await feed.from_now(tenant_id))
    over = asyncio.Event()
    told: list[list[Place]] = [[], [], []]
    listeners = [
        asyncio.create_task(Listener(feed, tenant_id, begun, mine, over).run(seed + number))
        for number, mine in enumerate(told)
    ]
    for _ in range(STEPS):
        await writers.step()
        await asyncio.sleep(0.002)
    await writers.end()
    try:
        async with asyncio.timeout(30):
            while not all(len(mine) >= len(writers.committed) for mine in told):
                await asyncio.sleep(0.02)
    finally:
        over.set()
        await asyncio.gather(*listeners)
    for mine in told:
        check(mine, writers.committed)
    assert len(feed.pollers) == 0


class Listener:
    """Listens, is cut off after some events, and comes back with the last cursor that it has."""

    def __init__(
        self, feed: Feed, tenant_id: UUID, cursor: str, told: list[Place], over: asyncio.Event
    ) -> None:
        self.feed = feed
        self.tenant_id = tenant_id
        self.cursor = cursor
        self.told = told
        self.over = over

    async def run(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311  no secret
        while not self.over.is_set():
            cursor = await self.feed.resumed(self.tenant_id, self.cursor)
            stream = self.feed.live(self.tenant_id, cursor, ALL)
            async with aclosing(stream):
                for _ in range(chance.randint(1, 30)):
                    if not await self._hear(stream):
                        return
                    if chance.random() < 0.1:
                        await asyncio.sleep(0.05)  # falls behind

    async def _hear(self, stream: AsyncGenerator[Told]) -> bool:
        following, ends = asyncio.ensure_future(anext(stream)), asyncio.create_task(self.over.wait())
        await asyncio.wait({following, ends}, return_when=asyncio.FIRST_COMPLETED)
        for task in (following, ends):
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if following.cancelled():
            return False
        one = following.result()
        self.cursor = one.cursor
        if one.event is not None:
            self.told.append(place_of(one.event))
        return True
