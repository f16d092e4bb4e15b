"""Heads that were seen before: a chain that has not these records is not gone on with.

A database that was set back to an earlier state passes every check of its own; only what is kept elsewhere
can tell (``TRAILS_HEADS_FILE``). A chain that is behind such a head is quarantined until an administrator
accepts the loss (``trails heads accept``) or brings the records back; all others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import db.heads
from app.heads import Hashes, KeptHeads

if TYPE_CHECKING:
    from uuid import UUID

    from app.chain.record import Head
    from app.ledger.chain import Chain, ChainId
    from db.pool import Pool

MISSING: Final = "record {seq} was seen before and is not in the table"
NOTHING_SEEN: Final[Hashes] = MappingProxyType({})
OTHER: Final = "record {seq} in the table is not the one that was seen before"


class Seen:
    """What is known of heads; asks the table for hashes alone. ``slug_of`` tells how a tenant is called."""

    def __init__(self, pool: Pool, slug_of: Callable[[UUID], str], kept: KeptHeads) -> None:
        self._pool = pool
        self._slug_of = slug_of
        self.kept = kept
        self.refused: dict[UUID, tuple[Chain, str]] = {}
        """Chains in memory that were quarantined here, each with the reason."""

    def heads_of(self, chain_id: ChainId) -> Hashes:
        """The heads that were seen of a chain."""
        if not self.kept.heads:
            return NOTHING_SEEN
        return heads_of(self.kept, self._slug_of(chain_id.tenant_id), chain_id.agent_id, chain_id.log_uuid)

    def ahead(self, chain: Chain) -> bool:
        """Whether more was seen of a chain than this process has read."""
        seen = self.heads_of(chain.id)
        return bool(seen) and (chain.head is None or max(seen) > chain.head.seq)

    async def require(self, chain: Chain) -> None:
        """Refuses a chain that was read to its end and is behind, or beside, a head that was seen.

        Raises:
            QuarantinedError: which record was seen and is not there.
            UnavailableError: the database is away.
        """
        problem = await self.problem(chain.id, chain.head)
        if problem is not None:
            self.refused[chain.id.log_uuid] = chain, problem
            raise chain.quarantine(problem)

    async def problem(self, chain_id: ChainId, head: Head | None) -> str | None:
        """Which head that was seen a chain with this ``head`` has not; None when it has all."""
        seen = self.heads_of(chain_id)
        held = {} if head is None else {head.seq: head.hash}
        places = [(chain_id.log_uuid, seq) for seq in seen if head is not None and seq < head.seq]
        if places:
            found = await db.heads.hashes_at(self._pool, chain_id.tenant_id, places)
            held |= {seq: digest for (_, seq), digest in found.items()}
        return problem_of(seen, held)


def heads_of(kept: KeptHeads, slug: str, agent_id: str, log_uuid: UUID) -> dict[int, str]:
    """The heads of one chain, by whichever of its names a file calls it."""
    found: dict[int, str] = {}
    for name in (str(log_uuid), f"{slug}/{agent_id}", agent_id):
        found |= kept.heads.get(name, {})
    return found


def problem_of(seen: Hashes, held: Mapping[int, str]) -> str | None:
    """What is wrong with a chain that holds the hashes ``held``; the newest head is told first."""
    for seq in sorted(seen, reverse=True):
        if seq not in held:
            return MISSING.format(seq=seq)
        if held[seq] != seen[seq]:
            return OTHER.format(seq=seq)
    return None
