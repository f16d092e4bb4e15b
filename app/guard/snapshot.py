"""A guard's state as a snapshot record says it, and back: what a reader who begins there has to know.

What is written here stays readable: a state that gains a member needs a new form beside this one, since
snapshots of before are on record for ever.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from app.chain.record import Head
from app.chain.strict import JsonObject, JsonValue
from app.errors import InvalidPolicyError
from app.guard.fields import FieldError, as_object
from app.guard.policy import Policy
from app.guard.state import GuardState, Pending


class _Waiting(Pending, frozen=True, kw_only=True):
    """An action that waits, with its id."""

    action_id: str


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The members of a state as they are written; ``pending`` is in order of ``seq``."""

    spent: int
    scar_score: int
    scar_count: int
    scar_digest: str
    terminated: str | None
    action_count: int
    allowed: int
    denied: int
    tool_calls: dict[str, int]
    recent: tuple[int, ...]
    last_claim: int
    refused_claims: tuple[int, ...]
    pending: tuple[_Waiting, ...]
    policy: dict[str, Any] | None


_AS_IT_IS: Final = frozenset(_Written.__struct_fields__) - {"pending", "policy"}


def state_to_json(state: GuardState) -> JsonObject:
    """The state between two acts, without its head, which is where the snapshot stands.

    Raises:
        ValueError: an action was requested and is not decided yet: no snapshot stands in an act.
    """
    if state.requested is not None:
        raise ValueError("a snapshot does not stand between a request and its decision")
    waiting = [_Waiting(action_id=key, **_members(pending)) for key, pending in state.pending.items()]
    written = _Written(
        **{name: getattr(state, name) for name in _AS_IT_IS},
        pending=tuple(sorted(waiting, key=lambda one: one.seq)),
        policy=None if state.policy is None else state.policy.to_json(),
    )
    plain: JsonObject = msgspec.json.decode(msgspec.json.encode(written))
    return plain


def state_from_json(value: JsonValue, head: Head) -> GuardState:
    """The state that ``state_to_json`` wrote, at ``head``.

    Raises:
        FieldError: names the member that is missing, unknown or malformed.
    """
    try:
        written = msgspec.convert(as_object(value, "state"), _Written)
        policy = None if written.policy is None else Policy.parse(written.policy)
    except (msgspec.ValidationError, InvalidPolicyError) as error:
        raise FieldError("state", str(error)) from error
    return GuardState(
        **{name: getattr(written, name) for name in _AS_IT_IS},
        policy=policy,
        pending={one.action_id: Pending(**_members(one)) for one in written.pending},
        head=head,
    )


def _members(pending: Pending) -> dict[str, Any]:
    return {name: getattr(pending, name) for name in Pending.__struct_fields__}
