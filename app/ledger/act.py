"""Act: the guard decides, the record is sealed, one transaction appends it, and only then is it answered.

An append is optimistic: it carries the next ``seq``. When another process was faster the table refuses
it, the new records are read and verified, and the guard decides again on what is true now. A refusal by
the guard's state ("not pending", "unknown action") is final only on fresh state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from app.chain.record import KEY_ROTATED, Draft
from app.errors import (
    ConflictError,
    ForbiddenError,
    InvalidJsonError,
    KeyMaterialError,
    MirrorError,
    NotFoundError,
    StaleChainError,
    TooManyRequestsError,
    UnavailableError,
)
from app.guard.decide import Act, missing_termination
from app.guard.state import GuardState
from app.ledger.chain import Chain
from app.ledger.idempotency import Stamp, stamped
from app.ledger.keys.sealing import sealed
from app.ledger.meter import Meter
from app.ledger.mirror import row_of
from app.ledger.pace import give_way, until_at_rest
from app.ledger.rebuild import catch_up, confirm_head, look_again
from app.ledger.replay import Done, recall
from app.ledger.snapshots import MAX_CHARS as MAX_SNAPSHOT_CHARS
from db.errors import DuplicateKeyError

if TYPE_CHECKING:
    from app.chain.keys import PublicKey, SigningKey
    from app.ledger.clock import Clock
    from app.ledger.commit import Committer
    from app.ledger.keys.keystore import Keystore, TenantKeys
    from app.ledger.keys.signers import SourceSigner
    from app.ledger.snapshots import Snapshots
    from app.ledger.tenancy.origins import Origins
    from app.ledger.tenancy.standings import Standings
    from app.ledger.watch.seen import Seen
    from db.pool import Pool

MAX_ATTEMPTS = 50
"""Times an act is decided anew when other processes keep being faster, before 503 asks to try later."""

ROTATION = "rotation"
"""Actor of the record that hands a chain over to another key."""

_BACKOFF_SECS = 0.002

Decide = Callable[[GuardState, int], Awaitable[Act]]
"""Decides on a state at a time (µs); may read the action it is about from the table."""

_REFUSALS = (ConflictError, NotFoundError, ForbiddenError, TooManyRequestsError)


class Actor:
    """Carries out acts on chains: the page on which the act flow can be read."""

    def __init__(
        self,
        pool: Pool,
        committer: Committer,
        keystore: Keystore,
        standings: Standings,
        clock: Clock,
        *,
        origins: Origins,
        snapshots: Snapshots,
        seen: Seen,
        meter: Meter | None = None,
    ) -> None:
        self._seen = seen
        self._origins = origins
        self._snapshots = snapshots
        self._meter = meter or Meter()
        self._pool = pool
        self._committer = committer
        self._keystore = keystore
        self._standings = standings
        self._clock = clock

    async def act(self, chain: Chain, decide: Decide, mark: Stamp | None = None) -> Done:
        """Decides and appends, once, whatever other writers do at the same time.

        Args:
            chain: the agent's chain.
            decide: the guard's decision, a function of state and time.
            mark: idempotency stamp; an act that carried it before is answered as it was then.

        Raises:
            ConflictError: the guard refuses on fresh state, or the key was used with another body.
            ForbiddenError: the tenant is suspended.
            QuarantinedError: the chain does not verify.
            UnavailableError: the database is away or too busy; nothing was allowed.
        """
        done = await self._once(chain, decide, mark)
        if done.refusal is not None:
            raise done.refusal
        return done

    async def _once(self, chain: Chain, decide: Decide, mark: Stamp | None) -> Done:
        keys = await self._standings.writable(chain.id.tenant_id)
        async with chain.exclusively():
            await self.ready(chain, keys)
            for attempt in range(MAX_ATTEMPTS):
                try:
                    return await self._attempt(chain, keys, decide, mark)
                except DuplicateKeyError:
                    return await self._recall(chain, keys, mark)
                except StaleChainError:
                    await self.read_on(chain, keys, attempt)
                except _REFUSALS:
                    if await catch_up(self._pool, chain, keys):
                        continue
                    if mark is not None and (
                        before := await recall(self._pool, chain, keys, mark, self._snapshots)
                    ):
                        return before
                    raise
        raise outrun()

    async def ready(self, chain: Chain, keys: TenantKeys) -> None:
        """Makes sure that the chain was verified once, and that the newest key signs from now on.

        The caller has it exclusively. A snapshot that is due is appended first.

        Raises:
            QuarantinedError: the chain does not verify, now or since before.
        """
        chain.require_sound()
        if not chain.opened:
            await self._open(chain, keys)
        elif self._seen.ahead(chain):
            await catch_up(self._pool, chain, keys)
            await self._seen.require(chain)
        await give_way(self._pool, chain, keys)
        if keys.is_retired(chain.key_in_force):
            await self._renew_key(chain, keys)
        await self.take_snapshot(chain, keys)

    async def signing_key(self, chain: Chain, keys: TenantKeys) -> SigningKey | SourceSigner:
        """The key that signs the chain's next record; one that is new to this process is asked for.

        Raises:
            KeyMaterialError: the tenant does not have the key that the chain's records put in force.
        """
        try:
            return keys.signing(chain.key_in_force)
        except KeyMaterialError:
            self._keystore.forget(keys.tenant_id)
            return (await self._keystore.of(keys.tenant_id)).signing(chain.key_in_force)

    async def read_on(self, chain: Chain, keys: TenantKeys, attempt: int) -> None:
        """After an append that came too late: reads what another process wrote; ``attempt`` counts from 0."""
        self._meter.stale += 1
        if await catch_up(self._pool, chain, keys):
            await until_at_rest(self._pool, chain, keys)
        else:
            await confirm_head(self._pool, chain)
            await asyncio.sleep(random.uniform(0, _BACKOFF_SECS * (attempt + 1)))  # noqa: S311  spreads retries

    async def renew(self, chain: Chain) -> PublicKey:
        """Hands the chain over to the tenant's newest key now, if it is not yet; returns the key in force.

        Raises:
            QuarantinedError: the chain does not verify.
            UnavailableError: the database is away.
        """
        keys = await self._keystore.of(chain.id.tenant_id)
        async with chain.exclusively():
            if chain.opened:
                await catch_up(self._pool, chain, keys)
            await self.ready(chain, keys)
            return chain.key_in_force

    async def refresh(self, chain: Chain) -> GuardState:
        """The chain's state, no older than this call."""
        keys = await self._keystore.of(chain.id.tenant_id)
        async with chain.exclusively():
            if not chain.opened:
                await self._open(chain, keys)
            else:
                await look_again(self._pool, chain, keys)
                if self._seen.ahead(chain):
                    await self._seen.require(chain)
            return chain.state

    async def _open(self, chain: Chain, keys: TenantKeys) -> None:
        """Verifies a chain that is new to this process, and ends one whose last word is missing.

        A chain stays unopened until that is on disk: an agent that should be dead is allowed nothing because
        the database was away for a moment.
        """
        at_snapshot = await self._snapshots.begin(chain, keys)
        await catch_up(self._pool, chain, keys)
        if chain.genesis_key is not None and not at_snapshot:  # else asked before the snapshot was written
            problem = await self._origins.problem(chain.id, chain.genesis_key, keys)
            if problem is not None:
                raise chain.quarantine(problem)
        await self._seen.require(chain)
        for attempt in range(MAX_ATTEMPTS):
            act = missing_termination(chain.state, agent_id=chain.id.agent_id)
            if act is None:
                chain.opened = True
                return
            try:
                await self._append(chain, keys, act, None, self._clock())
            except StaleChainError:
                await self.read_on(chain, keys, attempt)
        raise outrun()

    async def _renew_key(self, chain: Chain, keys: TenantKeys) -> None:
        """Hands the chain over to the tenant's newest key, by a record that the old one signs.

        It is a commit of its own, before whatever comes next: no act is sealed by two keys.
        """
        new = keys.newest.public
        for attempt in range(MAX_ATTEMPTS):
            if not keys.is_retired(chain.key_in_force):
                return
            old = await self.signing_key(chain, keys)
            draft = Draft(KEY_ROTATED, {"public_key": new.hex}, ROTATION)
            [record] = await sealed([draft], chain.head, self._clock(), old)
            try:
                await self._committer.append([row_of(chain.id, record, old.public.key_id)])
            except StaleChainError:
                await self.read_on(chain, keys, attempt)
            else:
                chain.advance(record, new)
                return
        raise outrun()

    async def take_snapshot(self, chain: Chain, keys: TenantKeys) -> None:
        """Appends a snapshot, if one is due, in a commit of its own; the caller has the chain exclusively.

        One that another writer overtook is left for the next time.
        """
        draft = self._snapshots.due(chain, keys)
        if draft is None:
            return
        key = await self.signing_key(chain, keys)
        try:
            [record] = await sealed([draft], chain.head, self._clock(), key)
        except InvalidJsonError:  # more than a record may hold, such as the times in a very wide rate window
            chain.postpone_snapshot(MAX_SNAPSHOT_CHARS)
            return
        if len(record.text) > MAX_SNAPSHOT_CHARS:
            chain.postpone_snapshot(len(record.text))
            return
        try:
            await self._committer.append([row_of(chain.id, record, key.public.key_id)])
        except StaleChainError:
            await self.read_on(chain, keys, 0)
        else:
            chain.advance(record, key.public)

    async def _attempt(self, chain: Chain, keys: TenantKeys, decide: Decide, mark: Stamp | None) -> Done:
        now_us = self._clock()
        act = await decide(chain.state, now_us)
        await self._append(chain, keys, act, mark, now_us)
        self._meter.decided(self._keystore.slug_of(keys.tenant_id), act)
        return Done(chain.state, act.answer, act.refusal)

    async def _append(
        self, chain: Chain, keys: TenantKeys, act: Act, mark: Stamp | None, now_us: int
    ) -> None:
        key = await self.signing_key(chain, keys)
        records = await sealed(stamped(act.drafts, mark), chain.head, now_us, key)
        try:
            await self._committer.append([row_of(chain.id, record, key.public.key_id) for record in records])
        except MirrorError as error:
            raise chain.quarantine(error.message) from error
        for record in records:
            chain.advance(record, key.public)

    async def _recall(self, chain: Chain, keys: TenantKeys, mark: Stamp | None) -> Done:
        await catch_up(self._pool, chain, keys)
        before = await self._before(chain, keys, mark)
        if before is None:
            raise UnavailableError("the first answer to this Idempotency-Key is not readable yet; try again")
        return before

    async def _before(self, chain: Chain, keys: TenantKeys, mark: Stamp | None) -> Done | None:
        """What the act came to that carried ``mark``, if there was one."""
        return None if mark is None else await recall(self._pool, chain, keys, mark, self._snapshots)


def outrun() -> UnavailableError:
    """What is said after ``MAX_ATTEMPTS``."""
    return UnavailableError("other writers keep being faster on this agent's chain; try again")
