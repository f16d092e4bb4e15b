"""The walk of an audit: all rows, chain by chain, and what is found on the way.

Whatever goes wrong in one part is a finding beside what the others found, never instead of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from app.audit.administration import BegunChain
from app.audit.chain import (
    AuditedChain,
    ChainName,
    Keys,
    ProvenRows,
    Reached,
    RegisteredChain,
    UnregisteredRows,
)
from app.audit.rows import CHUNK_ROWS, AuditedRow, Place, Spot
from app.chain.audit import ChainAudit, missing_record
from app.chain.keys import PublicKey
from app.chain.record import Head
from app.chain.report import Report
from app.chain.verdict import Verdict
from app.errors import OrderError, TrailsError
from app.fold.administration import AdministrationState
from app.principal import ADMINISTRATION
from db.ledger import ChainRow
from db.pool import Connection

_LOST: Final = (
    OSError,
    asyncio.IncompleteReadError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)
"""The connection is gone, and with it what would come next."""

Checkpoints = Callable[["ChainName"], Mapping[int, str]]
"""The hashes by seq that were kept elsewhere of one chain."""

Progress = Callable[[int], None]
"""Called with the number of records verified so far."""


class ChainVerdict(msgspec.Struct, frozen=True):
    """What was found in one chain. ``marked`` is the last record that was not read but taken for verified."""

    name: ChainName
    report: Report
    note: str = ""
    marked: Head | None = None


class Marks(msgspec.Struct, frozen=True):
    """Marks that an audit goes on from, and whoever is told where the next one can.

    Attributes:
        chains: how far chains were verified before.
        names: what they were called then.
        tell: called with each chain, its name and how far it is verified, or None when something is wrong;
            and whether that was read from a mark on.
    """

    chains: Mapping[Place, Reached] = {}
    names: Mapping[Place, ChainName] = {}
    tell: Callable[[Place, ChainName, Reached | None, bool], None] = lambda *_: None


NO_MARKS: Final = Marks()


class Problem(msgspec.Struct, frozen=True):
    """Something that concerns no single chain: the catalog, a key, a table out of reach."""

    verdict: Verdict
    what: str
    reason: str


class Trust(msgspec.Struct, frozen=True):
    """What signatures are believed from: pinned keys, else the stored ones that the master key opens."""

    pinned: tuple[PublicKey, ...] = ()
    master_key: bytes | None = None


class Selection(msgspec.Struct, frozen=True):
    """What to look at: all that the role may see, or one tenant (by slug), or one agent's id."""

    tenant: str | None = None
    agent_id: str | None = None


class DatabaseAudit:
    """What an audit found; filled while it runs, so that an interruption loses nothing found before."""

    def __init__(self) -> None:
        self.chains: list[ChainVerdict] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.checked = 0
        self.complete = False
        """Whether every row was read: only then is a chain that was not found missing."""

    def problem(self, verdict: Verdict, what: str, reason: str) -> None:
        """Adds a finding that concerns no single chain."""
        self.problems.append(Problem(verdict, what, reason))


