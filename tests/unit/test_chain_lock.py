"""One agent's requests wait for each other, but not for ever (case G27)."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from app.errors import UnavailableError
from app.ledger import chain
from app.ledger.chain import Chain, ChainId


async def test_g27_waiting_for_others_on_the_same_agent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "LOCK_SECS", 0.01)
    one = Chain(ChainId(uuid4(), "agent", uuid4(), guarded=True))
    async with asyncio.timeout(2), one.exclusively():  # without a bound of its own it would wait for ever
        with pytest.raises(UnavailableError, match="other requests on this agent"):
            async with one.exclusively():
                raise AssertionError("two at a time")
    async with one.exclusively():
        assert one.lock.locked()
    assert not one.lock.locked()
