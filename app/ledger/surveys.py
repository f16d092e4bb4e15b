"""Surveys of whole sessions, kept for a moment.

Whoever looks at the picture of a session looks at one of its nodes after the other, and for none of them all
others need to be verified again. What is kept is where the nodes stand, never what they say: whoever shows a
node verifies its record again. It is kept by tenant, for a few minutes, within so many bytes in a process,
and forgotten as soon as the session has another record.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from app.chain.strict import JsonValue
from app.trace.tree import Sending, Tree

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_BYTES: Final = 32 * 1024 * 1024
"""All that one process keeps, more or less; a larger session is read again each time."""

KEPT_SECS: Final = 300.0
"""How long one is kept after it was last looked at."""

_SENDING_BYTES: Final = 800
"""Of a sending, its record's place and its node, without their texts."""

_UNVERIFIED_BYTES: Final = 600

T = TypeVar("T")


class Survey(msgspec.Struct, Generic[T], frozen=True):
    """A whole session, and what somebody read of its nodes.

    Attributes:
        tree: all nodes in their places.
        seen: what was read of each node that was looked at, in the order of the tree.
        sendings: every sending of every node, in the order of the records.
        agents: whose records verify, in order.
        kinds: how many records of each kind verify.
        records: all of them, those that do not verify too.
        first_us: time of the first record, in µs since 1970; ``last_us`` that of the last.
        unverified: some of these, as the API lists them; ``unverified_records`` counts all.
    """

    tree: Tree
    seen: list[T]
    sendings: list[Sending]
    agents: list[str]
    kinds: Mapping[str, int]
    records: int
    first_us: int
    last_us: int
    unverified: list[JsonValue]
    unverified_records: int

    @property
    def size(self) -> int:
        """Bytes that it takes, without what was seen: more rather than less."""
        places = _SENDING_BYTES * len(self.sendings) + _UNVERIFIED_BYTES * len(self.unverified)
        if places > KEPT_BYTES:
            return places  # more than is ever kept, whatever the texts are
        texts = sum(
            sys.getsizeof(sending.name) + sys.getsizeof(sending.node_type) + sys.getsizeof(sending.status)
            for sending in self.sendings
        )
        return places + texts


class _Kept(msgspec.Struct, frozen=True):
    survey: Survey[None]
    size: int
    until: float


class Surveys:
    """Surveys of one process. ``clock`` gives seconds."""

    def __init__(
        self,
        most_bytes: int = KEPT_BYTES,
        secs: float = KEPT_SECS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes = most_bytes
        self._secs = secs
        self._clock = clock
        self._kept: OrderedDict[tuple[UUID, UUID], _Kept] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return sum(kept.size for kept in self._kept.values())

    def keep(self, tenant_id: UUID, session_id: UUID, survey: Survey[T]) -> None:
        """Keeps a survey without what was seen; those that were looked at longest ago make room."""
        self._kept.pop((tenant_id, session_id), None)
        size = survey.size
        if size <= self._most_bytes:
            bare: Survey[None] = msgspec.structs.replace(survey, seen=[])  # type: ignore[arg-type]  # no longer
            self._kept[tenant_id, session_id] = _Kept(bare, size, self._clock() + self._secs)
        self._forget()

    def get(self, tenant_id: UUID, session_id: UUID) -> Survey[None] | None:
        """The tenant's survey of a session, if it is kept."""
        self._forget()
        kept = self._kept.pop((tenant_id, session_id), None)
        if kept is None:
            return None
        self._kept[tenant_id, session_id] = msgspec.structs.replace(kept, until=self._clock() + self._secs)
        return kept.survey

    def drop(self, tenant_id: UUID, session_id: UUID) -> None:
        """Keeps it no more: the session is another one by now."""
        self._kept.pop((tenant_id, session_id), None)

    def _forget(self) -> None:
        now, room = self._clock(), self._most_bytes - self.size
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if room >= 0 and oldest.until > now:
                return
            self._kept.popitem(last=False)
            room += oldest.size
