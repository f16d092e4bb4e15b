"""Where in a session's tree a guarded call stands: what the tracker knows of the caller's context.

The service itself writes a guarded call as a node, with its outcome or denial. The local tree shows the same
node, under the same id, and never sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from app.chain.strict import JsonObject, JsonValue
from app.client.decisions import OutcomeStatus

if TYPE_CHECKING:
    from app.client.tracker import Session

_NODE_STATUS: Final[dict[OutcomeStatus, str]] = {
    "success": "success",
    "failure": "failed",
    "unknown": "unknown",
}
"""The node's ``outputs.status`` for an outcome, as the service writes it."""


class GuardedCall:
    """A guarded call as a node of the local tree.

    Args:
        node_id: as the service gives it.
        members: ``parent_id``, ``name``, ``inputs`` and ``thought_process``.
        metadata: ``action_id``, ``timestamp`` (of the answer), ``cost`` and ``agent_id``.
    """

    def __init__(self, node_id: UUID, members: JsonObject, metadata: JsonObject) -> None:
        self.node_id: Final = str(node_id)
        self.size: Final = len(msgspec.json.encode(members))
        """About how many bytes it holds."""
        self._members = members
        self._metadata = metadata
        self._outputs: JsonObject | None = None

    def end(self, outputs: JsonObject) -> None:
        """How it ended; a later outcome takes the place of ``unknown``."""
        self._outputs = outputs

    def compiled(self) -> JsonObject:
        """The node as it stands, as JSON."""
        return {
            "node_id": self.node_id,
            "node_type": "TOOL_CALL",
            **self._members,
            "outputs": self._outputs,
            "metadata": self._metadata,
        }


class Place:
    """A session, or nothing without a tracker."""

    def __init__(self, session: Session | None) -> None:
        self._session = session

    @property
    def known(self) -> bool:
        """Whether the calls belong to a session."""
        return self._session is not None

    def now(self) -> tuple[str | None, str | None]:
        """The session, and the node of it whose block the caller is in."""
        return (None, None) if self._session is None else (self._session.session_id, self._session.current)

    def inside(self, node: UUID | None) -> AbstractContextManager[None]:
        """Makes ``node`` the parent of what the block records."""
        return nullcontext() if self._session is None or node is None else self._session.attach(str(node))

    # --- the local tree ----------------------------------------------------------------------------

    def show(self, node: UUID | None, members: JsonObject, metadata: JsonObject) -> None:
        """Puts a call that has just been answered into the local tree."""
        if self._session is not None and node is not None:
            self._session.show(GuardedCall(node, members, metadata))

    def ended(self, node: UUID | None, status: OutcomeStatus, detail: str) -> None:
        """An outcome of it was reported."""
        self._end(node, {"detail": detail, "status": _NODE_STATUS.get(status, status)})

    def denied(self, node: UUID | None, reason: Mapping[str, Any]) -> None:
        """It was denied, at once or by a person."""
        said: JsonValue = dict(reason)
        self._end(node, {"reason": said, "status": "denied"})

    def _end(self, node: UUID | None, outputs: JsonObject) -> None:
        call = None if self._session is None or node is None else self._session.guarded(str(node))
        if call is not None:
            call.end(outputs)
