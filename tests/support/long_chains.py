"""Long chains, made cheaply: honest rows, signed with the tenant's key, many in one statement."""

from __future__ import annotations

import secrets

import db.ledger
from app.ledger import Ledger
from db.pool import create_pool
from tests.support.ledgers import Caller, event, next_rows

AT_ONCE = 1_000


async def lengthen(ledger: Ledger, agent: str, records: int, *, chars: int = 8) -> None:
    """Appends so many events to an agent's chain, each with so much text that cannot be compressed."""
    caller = Caller(ledger, agent)
    for first in range(0, records, AT_ONCE):
        count = min(AT_ONCE, records - first)
        drafts = [event(n=first + n, text=secrets.token_urlsafe(chars)) for n in range(count)]
        await db.ledger.append(ledger._pool, await next_rows(caller, *drafts))


async def fill(url: str, master_key: bytes, agent: str, records: int, *, chars: int = 8) -> None:
    """The same on a database, with an observed agent that is made for it."""
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=master_key)
        await Caller(ledger, agent).observe()
        await lengthen(ledger, agent, records, chars=chars)
        await ledger.close()