@contextmanager
def reported(found: DatabaseAudit, what: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turns an error of one of ``kinds`` into a finding of the part ``what``, which could not be checked."""
    try:
        yield
    except kinds as error:
        found.problem(Verdict.UNCHECKED, what, reason_of(error))


@asynccontextmanager
async def part(connection: Connection, found: DatabaseAudit, what: str) -> AsyncIterator[None]:
    """One part of an audit: its failure is a finding, and the next part goes on in the same snapshot."""
    try:
        async with connection.transaction():
            yield
    except _LOST:
        raise
    except Exception as error:  # noqa: BLE001  a defect must not hide what the other parts find
        found.problem(Verdict.UNCHECKED, what, reason_of(error))


def reason_of(error: Exception) -> str:
    """Why something could not be checked, as a sentence."""
    if isinstance(error, TrailsError):
        return error.message
    if isinstance(error, asyncpg.PostgresError):
        return f"it refuses (SQLSTATE {error.sqlstate}): {error}"
    if isinstance(error, _LOST):
        return f"it cannot be reached, or the connection broke: {str(error) or type(error).__name__}"
    return f"an unexpected error, which is a defect of this program: {type(error).__name__}: {error}"


class AuditRun(msgspec.Struct, frozen=True):
    """One audit under way."""

    url: str
    found: DatabaseAudit
    selection: Selection
    trust: Trust
    checkpoints: Checkpoints
    progress: Progress
    jobs: int
    marks: Marks


class Registry(msgspec.Struct, frozen=True):
    """What must be in the trail, and under whose keys."""

    slugs: dict[UUID, str] | None
    """None: the table of tenants is out of reach."""

    chains: dict[Place, ChainRow]
    keys: Mapping[UUID, Keys] | None
    """None: no key is known, every signer is self-declared."""

    pinned: Keys
    marked: Mapping[Place, Reached]
    """How far chains were verified before, of which this is believed."""

    def name(self, tenant_id: UUID | None, agent_id: str | None, log_uuid: UUID | None) -> ChainName:
        """How a chain is called."""
        tenant = "(none)" if tenant_id is None else (self.slugs or {}).get(tenant_id, str(tenant_id))
        return ChainName(tenant, agent_id or "(none)", str(log_uuid))

    def keys_of(self, tenant_id: UUID) -> Keys | None:
        """The keys that a tenant's chains are held against; None when no key is known at all."""
        return self.pinned or (None if self.keys is None else self.keys.get(tenant_id, {}))


class Target(msgspec.Struct, frozen=True):
    """What rows of one chain are held against."""

    entry: ChainRow
    keys: Keys | None
    checkpoints: Mapping[int, str]
    follow_rotation: bool

    def checkpoints_of(self, spots: Sequence[Spot]) -> dict[int, str]:
        """The checkpoints among these rows."""
        low, high = spots[0].seq or 0, spots[-1].seq or 0
        return {seq: kept for seq, kept in self.checkpoints.items() if low <= seq <= high}


class Walk:
    """Goes through the rows, which come chain by chain."""

    def __init__(self, run: AuditRun, registry: Registry) -> None:
        self._run = run
        self._registry = registry
        self._waiting = dict(registry.chains)
        self._chain: AuditedChain | None = None
        self._failed = False
        self._begun: dict[tuple[UUID, UUID], tuple[str, datetime]] = {}
        self.administrations: dict[UUID, AdministrationState] = {}
        """What the administration chains that verify say, by tenant."""

    def begun(self, entry: ChainRow) -> BegunChain:
        """A chain of the registry with what its genesis record says, if that stands."""
        key, at = self._begun.get((entry.tenant_id, entry.log_uuid), (None, None))
        return BegunChain(entry.agent_id, str(entry.log_uuid), entry.guarded, key, at)

    def take(self, row: AuditedRow) -> None:
        """The next row."""
        chain = self._chain
        if chain is None or not self.is_at(row.spot.place):
            chain = self._begin(row)
            self._enter(chain)
        if not self._failed:
            self._push(chain, row)
        self._count(1)

    def adopt(self, spot: Spot, proven: ProvenRows) -> bool:
        """Takes rows from ``spot`` on for verified that were proven elsewhere.

        False if they may not be the next ones: then they have to be read.
        """
        known = self.is_at(spot.place)
        chain = self._chain if known else self._begin(AuditedRow(spot, None, None, None))
        if (self._failed and known) or not isinstance(chain, RegisteredChain) or not chain.adopt(proven):
            return False
        if not known:
            self._enter(chain)
        self._count(proven.stretch.records)
        return True

    def is_at(self, place: Place) -> bool:
        """Whether this is the chain whose rows came last."""
        return self._chain is not None and self._chain.place == place

    def key_at(self, place: Place) -> PublicKey | None:
        """The key in force behind the last row, if that is of this chain and nothing is wrong with it."""
        chain = self._chain
        return chain.key if isinstance(chain, RegisteredChain) and self.is_at(place) else None

    def target(self, place: Place) -> Target | None:
        """What rows of this chain are held against, if anybody may look at them on their own."""
        entry = self._registry.chains.get(place)
        if entry is None or entry.agent_id == ADMINISTRATION:
            return None
        if place in self._registry.marked and not self.is_at(place):
            return None  # its first row is the one that the mark names
        name = self._registry.name(entry.tenant_id, entry.agent_id, entry.log_uuid)
        keys = self._registry.keys_of(entry.tenant_id)
        return Target(entry, keys, self._run.checkpoints(name), bool(self._registry.pinned))

    def _begin(self, first: AuditedRow) -> AuditedChain:
        return _begin(self._run, self._registry, first, self._waiting.get(first.spot.place))

    def _enter(self, chain: AuditedChain) -> None:
        self._leave()
        self._chain = chain
        self._waiting.pop(chain.place, None)

    def _count(self, rows: int) -> None:
        before, found = self._run.found.checked, self._run.found
        found.checked += rows
        if before // CHUNK_ROWS < found.checked // CHUNK_ROWS:
            self._run.progress(found.checked)

    def tell(self) -> None:
        """Says how far the present chain is verified, for a mark."""
        chain = self._chain
        if (
            not self._failed
            and isinstance(chain, RegisteredChain)
            and (reached := chain.reached()) is not None
        ):
            self._tell(chain, reached)

    def end(self) -> None:
        """There is no further row."""
        self._leave()
        self._run.progress(self._run.found.checked)
        for entry in self._waiting.values():
            self._run.found.chains.append(_vanished(self._run, self._registry, entry))

    def interrupt(self) -> None:
        """The rows end too soon: what was found in the present chain counts, that nothing was does not."""
        chain, self._chain = self._chain, None
        if chain is not None and (report := chain.report()).fault_count:
            self._run.found.chains.append(ChainVerdict(chain.name, report, "not read to its end"))

    def _push(self, chain: AuditedChain, row: AuditedRow) -> None:
        what = f"chain {chain.name.tenant}/{chain.name.agent_id} from seq {row.spot.seq}"
        self._failed = True  # until it is done: a defect must not hide what the other chains say
        with reported(self._run.found, what, (Exception,)):
            chain.push(row)
            self._failed = False

    def _leave(self) -> None:
        if self._failed:
            self.interrupt()
        elif self._chain is not None:
            self._chain.end()
            marked = self._registry.marked.get(self._chain.place)
            verdict = ChainVerdict(
                self._chain.name,
                self._chain.report(),
                self._chain.note,
                None if marked is None else marked.position.head,
            )
            self._run.found.chains.append(verdict)
            self._keep(self._chain, verdict.report)
        self._chain, self._failed = None, False

    def _tell(self, chain: RegisteredChain, reached: Reached | None) -> None:
        resumed = chain.place in self._registry.marked
        self._run.marks.tell(chain.place, chain.name, reached, resumed)

    def _keep(self, chain: AuditedChain, report: Report) -> None:
        """Keeps what is compared when all rows were read."""
        if not isinstance(chain, RegisteredChain):
            return
        self._tell(chain, chain.reached())
        if chain.begun is not None:
            self._begun[chain.entry.tenant_id, chain.entry.log_uuid] = chain.begun
        if chain.administration is not None and not report.fault_count:
            self.administrations[chain.entry.tenant_id] = chain.administration


def _begin(run: AuditRun, registry: Registry, row: AuditedRow, entry: ChainRow | None) -> AuditedChain:
    if entry is None:
        agent_id = None if row.trail is None else row.trail.agent_id
        name = registry.name(row.spot.tenant_id, agent_id, row.spot.log_uuid)
        return UnregisteredRows(name, row)
    name = registry.name(entry.tenant_id, entry.agent_id, entry.log_uuid)
    keys = registry.keys_of(entry.tenant_id)
    follow = bool(registry.pinned)
    chain = RegisteredChain(name, entry, keys, run.checkpoints(name), row, follow_rotation=follow)
    if (marked := registry.marked.get(row.spot.place)) is not None:
        chain.go_on(marked, run.checkpoints(name))
    if registry.slugs is not None and entry.tenant_id not in registry.slugs:
        chain.doubt_tenant()
    return chain


def _vanished(run: AuditRun, registry: Registry, entry: ChainRow) -> ChainVerdict:
    name = registry.name(entry.tenant_id, entry.agent_id, entry.log_uuid)
    audit = ChainAudit(None, run.checkpoints(name))
    marked = registry.marked.get((entry.tenant_id, entry.log_uuid))
    if marked is not None:
        audit.note(missing_record(marked.position.head.seq))
    else:
        audit.note(OrderError("the registry names this chain, but the table holds no record of it", seq=0))
    run.marks.tell((entry.tenant_id, entry.log_uuid), name, None, True)  # noqa: FBT003  as declared there
    return ChainVerdict(name, audit.report(), marked=None if marked is None else marked.position.head)
