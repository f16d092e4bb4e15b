"""Waiting for a person: looking again in growing intervals, and saying once what is waited for."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Final

import msgspec

from app.client.backend import Backend, Refusal
from app.client.decisions import CLAIMED, Allowed, Decision, Denied, Pending

_FIRST_POLL_SECS: Final = 0.25
_LAST_POLL_SECS: Final = 5.0
_POLL_GROWTH: Final = 1.5

_WAITING: Final = frozenset({"requested", "pending_approval"})

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


class Look:
    """One look at an action that waits; the claim is this waiting's own, however often it looks.

    Args:
        action_id: the action.
        denied: is told when it was denied.
    """

    def __init__(self, action_id: str, denied: Callable[[Denied], None]) -> None:
        self._action_id = action_id
        self._denied = denied
        self._claimant = uuid.uuid4().hex
        self._tool = ""
        self._how = ""
        self._told = False

    async def __call__(self, backend: Backend) -> Decision:
        """Looks. Passing trouble leaves it pending."""
        self._how = backend.how_to_approve(self._action_id)
        try:
            return await self._found(backend)
        except Refusal as refusal:
            return Pending(self._action_id) if refusal.passing else refusal.denied(self._action_id)

    async def _found(self, backend: Backend) -> Decision:
        standing = await backend.standing(self._action_id)
        self._tool = standing.tool
        if standing.status in _WAITING:
            return Pending(self._action_id)
        if standing.status == "denied":
            denied = Denied(self._action_id, standing.reason or {"code": "denied"})
            self._denied(denied)
            return denied
        if standing.status == "allowed" and await backend.claim(self._action_id, self._claimant):
            return Allowed(self._action_id, standing.cost)
        return Denied(self._action_id, {"code": CLAIMED, "error": "another caller carries it out"})

    def tell(self, secs: float, on_pending: OnPending | None) -> None:
        """Says what is waited for, the first time."""
        if self._told:
            return
        self._told = True
        held = Held(self._action_id, self._tool, self._how, secs)
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
