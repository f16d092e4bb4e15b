"""What a guard client needs of a guard: the service over HTTP, or a ledger in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID

import msgspec

from app.client.decisions import UNAVAILABLE, Allowed, Decision, Denied, OutcomeStatus


class Refusal(Exception):  # noqa: N818  it is an answer: the caller turns it into a denial
    """The guard gave no decision.

    Args:
        code: the service's code; ``unavailable`` when it was not reached or made no sense.
        message: a sentence for people.
        passing: whether sending the same again may help.
        retry_after_secs: when the service said how long to wait first.
    """

    def __init__(
        self, code: str, message: str, *, passing: bool = False, retry_after_secs: float | None = None
    ) -> None:
        self.code = code
        self.passing = passing
        self.retry_after_secs = retry_after_secs
        super().__init__(message)

    @classmethod
    def unavailable(cls, message: str, retry_after_secs: float | None = None) -> Refusal:
        """Passing trouble."""
        return cls(UNAVAILABLE, message, passing=True, retry_after_secs=retry_after_secs)

    def denied(self, action_id: str | None = None) -> Denied:
        """The denial that this is to a caller: without a decision nothing is allowed."""
        return Denied(action_id, {"code": self.code, "error": str(self)})


class Standing(msgspec.Struct, frozen=True):
    """Where an action stands."""

    action_id: str
    status: str
    """requested, pending_approval, allowed, denied or completed."""
    cost: int
    reason: Mapping[str, Any] | None = None
    """Why it was denied."""
    tool: str = ""
    input: Any = None
    claimed_by: str | None = None
    """Whoever claimed it, to carry it out."""


class Outcome(msgspec.Struct, frozen=True):
    """How an action went, as it will be sent, again and again, until it is on record."""

    action_id: str
    status: OutcomeStatus
    detail: str
    key: str
    """Idempotency key: sending it twice is one outcome."""


class Backend(Protocol):
    """A guard that can be asked. Each method raises ``Refusal`` when there is no answer."""

    keeps: bool
    """Whether there is a place that survives this process, so that ``keep`` is worth no second attempt."""

    async def ask(self, body: bytes, key: str) -> Decision:
        """Asks to act with a JSON body; the same ``key`` gets the first decision again."""

    async def standing(self, action_id: str) -> Standing:
        """One action as it stands now."""

    async def claim(self, action_id: str, body: bytes, key: str) -> Allowed:
        """Takes an allowed action for one run of ``{tool, input}``; the same ``key`` gets the same answer."""

    async def report(self, outcome: Outcome) -> None:
        """Puts an outcome on record."""

    async def log_uuid(self) -> UUID:
        """The id of the agent's chain, from which the node ids of its actions follow."""

    def how_to_approve(self, action_id: str) -> str:
        """A sentence that tells a person how to approve an action."""

    def keep(self, outcome: Outcome) -> bool:
        """Keeps an outcome where it survives this process, to be sent later; False where that is nowhere."""

    async def close(self) -> None:
        """Closes connections."""
