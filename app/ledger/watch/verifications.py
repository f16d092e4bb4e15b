"""Verifications that run in the background of this process, so that a person sees how far one has come.

One run a chain: whoever asks while it goes on shares it, and is on record with it. A few run at once, some
wait their turn, more are refused. What came out is remembered for a while, for the page that shows it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from app.errors import TooManyRequestsError, TrailsError

if TYPE_CHECKING:
    from uuid import UUID

    from app.chain.strict import JsonObject
    from app.principal import Grant

AT_ONCE: Final = 2
"""Runs that go on at the same moment in one process."""

MOST_WAITING: Final = 16
"""Runs that are not over yet, in one process."""

KEPT: Final = 200
"""Runs that are over and remembered."""

Progress = Callable[[int], None]
"""Hears how many records are done."""

Verify = Callable[["Grant", Progress], Awaitable["JsonObject"]]
"""Verifies the chain of the grant's agent and tells how far it is."""

PutOnRecord = Callable[["Grant", "JsonObject"], Awaitable[None]]
"""Records that the grant's holder had a chain verified, with this verdict."""

_log: Final = logging.getLogger("trails.ledger")


class Run:
    """One verification: how far it is, then how it came out.

    Attributes:
        id: names it in addresses.
        done: records that were looked at.
        total: records that the chain had when it began.
        verdict: the answer of ``GET …/verify``, once there is one.
        trouble: why there is none, if it ended without.
        started_at: seconds since 1970.
        asked_by: grants of those who want it, by their key.
    """

    def __init__(self, grant: Grant, total: int) -> None:
        self.id = secrets.token_hex(8)
        self.done = 0
        self.total = total
        self.verdict: JsonObject | None = None
        self.trouble: str | None = None
        self.started_at = time.time()
        self.ended_at: float | None = None
        self.asked_by = {grant.key: grant}

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.ended_at is not None


class Verifications:
    """The runs of one process."""

    def __init__(self, verify: Verify, put_on_record: PutOnRecord, *, at_once: int = AT_ONCE) -> None:
        self._verify = verify
        self._put_on_record = put_on_record
        self._turns = asyncio.Semaphore(at_once)
        self._runs: OrderedDict[tuple[UUID, str | None], Run] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, grant: Grant, total: int) -> Run:
        """The run of the grant's agent that goes on, which the caller joins, or a new one.

        Args:
            grant: to read the agent's log.
            total: records that the chain has.

        Raises:
            TooManyRequestsError: too many are waiting.
        """
        place = grant.tenant_id, grant.agent_id
        run = self._runs.get(place)
        if run is not None and not run.is_over:
            run.asked_by.setdefault(grant.key, grant)
            return run
        if len(self._tasks) >= MOST_WAITING:
            raise TooManyRequestsError("too many verifications are waiting for their turn; try again soon")
        run = self._runs[place] = Run(grant, total)
        self._runs.move_to_end(place)
        task = asyncio.create_task(self._carry_out(grant, run), name="verification")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._forget_oldest()
        return run

    def last(self, grant: Grant) -> Run | None:
        """The newest run of the grant's agent that this process knows."""
        return self._runs.get((grant.tenant_id, grant.agent_id))

    async def close(self) -> None:
        """Ends what is going on."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _carry_out(self, grant: Grant, run: Run) -> None:
        def progress(done: int) -> None:
            run.done = done

        try:
            async with self._turns:
                verdict = await self._verify(grant, progress)
            told: set[str | None] = set()
            while missing := [key for key in run.asked_by if key not in told]:  # some may join meanwhile
                for key in missing:
                    await self._put_on_record(run.asked_by[key], verdict)
                    told.add(key)
            run.verdict = verdict
        except TrailsError as error:
            run.trouble = error.message
        except asyncio.CancelledError:
            run.trouble = "the service stopped before it was done"
            raise
        except Exception:  # noqa: BLE001  a defect ends this run alone, and its page says so
            run.trouble = "it ended by a defect of the service; the service's log says more"
            _log.exception("a verification of %s ended by a defect", grant.agent_id)
        finally:
            run.ended_at = time.time()

    def _forget_oldest(self) -> None:
        over = [place for place, run in self._runs.items() if run.is_over]
        for place in over[: max(len(over) - KEPT, 0)]:
            del self._runs[place]
