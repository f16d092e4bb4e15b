"""Sending the same again, a bounded number of times."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from app.client.backend import Refusal

R = TypeVar("R")

ATTEMPTS: Final = 4
"""Times that one question is sent before no answer is a no: two seconds or so of trouble are survived."""

_FIRST_PAUSE_SECS: Final = 0.1
_PAUSE_GROWTH: Final = 3.0
_LONGEST_PAUSE_SECS: Final = 2.0


async def persistently(
    send: Callable[[], Awaitable[R]], attempts: int = ATTEMPTS, until: float | None = None
) -> R:
    """The answer to ``send``, which is tried again while the trouble is passing.

    Args:
        send: one attempt.
        attempts: at most so many.
        until: by ``time.monotonic``: nothing is begun after it, since nobody waits for the answer any more.

    Raises:
        Refusal: the last one.
    """
    pause = _FIRST_PAUSE_SECS
    for _ in range(attempts - 1):
        try:
            return await send()
        except Refusal as refusal:
            asked = refusal.retry_after_secs or 0.0
            if not refusal.passing or asked > _LONGEST_PAUSE_SECS:
                raise
            # Clients that failed together do not come back together.
            secs = max(asked, pause) * random.uniform(0.8, 1.2)  # noqa: S311  no secret
            if until is not None and time.monotonic() + secs >= until:
                raise
        await asyncio.sleep(secs)
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_SECS)
    return await send()
