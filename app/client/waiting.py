"""Waiting for a person: looking again in growing intervals, saying once what is waited for, and claiming.

An approval is for one run of exactly what was asked. So whoever waited claims the action before it runs:
with tool and input as they are then, and under an Idempotency-Key of this wait alone. An answer to the claim
that got lost is asked for again with that key; the key of another wait is another caller.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec

from app.chain.strict import JsonValue
from app.client.backend import Backend, Refusal, Standing
from app.client.decisions import ALREADY_CLAIMED, Decision, Denied, Pending
from app.client.json_values import Limits, json_value
from app.client.retry import persistently
from app.client.service import encode

_FIRST_POLL_SECS: Final = 0.25
_LAST_POLL_SECS: Final = 5.0
_POLL_GROWTH: Final = 1.5

_WAITING: Final = frozenset({"requested", "pending_approval"})

_WHOLE: Final = Limits(string_bytes=2**40, values=2**40, depth=200)
"""Of an input nothing is cut: what is allowed is what is carried out. Too large a one the service refuses."""

_MAX_UNANSWERED: Final = 100
"""Waits whose claims were not answered that a guard keeps, the youngest."""

_log = logging.getLogger("trails.client")


class Held(msgspec.Struct, frozen=True):
    """An action that a caller waits for, as ``on_pending`` gets it."""

    action_id: str
    tool: str
    """Empty while the service has not said it."""
    how_to_approve: str
    """A sentence for the person who may."""
    secs: float
    """How long it is waited for at most."""


OnPending = Callable[[Held], object]
"""Hears once of each wait, in the thread or task that waits. What it raises is logged and changes nothing."""


class Call(msgspec.Struct, frozen=True):
    """What a caller is about to run: the claim says it as it is when the approval is there."""

    tool: str
    input: Any
    """Anything; see ``app.client.json_values``."""

    @property
    def body(self) -> bytes:
        """The claim of it as it is now."""
        return _claim_body(self.tool, as_recorded(self.input))


class Persistence(msgspec.Struct, frozen=True):
    """How long one claim is sent again before the wait looks whether it is over."""

    attempts: int
    secs: float


class Look:
    """One wait for one action: looks until it is decided, then claims it, always under the same key.

    Args:
        action_id: the action.
        persistence: of the claim.
        denied: is told when it was denied.
    """

    def __init__(self, action_id: str, persistence: Persistence, denied: Callable[[Denied], None]) -> None:
        self.action_id: Final = action_id
        self._persistence = persistence
        self._denied = denied
        self._key = uuid.uuid4().hex
        self._standing: Standing | None = None
        self._claim: bytes | None = None
        self._tool = ""
        self._how = ""
        self._told = False
        self.unanswered = False
        """Whether a claim was sent whose answer is not known."""

    async def __call__(self, backend: Backend) -> Decision:
        """Looks, or claims what ``prepared`` says. Passing trouble leaves it pending."""
        self._how = backend.how_to_approve(self.action_id)
        try:
            if self._claim is None:
                return await self._found(backend)
            return await self._claimed(backend, self._claim)
        except Refusal as refusal:
            return Pending(self.action_id) if refusal.passing else refusal.denied(self.action_id)

    def prepared(self, call: Call | None) -> bool:
        """Writes down what is claimed, once the action is allowed; True when this look did so.

        Called where the tool will run, since reading its input runs the caller's code.

        Args:
            call: what will run; None: what is on record as asked.
        """
        if self._standing is None or self._claim is not None:
            return False
        asked = self._standing
        self._claim = _claim_body(asked.tool, asked.input) if call is None else call.body
        return True

    def claims(self, call: Call | None) -> bool:
        """Whether the claim that it sends is that of ``call``."""
        return call is None or self._claim == call.body

    async def _found(self, backend: Backend) -> Decision:
        standing = await backend.standing(self.action_id)
        self._tool = standing.tool
        if standing.status == "denied":
            denied = Denied(self.action_id, standing.reason or {"code": "denied"})
            self._denied(denied)
            return denied
        if standing.claimed_by is not None:
            return Denied(self.action_id, {"code": ALREADY_CLAIMED, "by": standing.claimed_by})
        if standing.status == "allowed":
            self._standing = standing
        elif standing.status not in _WAITING:
            return Denied(self.action_id, {"code": standing.status})
        return Pending(self.action_id)

    async def _claimed(self, backend: Backend, body: bytes) -> Decision:
        self.unanswered = True
        until = time.monotonic() + self._persistence.secs
        try:
            allowed = await persistently(
                lambda: backend.claim(self.action_id, body, self._key), self._persistence.attempts, until
            )
        except Refusal as refusal:
            self.unanswered = refusal.passing
            raise
        self.unanswered = False
        return allowed

    def tell(self, secs: float, on_pending: OnPending | None) -> None:
        """Says what is waited for, the first time."""
        if self._told:
            return
        self._told = True
        held = Held(self.action_id, self._tool, self._how, secs)
        _log.warning(
            "%s (%s) waits for the approval of a person, %.0f s at most; %s",
            held.tool or "a tool", held.action_id, held.secs, held.how_to_approve,
        )  # fmt: skip
        if on_pending is None:
            return
        try:
            on_pending(held)
        except Exception:  # noqa: BLE001  whatever the caller's hook does wrong, the wait goes on
            _log.exception("on_pending failed; %s is waited for all the same", held.action_id)


class Unanswered:
    """Waits of one guard that ended before the answer to their claim came; the next wait goes on with it."""

    def __init__(self) -> None:
        self._looks: dict[tuple[int, str], Look] = {}

    def take(self, action_id: str, call: Call | None) -> Look | None:
        """The one of this action, to one caller, who is about to run what it claims.

        Not that of a parent process, which goes on with its own.
        """
        look = self._looks.pop((os.getpid(), action_id), None)
        return look if look is not None and look.claims(call) else None

    def keep(self, look: Look) -> None:
        """Keeps it, and the youngest of the others."""
        self._looks[os.getpid(), look.action_id] = look
        for oldest in list(self._looks)[:-_MAX_UNANSWERED]:
            self._looks.pop(oldest, None)


class Waiting:
    """The intervals of one wait.

    Args:
        secs: how long it may take.
    """

    def __init__(self, secs: float) -> None:
        self.secs: Final = secs
        self._until = time.monotonic() + secs
        self._next = _FIRST_POLL_SECS

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._until - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._until

    def interval(self) -> float:
        """Seconds to sleep before the next look."""
        now, self._next = self._next, min(self._next * _POLL_GROWTH, _LAST_POLL_SECS)
        return min(now, self.left)


def _claim_body(tool: str, value: JsonValue) -> bytes:
    return encode({"tool": tool, "input": value})


def as_recorded(value: object) -> JsonValue:
    """An input as the record will have it, whole."""
    return json_value(value, _WHOLE)
