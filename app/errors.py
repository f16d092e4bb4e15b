"""Every error that this project raises on purpose, in one tree.

::

    TrailsError
    ├── BadRequestError             what was sent cannot be read or breaks a limit
    │   ├── InvalidJsonError        not strict JSON (names the place)
    │   ├── InvalidPolicyError      a policy document with a flaw (names the field)
    │   └── InvalidMemberError      a trace or an event with a flaw (names the node and the member)
    ├── UnauthorizedError           no token, or one that is not valid
    │   └── EndedKeyError           one that was, told to who proves to hold it
    ├── ForbiddenError              a valid token that may not do this
    ├── MisdirectedError            meant for another service: called by a name that is not ours
    ├── NotFoundError               no such thing for this caller
    │   └── UnknownActionError
    ├── ConflictError               the request is sound, the present state forbids it
    │   ├── AgentExistsError
    │   ├── NameInUseError          an agent called as a key
    │   ├── InvalidStateError
    │   ├── ClaimRefusedError       an action that may not be carried out (now, so, or again)
    │   ├── AlreadyTerminatedError
    │   └── IdempotencyConflictError
    ├── CursorGoneError         a place in the feed at which this database cannot go on
    ├── PayloadTooLargeError
    ├── AnswerTooLargeError         what was asked for is more than one answer holds
    ├── UnsupportedMediaTypeError
    ├── TooManyRequestsError
    ├── QuarantinedError            the agent's chain does not verify: nothing is allowed
    │   └── TenantQuarantinedError  the tenant's administration does not: no key of it is accepted
    ├── UnavailableError            passing trouble; trying again is right
    │   └── StaleChainError         another writer was faster (handled inside the ledger)
    ├── ChainError                  a record or chain that does not verify
    │   ├── FormatError             not a record of this format
    │   ├── OrderError              seq is not the next one: a gap or a swap
    │   ├── ForkError               a seq or a predecessor used twice
    │   ├── LinkError               prev_hash is not the predecessor's hash
    │   ├── ContentError            the hash is not that of the text
    │   ├── SignatureError          not signed by the key in force
    │   ├── MirrorError             a column says something else than the signed text
    │   └── UnknownKindError        a valid record whose kind this version does not know
    ├── KeyMaterialError            a key that is missing, malformed or weak
    └── StartupError                the service must not start like this

Domain code knows no HTTP: ``app.http.problems`` maps each leaf to a status, and a test checks that no
leaf lacks its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class TrailsError(Exception):
    """Root of all errors raised on purpose. ``str(error)`` is a sentence for the caller."""

    code = "internal"
    """Stable machine-readable code, the ``code`` of the problem document."""

    @property
    def message(self) -> str:
        """The sentence for the caller: what happened and what to do."""
        return str(self)


class BadRequestError(TrailsError):
    """What was sent cannot be read, or breaks a documented limit."""

    code = "bad_request"


class InvalidJsonError(BadRequestError):
    """The bytes are not one strict JSON document; ``place`` says where."""

    def __init__(self, reason: str, place: str = "") -> None:
        self.reason = reason
        self.place = place
        super().__init__(f"{reason} at {place}" if place else reason)


class InvalidPolicyError(BadRequestError):
    """A policy document with a flaw; ``field`` names it as a path such as ``tools.search.cost``."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"policy: {field}: {reason}")


class InvalidMemberError(BadRequestError):
    """A trace or an event with a flaw; ``field`` names it as a path such as ``trace_tree[3].parent_id``.

    ``told`` is how the sentence names it when it can say more, such as the id of the node.
    """

    def __init__(self, field: str, reason: str, told: str = "") -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{told or field}: {reason}")


class UnauthorizedError(TrailsError):
    """No credentials, or none that are valid. Never says which."""

    code = "unauthorized"

    def __init__(
        self, message: str = "missing or invalid bearer token; send Authorization: Bearer <token>"
    ) -> None:
        super().__init__(message)


class EndedKeyError(UnauthorizedError):
    """A token that was valid and is no more: for a caller who has proven its secret, and for nobody else."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; ask an operator for another one")


class ForbiddenError(TrailsError):
    """The token is valid and may not do this."""

    code = "forbidden"

    def __init__(self, message: str = "this token may not access this resource") -> None:
        super().__init__(message)


class MisdirectedError(TrailsError):
    """Called by a name that this service does not have."""

    code = "misdirected"


class NotFoundError(TrailsError):
    """No such thing for this caller; another tenant's thing gives the same answer."""

    code = "not_found"


class UnknownActionError(NotFoundError):
    """No action of this id in the agent's chain."""

    code = "unknown_action"

    def __init__(self, action_id: str) -> None:
        self.action_id = action_id
        super().__init__(f"unknown action: {action_id}")


class ConflictError(TrailsError):
    """The request is sound, but the present state forbids it."""

    code = "conflict"


class AgentExistsError(ConflictError):
    """The agent's id is taken. Ids are never used again."""

    code = "agent_exists"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"agent {agent_id} already exists; agent ids are not used again")


