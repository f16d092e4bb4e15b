"""The ledger: what the service can do with chains, for whoever was granted it.

Each method takes a ``Grant``: proof of who is asking, for which tenant, and that it may. Writes go through
``Actor.act``, reads through state that was brought up to date first.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import UUID, uuid4

import msgspec

import db.ledger
from app.api_key import Mint
from app.chain.keys import SigningKey
from app.chain.link import seal_all
from app.chain.record import GENESIS, Draft
from app.errors import (
    AgentExistsError,
    ConflictError,
    EndedKeyError,
    NameInUseError,
    NotFoundError,
    TrailsError,
    UnknownActionError,
)
from app.guard import decide
from app.guard.claim import claim
from app.guard.standing import standing
from app.heads import NO_HEADS, KeptHeads
from app.ledger.act import Actor
from app.ledger.approvals import Approvals, require_seen
from app.ledger.chain import Chain, ChainId, Chains
from app.ledger.clock import system_clock
from app.ledger.commit import Committer
from app.ledger.export.exporter import Exporter
from app.ledger.failures import Failures
from app.ledger.feed.feed import Feed
from app.ledger.fleet import Fleet
from app.ledger.keys.key_ring import KeyRing
from app.ledger.keys.keystore import Keystore
from app.ledger.meter import Load, Meter
from app.ledger.mirror import registry_row, row_of
from app.ledger.post import Poster
from app.ledger.probe import roll_back_an_append
from app.ledger.read import action_of, log_page, pending_of, status_of
from app.ledger.redacting import Redacting, noted
from app.ledger.replay import Done, recall
from app.ledger.sessions import Sessions
from app.ledger.snapshots import EVERY, Snapshots
from app.ledger.spans.on_record import SpanReader
from app.ledger.tenancy.administration import Administration, written
from app.ledger.tenancy.filing import NewChain, genesis_payload
from app.ledger.tenancy.origins import Origins
from app.ledger.tenancy.standings import Standings
from app.ledger.tenancy.views import Views
from app.ledger.tenancy.visits import Visits
from app.ledger.trail_reader import TrailReader
from app.ledger.watch.heads import Compared, HeadsKeeper, compare
from app.ledger.watch.inspect import first_failure, inspect_chain
from app.ledger.watch.patrol import Patrol
from app.ledger.watch.seen import Seen
from app.ledger.watch.statistics import StatisticsKeeper
from app.ledger.watch.verifications import Verifications
from app.ledger.webhooks.deliverer import Deliverer
from app.ledger.webhooks.delivery import Counts
from app.ledger.webhooks.hooks import Webhooks
from app.principal import ADMINISTRATION
from db.schema import DEFAULT_TENANT_ID
from db.spans import Sight

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from app.chain.strict import JsonObject, JsonValue
    from app.guard import bodies
    from app.guard.decide import Act, Ask, Decision
    from app.guard.policy import Policy
    from app.guard.state import Action, GuardState
    from app.ledger.approvals import Place, Queue, Waiting
    from app.ledger.clock import Clock
    from app.ledger.export.exporter import Exported
    from app.ledger.export.wanted import Wanted
    from app.ledger.idempotency import Keyed, Stamp
    from app.ledger.post import Entry, Receipt
    from app.ledger.sessions import NodeCursor, SessionQuery
    from app.ledger.spans.on_record import Call, Held
    from app.ledger.surveys import Survey
    from app.ledger.webhooks.target import Networks
    from app.principal import Grant, Principal
    from app.redaction import RuleList
    from app.redaction.redactor import Redactor
    from app.trace.otlp.nesting import End
    from app.trace.span_key import SpanKey
    from app.trace.tree import TreeNode
    from db.failures import FailureQuery, FailureReport
    from db.pool import Pool
    from db.sessions import Model, Sums
    from db.spans import Below

T = TypeVar("T")

_log: Final = logging.getLogger("trails.ledger")

LISTED_AT_ONCE = 8
"""Chains brought up to date at the same moment for a list of agents: as many as there are connections."""

CHAIN_CAPACITY = 20_000
"""Chains kept in memory by default: about 5 kB each when nothing waits in them."""


class Ledger:
    """All chains of all tenants behind one database pool. Any number of processes may run one each."""

    def __init__(
        self,
        pool: Pool,
        master_key: bytes,
        *,
        clock: Clock = system_clock,
        chains: int = CHAIN_CAPACITY,
        snapshot_every: int = EVERY,
        kept: KeptHeads = NO_HEADS,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._keystore = Keystore(pool, master_key)
        self.meter = Meter()
        self._committer = Committer(pool, meter=self.meter)
        self._chains = Chains(pool, capacity=chains, on_fault=self._on_fault)
        self._snapshots = Snapshots(pool, every=snapshot_every)
        self._seen = Seen(pool, self._keystore.slug_of, kept)
        self._standings = Standings(
            pool, self._chains, self._keystore, snapshots=self._snapshots, seen=self._seen
        )
        self._origins = Origins(pool, self._chains)
        self._redacting = Redacting(self._standings, master_key)
        self._actor = Actor(
            pool,
            self._committer,
            self._keystore,
            self._standings,
            clock,
            origins=self._origins,
            snapshots=self._snapshots,
            seen=self._seen,
            meter=self.meter,
        )
        mint = Mint(master_key)
        self._key_ring = KeyRing(pool, mint, clock, self._standings)
        self.administration = Administration(
            pool,
            self._chains,
            self._keystore,
            self._standings,
            actor=self._actor,
            redacting=self._redacting,
            clock=clock,
            mint=mint,
            on_revoked=self._key_ring.forget,
        )
        self.views = Views(self.administration)
        self._exporter = Exporter(pool, self._keystore, self.administration)
        self.exports = self._exporter.ended
        self.feed = Feed(pool, self._chains, master_key)
        self._approvals = Approvals(pool, self._chains, self._actor, clock)
        self.fleet = Fleet(pool, self._chains, self._actor)
        self.trail = TrailReader(pool, self._chains, self._keystore)
        self.verifications = Verifications(self.verify, self.put_verdict_on_record)
        self.webhooks = Webhooks(
            pool, master_key, self.feed, administration=self.administration, standings=self._standings
        )
        self.deliveries = Counts()
        self.visits = Visits(pool, clock)
        self._spans = SpanReader(pool, self._chains)
        self._sessions = Sessions(pool, self._chains, self._keystore, self._origins)
        self._failures = Failures(pool)
        self._poster = Poster(
            pool, self._committer, self._standings, actor=self._actor, redacting=self._redacting, clock=clock
        )

    @classmethod
    async def open(
        cls,
        pool: Pool,
        *,
        master_key: bytes,
        clock: Clock = system_clock,
        chains: int = CHAIN_CAPACITY,
        snapshot_every: int = EVERY,
        kept: KeptHeads = NO_HEADS,
    ) -> Self:
        """Opens the ledger, and makes the default tenant with its signing key when there is none.

        Chains that have not the heads of ``kept`` are not gone on with.

        Raises:
            KeyMaterialError: the stored keys do not open under ``master_key``.
            UnavailableError: the database is away.
        """
        ledger = cls(pool, master_key, clock=clock, chains=chains, snapshot_every=snapshot_every, kept=kept)
        await ledger.create_tenant(DEFAULT_TENANT_ID, "default", "Default tenant")
        return ledger

    async def close(self) -> None:
        """Waits until every accepted append is settled. The pool stays open; it is the caller's."""
        await self.verifications.close()
        await self._poster.close()
        await self._exporter.close()
        await self.administration.close()
        await self._key_ring.close()
        await self._committer.close()

    def keep_heads(self, path: Path, secs: float) -> AbstractAsyncContextManager[None]:
        """Keeps the file of heads as long as the block runs; see ``HeadsKeeper.keeping``."""
        return HeadsKeeper(self._pool, self._seen, self.meter.heads, path, secs).keeping()

    async def compare_heads(self, kept: KeptHeads) -> Compared:
        """What the chains of all tenants hold of heads kept elsewhere; see ``app.ledger.watch.heads``."""
        return await compare(self._pool, kept)

    async def create_tenant(self, tenant_id: UUID, slug: str, name: str) -> None:
        """Makes a tenant with its own signing key, unless it exists."""
        try:
            await self._keystore.of(tenant_id)
        except NotFoundError:
            await self._keystore.create_tenant(tenant_id, slug, name)

    async def tenant_id(self, slug: str) -> UUID:
        """The tenant of this slug.

        Raises:
            NotFoundError: there is none.
        """
        row = await db.ledger.tenant_by_slug(self._pool, slug)
        if row is None:
            raise NotFoundError("tenant not found")
        return row.tenant_id

    def load(self) -> Load:
        """What the ledger holds at this moment."""
        pool = self._pool
        return Load(
            chains=len(self._chains),
            quarantined=self._chains.quarantined,
            waiting=self._committer.waiting,
            connections=pool.get_size(),
            idle_connections=pool.get_idle_size(),
            most_connections=pool.get_max_size(),
        )

    def patrol(self, records_per_sec: float) -> Patrol:
        """What verifies all chains over and over, at a pace above 0, while the service runs."""
        return Patrol(
            self._pool,
            self._chains,
            self._keystore,
            self._origins,
            meter=self.meter,
            records_per_sec=records_per_sec,
        )

    def keep_statistics(self) -> AbstractAsyncContextManager[None]:
        """Keeps the planner's statistics as long as the block runs; see ``StatisticsKeeper``."""
        return StatisticsKeeper(self._pool).keeping()

    def deliverer(self, networks: Networks, give_up_secs: float) -> Deliverer:
        """What delivers webhooks while the service runs; see there."""
        return Deliverer(
            self._pool,
            self.feed,
            self.webhooks,
            networks=networks,
            give_up_secs=give_up_secs,
            counts=self.deliveries,
        )

    def slug_of(self, tenant_id: UUID) -> str:
        """What logs and figures call a tenant; see ``Keystore.slug_of``."""
        return self._keystore.slug_of(tenant_id)

    async def caller(self, token: bytes) -> Principal:
        """Who presents a bearer token that has the form of an API key; see ``KeyRing.caller``."""
        return await self._key_ring.caller(token)

    async def holder(self, token: bytes) -> Principal:
        """Whose API key this is as its row alone says; see ``KeyRing.holder``."""
        return await self._key_ring.holder(token)

    async def require_in_force(self, principal: Principal) -> None:
        """Refuses a token derived for an agent that was revoked.

        Raises:
            EndedKeyError: it was.
            TenantQuarantinedError: the administration chain does not verify, so that nobody knows.
            UnavailableError: the database is away.
        """
        agent_id = principal.agent_id or ""
        epoch = (await self._standings.of(principal.tenant_id)).epochs.get(agent_id, 0)
        if principal.epoch > epoch:  # another process has given it out a moment ago
            epoch = await self._standings.epoch(principal.tenant_id, agent_id)
        if principal.epoch != epoch:
            raise EndedKeyError("this agent's token was revoked")

    async def token_epoch(self, grant: Grant) -> int:
        """The epoch of the token of the grant's agent, no older than this call."""
        return await self._standings.epoch(grant.tenant_id, _agent_of(grant))

    async def public_key(self, tenant_id: UUID) -> str:
        """The tenant's public key, 64 hex: what a verifier pins."""
        return (await self._keystore.of(tenant_id)).newest.public.hex

    async def public_keys(self, tenant_id: UUID) -> JsonObject:
        """The tenant's public key as ``public_key`` says, and all it has had, oldest first.

        A chain begins with the one that was the newest then, which its status names; that is the one to pin.
        """
        keys = await self._keystore.of(tenant_id)
        told: list[JsonValue] = [
            {
                "key_id": row.key_id,
                "public_key": row.public_key,
                "created_at": written(row.created_at),
                "retired": keys.is_retired(keys.by_public_key[row.public_key].public),
            }
            for row in keys.rows
        ]
        return {"public_key": keys.newest.public.hex, "algorithm": "ed25519", "keys": told}

    # --- agents -------------------------------------------------------------------------------------

    async def create_agent(
        self, grant: Grant, policy: Policy | None, stamp: Stamp | None = None
    ) -> JsonObject:
        """Begins a chain: ``genesis``, and ``policy`` for a guarded agent. Returns its status.

        Raises:
            AgentExistsError: the id was used before; ids are not used again.
            NameInUseError: a key in use is called so.
            IdempotencyConflictError: the stamp's key created this agent from another body.
        """
        await self._standings.writable(grant.tenant_id)
        if (grant.tenant_id, _agent_of(grant)) in self._chains:
            return await self._created_before(grant, stamp)
        chain_id = ChainId(grant.tenant_id, _agent_of(grant), uuid4(), policy is not None)
        drafts = () if policy is None else (Draft("policy", {"policy": policy.to_json()}, grant.actor),)
        try:
            begun = await self._begin(grant.tenant_id, grant.actor, [NewChain(chain_id, drafts, stamp)])
        except NameInUseError:
            if await self._chains.missing(grant.tenant_id, [_agent_of(grant)]):
                raise
            begun = []  # it was there before the key
        if not begun:
            return await self._created_before(grant, stamp)
        return await status_of(self._pool, begun[0], begun[0].state)

    async def _begin(self, tenant_id: UUID, actor: str, new: Sequence[NewChain]) -> list[Chain]:
        begun = await self.administration.begin_chains(tenant_id, actor, new)
        for chain in begun.chains:
            self._chains.adopt(chain)
            self.meter.records += (0 if chain.head is None else chain.head.seq) + 1
        if begun.refused:
            raise NameInUseError(begun.refused)
        return begun.chains

    async def _created_before(self, grant: Grant, stamp: Stamp | None) -> JsonObject:
        chain = await self._chain(grant)
        await self._actor.refresh(chain)
        keys = await self._keystore.of(grant.tenant_id)
        before = None if stamp is None else await recall(self._pool, chain, keys, stamp, self._snapshots)
        if before is None:
            raise AgentExistsError(chain.id.agent_id)
        return await status_of(self._pool, chain, before.state)

    async def agents(self, grant: Grant, *, after: str | None = None, limit: int = 5_000) -> list[JsonObject]:
        """The tenant's agents by id, each with its status, or why it is quarantined."""
        rows = await db.ledger.chains(self._pool, grant.tenant_id)
        rows = [row for row in rows if row.agent_id > (after or "") and row.agent_id != ADMINISTRATION][
            :limit
        ]
        ids = [ChainId(grant.tenant_id, row.agent_id, row.log_uuid, row.guarded) for row in rows]
        chains = self._chains.remember_all(ids)
        entries: list[JsonObject] = []
        for first in range(0, len(chains), LISTED_AT_ONCE):
            entries += await asyncio.gather(*map(self._entry, chains[first : first + LISTED_AT_ONCE]))
        return entries

    async def _entry(self, chain: Chain) -> JsonObject:
        try:
            status = await status_of(self._pool, chain, await self._actor.refresh(chain))
        except TrailsError as error:
            if chain.fault is None:
                raise
            return {"agent_id": chain.id.agent_id, "state": "quarantined", "error": error.message}
        return {"agent_id": chain.id.agent_id, "state": "active", "status": status}

    async def require_agent(self, grant: Grant) -> None:
        """Raises NotFoundError unless the grant's agent exists in its tenant."""
        await self._chain(grant)

    async def status(self, grant: Grant) -> JsonObject:
        """The agent's standing, no older than this call."""
        chain = await self._chain(grant)
        return await status_of(self._pool, chain, await self._actor.refresh(chain))

    # --- actions ------------------------------------------------------------------------------------

    async def request(self, grant: Grant, ask: Ask, stamp: Stamp | None = None) -> Decision:
        """Asks the guard whether the agent may do this, and records the question and the answer."""
        chain = await self._chain(grant)
        ask, stamp = await self._redacting.ask(grant, ask, stamp)

        async def on(state: GuardState, now_us: int) -> Act:
            return decide.request(
                state,
                ask,
                lapsed=await self._lapsed(chain, decide.lapsed_ids(state, now_us)),
                agent_id=chain.id.agent_id,
                log_uuid=chain.id.log_uuid,
                actor=grant.actor,
                key=grant.key,
                now_us=now_us,
            )

        return _decision(await self._actor.act(chain, on, stamp))

    async def _lapsed(self, chain: Chain, ids: Sequence[str]) -> list[Action]:
        if not ids:
            return []
        keys = await self._keystore.of(chain.id.tenant_id)
        return [await action_of(self._pool, chain, keys, action_id) for action_id in ids]

    async def action(self, grant: Grant, action_id: str) -> JsonObject:
        """One action as it stands now.

        Raises:
            NotFoundError: the agent has no such action.
        """
        chain = await self._chain(grant)
        state = await self._actor.refresh(chain)
        keys = await self._keystore.of(grant.tenant_id)
        action = await action_of(self._pool, chain, keys, action_id)
        return action.to_json() | standing(state, action, self._clock())

    async def pending(self, grant: Grant) -> list[JsonObject]:
        """What waits for a person, oldest first."""
        chain = await self._chain(grant)
        return await pending_of(self._pool, chain, await self._actor.refresh(chain), self._clock())

    async def approvals(self, grant: Grant, after: Place | None, limit: int) -> Queue:
        """What waits for a person in the whole tenant, oldest first, no older than this call."""
        return await self._approvals.page(grant.tenant_id, after, limit)

    async def approvals_of(self, grant: Grant, after: Place | None, limit: int) -> Queue:
        """The same of the grant's agent."""
        chain = await self._chain(grant)
        return await self._approvals.page(grant.tenant_id, after, limit, chain.id.log_uuid)

    async def approval(self, grant: Grant, action_id: str) -> Waiting | None:
        """One action of the grant's agent as it waits now; None when it does not."""
        return await self._approvals.one(await self._chain(grant), action_id)

    async def approvals_mark(self, grant: Grant) -> int:
        """Another number whenever the queue may look otherwise; see ``Approvals.mark``."""
        return await self._approvals.mark(grant.tenant_id)

    async def approvals_waiting(self, grant: Grant) -> int:
        """How long the queue is, as its index says, counted up to some number: for a hint."""
        return await self._approvals.length(grant.tenant_id)

    async def approve(
        self,
        grant: Grant,
        action_id: str,
        body: bodies.Approve,
        stamp: Stamp | None = None,
        *,
        seen: str | None = None,
    ) -> Decision:
        """Lets a held action go, after the guard has checked it once more.

        ``seen`` is the hash of the request's record that was shown to whoever decides.

        Raises:
            ForbiddenError: it was asked for with the same key.
            ConflictError: another request stands under this id than the one that was shown.
        """
        chain = await self._chain(grant)
        body, note, stamp = await self._redacting.texts(grant, body, stamp, "approver", "note")

        def on(state: GuardState, action: Action, now_us: int) -> Act:
            require_seen(state, action_id, seen)
            act = decide.approve(
                state,
                action,
                approver=body.approver,
                note=body.note,
                agent_id=chain.id.agent_id,
                log_uuid=chain.id.log_uuid,
                actor=grant.actor,
                key=grant.key,
                now_us=now_us,
            )
            return noted(act, note)

        return _decision(await self._act_on(chain, action_id, on, stamp))

    async def reject(
        self,
        grant: Grant,
        action_id: str,
        body: bodies.Reject,
        stamp: Stamp | None = None,
        *,
        seen: str | None = None,
    ) -> Decision:
        """Refuses a held action, with a scar for having asked when the operator says so.

        ``seen`` is as for ``approve``.
        """
        chain = await self._chain(grant)
        body, note, stamp = await self._redacting.texts(grant, body, stamp, "approver", "reason")

        def on(state: GuardState, action: Action, now_us: int) -> Act:
            require_seen(state, action_id, seen)
            act = decide.reject(
                state,
                action,
                approver=body.approver,
                reason=body.reason,
                scar=body.scar,
                log_uuid=chain.id.log_uuid,
                actor=grant.actor,
                key=grant.key,
                now_us=now_us,
            )
            return noted(act, note)

        return _decision(await self._act_on(chain, action_id, on, stamp))

    async def claim(
        self, grant: Grant, action_id: str, body: bodies.Claim, stamp: Stamp | None = None
    ) -> JsonObject:
        """Takes an allowed action to carry it out: ``{claimed: true, action_id, tool, input, cost}``.

        Raises:
            ClaimRefusedError: it may not be carried out so, or was claimed before; this is on record.
            TooManyRequestsError: too many claims were refused a moment ago; nothing is recorded.
        """
        chain = await self._chain(grant)
        body, stamp = await self._redacting.claim(grant, body, stamp)

        def on(state: GuardState, action: Action, now_us: int) -> Act:
            return claim(
                state,
                action,
                body,
                log_uuid=chain.id.log_uuid,
                actor=grant.actor,
                key=grant.key,
                now_us=now_us,
            )

        claimed = _decision(await self._act_on(chain, action_id, on, stamp)).to_json()
        keys = await self._keystore.of(grant.tenant_id)
        action = await action_of(self._pool, chain, keys, action_id)
        return {**claimed, "tool": action.tool, "input": action.input, "cost": action.cost}

    async def report(
        self, grant: Grant, action_id: str, body: bodies.Report, stamp: Stamp | None = None
    ) -> JsonObject:
        """Records how an allowed action went. Returns the agent's status after it."""
        chain = await self._chain(grant)
        body, note, stamp = await self._redacting.texts(grant, body, stamp, "detail")

        def on(state: GuardState, action: Action, now_us: int) -> Act:
            act = decide.report(
                state,
                action,
                status=body.status,
                detail=body.detail,
                log_uuid=chain.id.log_uuid,
                actor=grant.actor,
                now_us=now_us,
            )
            return noted(act, note)

        done = await self._act_on(chain, action_id, on, stamp)
        return await status_of(self._pool, chain, done.state)

    async def scar(self, grant: Grant, body: bodies.AddScar, stamp: Stamp | None = None) -> JsonObject:
        """Marks the agent for what a person or a monitor saw. Returns its status."""
        chain = await self._chain(grant)
        body, note, stamp = await self._redacting.texts(grant, body, stamp, "reason")

        async def on(state: GuardState, _now_us: int) -> Act:
            act = decide.scar(
                state,
                severity=body.severity,
                reason=body.reason,
                action_id=body.action_id,
                actor=grant.actor,
            )
            return noted(act, note)

        done = await self._actor.act(chain, on, stamp)
        return await status_of(self._pool, chain, done.state)

    async def terminate(self, grant: Grant, body: bodies.Terminate, stamp: Stamp | None = None) -> JsonObject:
        """The kill switch: permanent. Returns the agent's status."""
        chain = await self._chain(grant)
        body, note, stamp = await self._redacting.texts(grant, body, stamp, "reason", "by")

        async def on(state: GuardState, _now_us: int) -> Act:
            act = decide.terminate(state, reason=body.reason, by=body.by, actor=grant.actor)
            return noted(act, note)

        done = await self._actor.act(chain, on, stamp)
        return await status_of(self._pool, chain, done.state)

    # --- posts --------------------------------------------------------------------------------------

    async def post(
        self, grant: Grant, entries: Sequence[Entry], *, whole: bool = False, keyed: Keyed | None = None
    ) -> list[Receipt | TrailsError]:
        """Appends traces and events to the agent's chain; one result an entry, in their order.

        All that are accepted are written in one transaction. The result of another one says why not: it
        breaks a limit (BadRequestError), its key was used with another body (IdempotencyConflictError), or
        spans of it are on record (SpansOnRecordError). With ``whole`` one that is refused takes all with it.
        With ``keyed`` they are one request under a key: each gets its first receipt again, or all are a
        conflict.

        Raises:
            QuarantinedError: the chain does not verify.
            UnavailableError: the database is away or too busy; post the same again.
        """
        return await self._poster.post(await self._chain(grant), entries, whole=whole, keyed=keyed)

    async def redaction(self, grant: Grant) -> RuleList:
        """The tenant's redaction rules, no older than half a second."""
        return (await self._standings.of(grant.tenant_id)).redaction

    async def redactor(self, grant: Grant) -> Redactor:
        """What takes secrets out of what is written for the grant's tenant."""
        return await self._redacting.of(grant.tenant_id)

    async def spans_on_record(self, grant: Grant, keys: Collection[SpanKey]) -> dict[SpanKey, Held]:
        """Those of the spans that the agent's chain holds, each with its record and the hash of its content.

        Raises:
            QuarantinedError: the index names a record that does not verify or does not hold the span.
        """
        signing = await self._keystore.of(grant.tenant_id)
        return await self._spans.held(signing, await self._chain(grant), keys)

    async def ends_on_record(
        self, grant: Grant, keys: Collection[SpanKey], actor: str | None
    ) -> dict[SpanKey, End]:
        """Those of the spans that are on record in the agent's chain, or in others in records of ``actor``.

        Raises:
            QuarantinedError: one of the records does not verify.
        """
        signing = await self._keystore.of(grant.tenant_id)
        return await self._spans.ends(signing, Sight((await self._chain(grant)).id.log_uuid, actor), keys)

    async def calls_below(
        self, grant: Grant, wanted: Below, actor: str | None, is_wanted: Callable[[JsonObject], bool]
    ) -> AsyncIterator[list[Call]]:
        """Tool calls right below one of some nodes, of the agent's chain or of records of ``actor``.

        Raises:
            QuarantinedError: one of the records does not verify.
        """
        signing = await self._keystore.of(grant.tenant_id)
        sight = Sight((await self._chain(grant)).id.log_uuid, actor)
        async for calls in self._spans.calls_below(signing, wanted, sight, is_wanted):
            yield calls

    async def observed(self, *grants: Grant) -> None:
        """Begins the chains of the grants' agents, without a guard, unless they exist; all are one tenant's.

        Those that are new begin together, in one transaction with the record that tells of them.

        Raises:
            ForbiddenError: the tenant is suspended.
            NameInUseError: agents are called as keys in use; the others were begun.
            TenantQuarantinedError: the administration chain does not verify.
        """
        agents = {_agent_of(grant): grant for grant in grants}
        if not grants or not (missing := await self._chains.missing(grants[0].tenant_id, agents)):
            return
        tenant_id, actor = grants[0].tenant_id, grants[0].actor
        ids = [ChainId(tenant_id, agent_id, uuid4(), guarded=False) for agent_id in missing]
        await self._begin(tenant_id, actor, [NewChain(chain_id) for chain_id in ids])

    # --- sessions -----------------------------------------------------------------------------------

    async def sessions(self, grant: Grant, query: SessionQuery) -> JsonObject:
        """The tenant's sessions, newest first: ``{sessions, next}``; see ``Sessions.page``."""
        return await self._sessions.page(grant.tenant_id, query)

    async def session(
        self, grant: Grant, session_id: UUID, *, after: NodeCursor | None = None, limit: int | None = None
    ) -> str:
        """One session of the tenant as JSON text, from records that verify; see ``Sessions.read``."""
        return await self._sessions.read(grant.tenant_id, session_id, after=after, limit=limit)

    async def survey(
        self, grant: Grant, session_id: UUID, look: Callable[[TreeNode, JsonObject], T]
    ) -> Survey[T]:
        """One session of the tenant as a whole, from records that verify; see ``Sessions.survey``."""
        return await self._sessions.survey(grant.tenant_id, session_id, look)

    async def survey_node(
        self,
        grant: Grant,
        session_id: UUID,
        look: Callable[[TreeNode, JsonObject], T],
        *,
        only: Callable[[TreeNode], bool],
    ) -> Survey[T]:
        """The same with one of its nodes looked at, the first that is meant; see ``Sessions.look_at``."""
        return await self._sessions.look_at(grant.tenant_id, session_id, look, only=only)

    async def session_sums(self, grant: Grant, session_ids: Sequence[UUID]) -> dict[UUID, Sums]:
        """What sessions used; see ``Sessions.sums``."""
        return await self._sessions.sums(grant.tenant_id, session_ids)

    async def session_models(self, grant: Grant, session_id: UUID) -> list[Model]:
        """What each model used in a session; see ``Sessions.models``."""
        return await self._sessions.models(grant.tenant_id, session_id)

    async def failures(self, grant: Grant, query: FailureQuery) -> FailureReport:
        """Failed calls of tools over time; see ``Failures.report``."""
        return await self._failures.report(grant.tenant_id, query)

    # --- the trail ----------------------------------------------------------------------------------

    async def log(self, grant: Grant, after: int | None, limit: int) -> tuple[list[str], JsonObject]:
        """Export lines after ``after``, unchanged, and the chain's head."""
        chain = await self._chain(grant)
        await self._actor.refresh(chain)
        return await log_page(self._pool, chain, after, limit)

    async def verify(self, grant: Grant, progress: Callable[[int], None] | None = None) -> JsonObject:
        """Verifies the agent's chain from its genesis; works on a quarantined chain too.

        A chain that does not verify is quarantined at once, whatever this process knew of it before; one that
        verifies again after it was quarantined is released. ``progress`` hears how many records are done.
        """
        chain = await self._chain(grant)
        fault = chain.fault
        seen = self._seen.heads_of(chain.id)
        verdict = await inspect_chain(
            self._pool, chain, self._keystore, self._origins, seen=seen, progress=progress
        )
        async with chain.exclusively():  # an act that is under way still counts on what was read
            if verdict["ok"] and chain.fault is not None and chain.fault is fault:  # not one found meanwhile
                chain.release()
            if not verdict["ok"] and chain.fault is None:
                chain.quarantine(first_failure(verdict))
        return verdict

    async def verify_on_record(self, grant: Grant) -> JsonObject:
        """``verify``, told in the tenant's administration chain: who verified what, and how it came out.

        The verdict is answered even if it cannot be told, as long as that chain does not verify or nothing
        signs; the log says so then. What is told of the administration chain itself is the head before that.
        """
        verdict = await self.verify(grant)
        await self.put_verdict_on_record(grant, verdict)
        return verdict

    async def put_verdict_on_record(self, grant: Grant, verdict: JsonObject) -> None:
        """Tells in the tenant's administration chain that the grant's holder had the chain verified."""
        chain = await self._chain(grant)
        payload: JsonObject = {
            "act": "verified",
            "agent_id": chain.id.agent_id,
            "log_uuid": str(chain.id.log_uuid),
            "length": verdict["records"],
            "head": verdict["head"],
            "intact": verdict["ok"],
            "key": grant.key,
        }
        try:
            await self.administration.record(grant.tenant_id, grant.actor, payload)
        except TrailsError as error:
            _log.warning("a verification of %s is not on record: %s", chain.id.agent_id, error.message)

    def export(self, grant: Grant, wanted: Wanted) -> AbstractAsyncContextManager[Exported]:
        """Records or a view of the tenant as one file, in one snapshot, on record; see ``Exporter``."""
        return self._exporter.exporting(grant, wanted)

    async def probe(self) -> None:
        """Exercises the whole append path on a chain that is rolled back again.

        Raises:
            TrailsError: says what is wrong.
        """
        keys = await self._keystore.of(DEFAULT_TENANT_ID)
        chain_id = ChainId(DEFAULT_TENANT_ID, f"probe-{uuid4().hex}", uuid4(), guarded=False)
        # What is asked is whether the database takes records; a source of keys is not asked for a signature.
        named, key = keys.newest, keys.newest if isinstance(keys.newest, SigningKey) else _throwaway_key()
        payload = genesis_payload(chain_id, msgspec.structs.replace(keys, newest=key))
        records = seal_all([Draft(GENESIS, payload, "probe")], None, self._clock(), key)
        rows = [row_of(chain_id, record, named.public.key_id) for record in records]
        await roll_back_an_append(self._pool, rows, registry_row(chain_id, rows[0]))

    # --- shared -------------------------------------------------------------------------------------

    def _on_fault(self, chain_id: ChainId, reason: str) -> None:
        """A chain is quarantined: told once, whoever has found it."""
        self.meter.broken += 1
        if chain_id.agent_id == ADMINISTRATION:
            self._standings.forget(chain_id.tenant_id)
        fields = {
            "tenant": self.slug_of(chain_id.tenant_id),
            "agent": chain_id.agent_id,
            "log_uuid": str(chain_id.log_uuid),
            "reason": reason,
        }
        _log.error("a chain does not verify and is quarantined", extra={"fields": fields})

    async def _chain(self, grant: Grant) -> Chain:
        return await self._chains.get(grant.tenant_id, _agent_of(grant))

    async def _act_on(
        self,
        chain: Chain,
        action_id: str,
        on: Callable[[GuardState, Action, int], Act],
        stamp: Stamp | None,
    ) -> Done:
        """Acts on one action of the chain, which is read from its own records first."""
        keys = await self._keystore.of(chain.id.tenant_id)

        async def with_action(state: GuardState, now_us: int) -> Act:
            try:
                action = await action_of(self._pool, chain, keys, action_id)
            except NotFoundError:
                raise UnknownActionError(action_id) from None
            return on(state, action, now_us)

        return await self._actor.act(chain, with_action, stamp)


def _agent_of(grant: Grant) -> str:
    if grant.agent_id is None:
        raise NotFoundError("agent not found")
    return grant.agent_id


def _throwaway_key() -> SigningKey:
    """A key for records that nobody ever sees."""
    return SigningKey.from_raw(os.urandom(32))


def _decision(done: Done) -> Decision:
    if done.decision is None:
        raise ConflictError("this Idempotency-Key was used for an act without a decision")
    return done.decision
