"""What the guard answers to a program that asks, and the error of one that was not allowed.

The three answers are values. Only ``Allowed`` lets a tool run; what went wrong on the way to the service is
``Denied`` as well, with the code ``unavailable``: no answer is a no.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from app.client.errors import ClientError

OutcomeStatus: TypeAlias = Literal["success", "failure", "unknown"]
"""How an action went, as an agent may report it; ``unknown``: nobody can tell whether it happened."""

UNAVAILABLE = "unavailable"
"""Code of a denial that no guard decided: the service was not reached, or its answer made no sense."""

ALREADY_CLAIMED = "already_claimed"
"""Code of a denial of an approved action that somebody else carries out: an approval is for one run."""

APPROVAL_TIMED_OUT = "approval_timed_out"
"""Code that ``Pending`` shows as its reason where a caller needs one: nobody decided in time."""


class Allowed(msgspec.Struct, frozen=True):
    """The action may be carried out, once."""

    action_id: str
    cost: int
    """What was charged for it, for ever."""
    remaining: int | None = None
    """What this left of the budget; None after an approval, which does not say it."""


class Denied(msgspec.Struct, frozen=True):
    """The action must not be carried out."""

    action_id: str | None
    """Its id in the record; None when the question itself was not recorded, as far as is known."""
    reason: Mapping[str, Any]
    """``{code, …}``: the guard's reason, or what the service refused; see the guides' tables."""
    retry_after_secs: float | None = None
    """After how long the same may be allowed, when only the rate limit stood in the way."""

    @property
    def code(self) -> str:
        """The reason's code, such as ``tool_not_allowed`` or ``unavailable``."""
        return str(self.reason.get("code", "denied"))


class Pending(msgspec.Struct, frozen=True):
    """The action waits for a person, and must not be carried out meanwhile."""

    action_id: str

    @property
    def code(self) -> str:
        """``approval_timed_out``: why a caller who waits no longer may not act."""
        return APPROVAL_TIMED_OUT

    @property
    def reason(self) -> Mapping[str, Any]:
        """The reason of a caller who waits no longer."""
        return {"code": self.code}


Decision: TypeAlias = Allowed | Denied | Pending


class ActionDenied(ClientError):  # noqa: N818  the name says what happened; nothing is in error
    """The tool was not run. ``decision`` says why: ``Denied``, or ``Pending`` when nobody decided in time."""

    def __init__(self, tool: str, decision: Denied | Pending) -> None:
        self.tool = tool
        self.decision = decision
        super().__init__(explain(tool, decision))

    def __reduce__(self) -> tuple[type[ActionDenied], tuple[str, Denied | Pending]]:
        """Lets the error cross to another process."""
        return (type(self), (self.tool, self.decision))


class OutcomeRefusedError(ClientError):
    """The service does not take this outcome, for instance since there is another one already."""

    def __init__(self, action_id: str, code: str, message: str) -> None:
        self.action_id = action_id
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")

    def __reduce__(self) -> tuple[type[OutcomeRefusedError], tuple[str, str, str]]:
        """Lets the error cross to another process."""
        return (type(self), (self.action_id, self.code, self.message))


_ASKING_AGAIN: Final[Mapping[str, str]] = {
    "terminated": "asking again will not help: this agent was ended, and nothing is allowed to it any more",
    "tool_not_allowed": "asking again will not help",
    "tool_call_limit": "asking again will not help: this tool was called as often as it may be",
    "rate_limited": "asking again may help later: there were too many actions in a short time",
    "insufficient_budget": "asking again for the same will not help; what costs less may be allowed",
    "rejected": "asking again for the same will not help: a person said no",
    ALREADY_CLAIMED: "asking again will not help: another caller carries it out",
    "completed": "asking again will not help: it was carried out, and its outcome is on record",
    "claim_mismatch": "asking again for what is to be run now waits for an approval of its own",
    "approval_expired": "asking again waits for another approval",
    UNAVAILABLE: "the guard could not be asked, and without its answer nothing is run; asking again may help "
    "later",
}
_ASKING_THE_SAME: Final = "asking again for the same will not help"


def explain(tool: str, decision: Denied | Pending) -> str:
    """One sentence for people and models: which tool was not run, why, and whether asking again can help.

    Every adapter gives it to the model as it is.
    """
    if isinstance(decision, Pending):
        return (
            f"{tool} was not run: {decision.action_id} still waits for the approval of a person; "
            "asking again for the same waits for the same approval"
        )
    details = {name: value for name, value in decision.reason.items() if name != "code"}
    said = ", ".join(f"{name}: {value}" for name, value in details.items())
    advice = _ASKING_AGAIN.get(decision.code, _ASKING_THE_SAME)
    if decision.retry_after_secs is not None:
        advice = f"asking again may help after {decision.retry_after_secs:g} seconds"
    return f"{tool} was not run: denied, {decision.code}{f' ({said})' if said else ''}; {advice}"


def permitted(tool: str, decision: Decision) -> Allowed:
    """The decision, when it lets the tool run.

    Raises:
        ActionDenied: it does not.
    """
    if isinstance(decision, Allowed):
        return decision
    raise ActionDenied(tool, decision)