class NameInUseError(ConflictError):
    """Agents are not created whose ids are what keys in use are called; ``agent_ids`` are they.

    On record an agent's actor is its id, a key's its name: two of them must not look the same.
    """

    code = "name_in_use"

    def __init__(self, agent_ids: Sequence[str]) -> None:
        self.agent_ids = agent_ids
        told = ", ".join(agent_ids[:_MAX_TOLD]) + (", …" if len(agent_ids) > _MAX_TOLD else "")
        super().__init__(
            f"agent {told} is not created: a key in use is called so, and the actors on record would look "
            "the same; choose another id"
        )


_MAX_TOLD = 5


class InvalidStateError(ConflictError):
    """The action is not in a state that permits this; ``status`` is its present one."""

    code = "invalid_state"

    def __init__(self, action_id: str, status: str) -> None:
        self.action_id = action_id
        self.status = status
        super().__init__(f"action {action_id} is {status}; operation not permitted")


class ClaimRefusedError(ConflictError):
    """An action is not to be carried out as claimed; ``reason`` is ``{code, …}``, as it is on record."""

    code = "claim_refused"

    def __init__(self, action_id: str, reason: Mapping[str, object]) -> None:
        self.action_id = action_id
        self.reason = reason
        self.code = str(reason["code"])
        told = _CLAIM_REFUSED.get(self.code, self.code)
        super().__init__(f"action {action_id} is not to be carried out: {told}")


_CLAIM_REFUSED = {
    "not_allowed": "it is not allowed",
    "completed": "its outcome is on record",
    "already_claimed": "it was claimed before, and an action is carried out once",
    "terminated": "the agent is terminated",
    "approval_expired": "the time of its approval is over; ask again",
    "claim_mismatch": "tool and input are not exactly what was allowed",
}


class AlreadyTerminatedError(ConflictError):
    """The agent was terminated before; termination is permanent."""

    code = "already_terminated"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"agent is already terminated: {reason}")


class IdempotencyConflictError(ConflictError):
    """The Idempotency-Key was used before with another body."""

    code = "idempotency_conflict"

    def __init__(self) -> None:
        super().__init__("this Idempotency-Key was used with another body; use a new key for a new request")


class CursorGoneError(TrailsError):
    """A cursor of the feed is genuine, but this database cannot go on there without passing records over."""

    code = "cursor_gone"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"this cursor cannot be gone on with: {why}. Begin again with from=<time>, some minutes before "
            "the last record you have, or with from=start; an event that you have has the same id"
        )


class PayloadTooLargeError(TrailsError):
    """The body is larger than the documented limit (bytes)."""

    code = "payload_too_large"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the body is larger than {limit} bytes")


class AnswerTooLargeError(TrailsError):
    """What was asked for is more than one answer holds; the message says how to get it in parts."""

    code = "answer_too_large"


class UnsupportedMediaTypeError(TrailsError):
    """The body's content type is not one that this route reads."""

    code = "unsupported_media_type"


class TooManyRequestsError(TrailsError):
    """A limit on how much may wait or come in at once; try again later."""

    code = "too_many_requests"


class QuarantinedError(TrailsError):
    """The agent's chain does not verify; it answers nothing until an operator has looked."""

    code = "quarantined"
    what = "agent log failed verification"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{self.what}: {reason}")


class TenantQuarantinedError(QuarantinedError):
    """A tenant's administration chain does not verify: nobody knows which of its keys were revoked."""

    what = (
        "the record of this tenant's administration failed verification, so that none of its API keys is "
        "accepted and nothing is written for it"
    )


class UnavailableError(TrailsError):
    """Passing trouble (database away, overload): nothing was allowed; trying again is right."""

    code = "unavailable"


class StaleChainError(UnavailableError):
    """Another writer appended first. The ledger reads on and decides again."""


class ChainError(TrailsError):
    """A record or chain that does not verify.

    ``seq`` is the first bad position (None when the record does not even say one), ``fault`` the class of
    the failure: format, order, fork, link, content, signature, mirror, fold or kind.
    """

    code = "quarantined"
    fault = "chain"

    def __init__(self, reason: str, *, seq: int | None = None) -> None:
        self.reason = reason
        self.seq = seq
        super().__init__(reason if seq is None else f"seq {seq}: {reason}")


class FormatError(ChainError):
    """Not a record of the format ``lineage-audit-v1``."""

    fault = "format"


class OrderError(ChainError):
    """``seq`` is not the next one: a record is missing or out of place."""

    fault = "order"


class ForkError(ChainError):
    """The same ``seq`` or the same predecessor stands twice in one chain."""

    fault = "fork"


class LinkError(ChainError):
    """``prev_hash`` is not the predecessor's hash."""

    fault = "link"


class ContentError(ChainError):
    """``hash`` is not the SHA-256 of the signed text."""

    fault = "content"


class SignatureError(ChainError):
    """The signature is not one of the key in force, or not in its one canonical form."""

    fault = "signature"


class MirrorError(ChainError):
    """A column of the row says something else than the signed text."""

    fault = "mirror"


class FoldError(ChainError):
    """A snapshot says something else than the records before it come to."""

    fault = "fold"


class UnknownKindError(ChainError):
    """A valid record of a kind that this version does not know: the guard decides nothing on it."""

    fault = "kind"


class KeyMaterialError(TrailsError):
    """A key that is missing, malformed, weak, or does not open under the master key."""


class StartupError(TrailsError):
    """The service must not start like this; the message says what to change."""
