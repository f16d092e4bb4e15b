"""Sessions: what all agents of a tenant did together, assembled from records that verify.

A session's records are verified one by one (text, signature, columns), since it holds parts of many chains;
what does not verify is told and left out of the tree. Memory is bounded: of each node only its place is kept,
its contents are read again for the page that shows it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

import db.ledger
import db.sessions
from app.chain.canonical import canonical
from app.chain.record import format_timestamp, hash_text
from app.chain.strict import RECORD_DEPTH, RECORD_STRING, parse
from app.errors import (
    AnswerTooLargeError,
    BadRequestError,
    ConflictError,
    NotFoundError,
    QuarantinedError,
    TenantQuarantinedError,
)
from app.ledger.read import verified_row
from app.moment import from_microseconds, to_microseconds
from app.trace.instant import parse_instant
from app.trace.node import is_uuid
from app.trace.tree import GUARD_KINDS, Source, assemble, outline, sendings_of
from db.sessions import Beginning, Place, Wanted

if TYPE_CHECKING:
    from app.chain.keys import PublicKey
    from app.chain.strict import JsonObject, JsonValue
    from app.ledger.chain import Chain, Chains
    from app.ledger.keys.keystore import Keystore, TenantKeys
    from app.ledger.tenancy.origins import Origins
    from app.trace.tree import Sending, Tree, TreeNode
    from db.ledger import TrailRow
    from db.pool import Pool

MAX_NODES: Final = 20_000
"""Nodes in one answer."""

MAX_UNVERIFIED: Final = 1_000
"""Records that do not verify that one answer lists."""


class Limits(msgspec.Struct, frozen=True):
    """What bounds the work and the memory of one answer."""

    nodes: int = MAX_NODES
    """Nodes in one answer."""

    answer_bytes: int = 32 * 1024 * 1024
    """Bytes of nodes in one answer."""

    sendings: int = 100_000
    """Nodes, each as often as it was sent, of a session that is assembled; about 60 MB while it is."""

    kept_chars: int = 8 * 1024 * 1024
    """Signed text whose contents are kept, so that small sessions are read once."""

    part_nodes: int = 500
    """Nodes whose contents are read at a time."""

    part_chars: int = 4 * 1024 * 1024
    """Signed text, more or less, in which these may stand."""

    looked_at: int = db.sessions.LOOKED_AT
    """Records that one page of sessions looks at."""

    page_bytes: int = 16 * 1024 * 1024
    """Signed text of the sessions that a page counts, or looks into for a filter; one alone may have more."""


LIMITS: Final = Limits()

_AT_ONCE: Final = 2
"""Sessions that one process assembles at the same moment."""

FIRST: Final = Place(datetime(1, 1, 1, tzinfo=UTC), UUID(int=0), -1)
EVER: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
"""Before the first record of any session, and after the last."""

_NEWEST: Final = Beginning(EVER, UUID(int=2**128 - 1))
_MEMBERS: Final = ("name", "node_type", "inputs", "thought_process", "outputs", "metadata")
_MARK_LENGTH: Final = 16
_CURSOR: Final = re.compile(rf"([0-9]{{1,9}}),([0-9TZ:.+-]{{20,40}}),([0-9a-f]{{{_MARK_LENGTH}}})")

_CHANGED: Final = (
    "after: records from before this walk began came in meanwhile; start the walk again without after"
)


class NodeCursor(msgspec.Struct, frozen=True):
    """Where a walk over a session's nodes goes on: in the session as it was when the walk began.

    ``given`` nodes were given before, ``upto_us`` is the time of the last record then (µs), ``mark`` tells
    whether these records are still the same.
    """

    given: int
    upto_us: int
    mark: str

    @classmethod
    def parse(cls, text: str) -> NodeCursor:
        """Reads what ``str`` wrote.

        Raises:
            BadRequestError: it is no such text.
        """
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise BadRequestError("after: must be the next of an earlier answer of this session, unchanged")
        return cls(int(found[1]), _instant(found[2], "after"), found[3])

    def __str__(self) -> str:
        return f"{self.given},{format_timestamp(self.upto_us)},{self.mark}"


class SessionQuery(msgspec.Struct, frozen=True):
    """Which sessions to list: those that begin from ``since`` on and before ``until``, and are ``wanted``."""

    limit: int
    wanted: Wanted = Wanted()
    since_us: int | None = None
    until_us: int | None = None
    after: Beginning | None = None


class Sessions:
    """Lists sessions and reads one; behind ``Ledger``, which takes the grant."""

    def __init__(
        self, pool: Pool, chains: Chains, keystore: Keystore, origins: Origins, limits: Limits = LIMITS
    ) -> None:
        self._pool = pool
        self._origins = origins
        self._limits = limits
        self._chains = chains
        self._keystore = keystore
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def page(self, tenant_id: UUID, query: SessionQuery) -> JsonObject:
        """``{sessions, next}``: newest first, each session once in a walk. ``next`` is null at the end.

        A page looks at a bounded number of records and of bytes, so it may hold fewer than ``limit``
        sessions, or none, and still have a ``next``.
        """
        found = await db.sessions.beginnings(
            self._pool,
            tenant_id,
            since=_moment(query.since_us, FIRST.created_at),
            until=_moment(query.until_us, EVER),
            after=query.after or _NEWEST,
            most=self._limits.looked_at,
        )
        candidates: Sequence[Beginning] = found.beginnings
        following = found.following
        if not query.wanted.all:
            candidates = await self._light(tenant_id, candidates)
        wanted = await db.sessions.matching(
            self._pool, tenant_id, [one.session_id for one in candidates], query.wanted, query.limit
        )
        by_id = {one.session_id: one for one in candidates}
        listed = await self._light(tenant_id, [by_id[session_id] for session_id in wanted])
        if len(listed) < len(wanted) or len(listed) == query.limit:
            candidates = candidates[: candidates.index(listed[-1]) + 1]
        if candidates and candidates[-1] != found.beginnings[-1]:
            following = candidates[-1]
        entries = await db.sessions.entries(self._pool, tenant_id, [one.session_id for one in listed])
        return {
            "sessions": [_listed(entry) for entry in entries],
            "next": None if following is None else write_beginning(following),
        }

    async def _light(self, tenant_id: UUID, beginnings: Sequence[Beginning]) -> Sequence[Beginning]:
        """As many of these as can be looked into for one page: at least one, if there is one."""
        sizes = await db.sessions.sizes(self._pool, tenant_id, [one.session_id for one in beginnings])
        room = self._limits.page_bytes
        for place, one in enumerate(beginnings):
            room -= sizes[one.session_id]
            if room < 0 and place:
                return beginnings[:place]
        return beginnings

    async def read(
        self, tenant_id: UUID, session_id: UUID, *, after: NodeCursor | None = None, limit: int | None = None
    ) -> str:
        """One session as JSON text: its tree, from records that verify.

        Args:
            tenant_id: whose.
            session_id: which.
            after: where a walk over its nodes goes on.
            limit: nodes at most; None: all of them, or an error.

        Raises:
            NotFoundError: the tenant has no record of this session.
            AnswerTooLargeError: it is larger than one answer (page with ``limit``), or than can be assembled.
            ConflictError: ``after`` is of a session that has other records now.
        """
        keys = await self._keystore.of(tenant_id)
        async with self._turns:
            origin_of = _OriginOf(self._pool, self._origins, keys)
            reading = _Reading(self._pool, self._chains, origin_of, session_id, self._limits)
            await reading.run(EVER if after is None else from_microseconds(after.upto_us))
            if not reading.records:
                raise NotFoundError("session not found")
            if after is not None and (after.upto_us, after.mark) != (reading.upto_us, reading.mark):
                raise ConflictError(_CHANGED)
            tree = await asyncio.to_thread(assemble, reading.sendings)
            return await _page_of(reading, tree, after.given if after else 0, limit)


def write_beginning(beginning: Beginning) -> str:
    """A session's beginning as the text that a client sends back: ``time,session_id``."""
    return f"{format_timestamp(to_microseconds(beginning.created_at))},{beginning.session_id}"


def read_beginning(text: str) -> Beginning:
    """Reads what ``write_beginning`` wrote.

    Raises:
        BadRequestError: it is no such text.
    """
    moment, _, session_id = text.rpartition(",")
    if not is_uuid(session_id):
        raise BadRequestError("after: must be the next of an earlier answer, unchanged")
    return Beginning(from_microseconds(_instant(moment, "after")), UUID(session_id))


class _OriginOf:
    """Tells whether anything of a chain is believed: each of its records may verify, by a stolen key."""

    def __init__(self, pool: Pool, origins: Origins, keys: TenantKeys) -> None:
        self._pool = pool
        self._origins = origins
        self.keys = keys

    async def problem(self, chain: Chain) -> str | None:
        """Why the chain is not believed as a whole; None when it is.

        Raises:
            UnavailableError: the database is away.
        """
        if len(self.keys.by_public_key) == 1:
            return None  # no key was ever retired
        try:
            key = chain.genesis_key or await self._begun_with(chain)
            return None if key is None else await self._origins.problem(chain.id, key, self.keys)
        except TenantQuarantinedError as error:
            return error.message
        except QuarantinedError as error:
            return error.reason

    async def _begun_with(self, chain: Chain) -> PublicKey | None:
        first = await db.ledger.row_at(self._pool, chain.id.tenant_id, chain.id.log_uuid, 0)
        if first is None:
            raise chain.quarantine("the first record of the chain is missing")
        verified_row(chain, self.keys, first)
        return self.keys.public(first.key_id)


class _Reading:
    """Reads all records of one session, verified, and keeps what a tree is made of."""

    def __init__(
        self, pool: Pool, chains: Chains, origin_of: _OriginOf, session_id: UUID, limits: Limits
    ) -> None:
        self._pool = pool
        self._chains = chains
        self._origin_of = origin_of
        self._keys = origin_of.keys
        self._known: dict[str, Chain | None] = {}
        self._distrusted: dict[str, str] = {}
        self._kept: dict[tuple[UUID, int], JsonObject] = {}
        self._kept_chars = 0
        self._sizes: dict[tuple[UUID, int], int] = {}
        self._hash = hashlib.sha256()
        self.limits = limits
        self.session_id = session_id
        self.sendings: list[Sending] = []
        self.agents: set[str] = set()
        self.records = 0
        self.unverified: list[JsonValue] = []
        self.unverified_records = 0
        self.upto_us = 0

    @property
    def mark(self) -> str:
        """Changes with the records that were read."""
        return self._hash.hexdigest()[:_MARK_LENGTH]

    async def run(self, upto: datetime) -> None:
        """Reads the session up to a time.

        Raises:
            AnswerTooLargeError: it is too large to be assembled.
        """
        tenant_id, after = self._keys.tenant_id, FIRST
        while rows := await db.sessions.rows(self._pool, tenant_id, self.session_id, after=after, upto=upto):
            for agent_id in {row.agent_id for row in rows} - self._known.keys():
                chain = self._known[agent_id] = await self._chain(agent_id)
                problem = None if chain is None else await self._origin_of.problem(chain)
                if problem is not None:
                    self._distrusted[agent_id] = problem
            await asyncio.to_thread(self._take_all, rows)
            if len(self.sendings) > self.limits.sendings:
                raise AnswerTooLargeError(
                    f"the session has more than {self.limits.sendings} sent nodes, which is more than is "
                    "assembled here; ask the SQL view trace_nodes or session_paths"
                )
            after = Place(rows[-1].created_at, rows[-1].log_uuid, rows[-1].seq)

    def parts(self, nodes: Sequence[TreeNode]) -> Iterator[list[TreeNode]]:
        """The nodes in parts whose records are not too much text to be read at once."""
        part: list[TreeNode] = []
        places: set[tuple[UUID, int]] = set()
        size = 0
        for node in nodes:
            place = (node.shown.source.log_uuid, node.shown.source.seq)
            more = 0 if place in places else self._sizes[place]
            if part and (len(part) >= self.limits.part_nodes or size + more > self.limits.part_chars):
                yield part
                part, places, size, more = [], set(), 0, self._sizes[place]
            part.append(node)
            places.add(place)
            size += more
        if part:
            yield part

    async def contents(self, sources: Sequence[Source]) -> Mapping[tuple[UUID, int], JsonObject]:
        """The payloads of records that were verified here, by chain and ``seq``.

        Raises:
            QuarantinedError: one is not there any more as it was.
        """
        hashes = {(source.log_uuid, source.seq): source.hash for source in sources}
        if self._kept_chars > self.limits.kept_chars and not hashes.keys() <= self._kept.keys():
            self._kept, self._kept_chars = {}, 0
        missing = [place for place in hashes if place not in self._kept]
        for row in await db.ledger.rows_of(self._pool, self._keys.tenant_id, missing) if missing else ():
            if hash_text(row.signed_text) == hashes[row.log_uuid, row.seq]:
                self._keep(row, _payload(row.signed_text))
        for chain, seq in hashes:
            if (chain, seq) not in self._kept:
                raise QuarantinedError(f"record {seq} of chain {chain} is no longer what was verified")
        return self._kept

    async def _chain(self, agent_id: str) -> Chain | None:
        try:
            return await self._chains.get(self._keys.tenant_id, agent_id)
        except NotFoundError:
            return None

    def _take_all(self, rows: Sequence[TrailRow]) -> None:
        for row in rows:
            self._take(row)

    def _take(self, row: TrailRow) -> None:
        self.records += 1
        self._hash.update(row.hash.encode())
        self.upto_us = to_microseconds(row.created_at)
        chain = self._known[row.agent_id]
        if chain is None:
            self._doubt(row, "it names an agent that the registry does not know")
            return
        if row.agent_id in self._distrusted:
            self._doubt(row, self._distrusted[row.agent_id])
            return
        try:
            record = verified_row(chain, self._keys, row)
        except QuarantinedError as error:
            self._doubt(row, error.reason)
            return
        self.agents.add(row.agent_id)
        source = Source(
            log_uuid=row.log_uuid,
            agent_id=row.agent_id,
            seq=row.seq,
            hash=row.hash,
            recorded_us=record.timestamp_us,
            guarded=record.kind in GUARD_KINDS,
        )
        self.sendings += sendings_of(source, record.payload)
        self._sizes[row.log_uuid, row.seq] = len(row.signed_text)
        if self._kept_chars <= self.limits.kept_chars:
            self._keep(row, record.payload)

    def _keep(self, row: TrailRow, payload: JsonObject) -> None:
        self._kept[row.log_uuid, row.seq] = payload
        self._kept_chars += len(row.signed_text)

    def _doubt(self, row: TrailRow, reason: str) -> None:
        self.unverified_records += 1
        if len(self.unverified) < MAX_UNVERIFIED:
            found: JsonObject = {"agent_id": row.agent_id, "log_uuid": str(row.log_uuid), "seq": row.seq}
            self.unverified.append({**found, "reason": reason})


async def _page_of(reading: _Reading, tree: Tree, given: int, limit: int | None) -> str:
    total, most = len(tree.nodes), reading.limits.nodes
    if limit is None and total > most:
        raise AnswerTooLargeError(
            f"the session has {total} nodes, one answer has at most {most}: read it in pages with "
            "?limit=, then ?after= with the next of each answer"
        )
    texts = await _texts(reading, tree.nodes[given : given + min(limit or most, most)], whole=limit is None)
    reached = given + len(texts)
    following = str(NodeCursor(reached, reading.upto_us, reading.mark)) if reached < total else None
    complete = len(texts) == total
    head: JsonObject = {
        "session_id": str(reading.session_id),
        "agents": [*sorted(reading.agents)],
        "records": reading.records,
        "total_nodes": total,
        "depth": tree.depth,
        "roots": tree.roots,
        "orphans": tree.orphans,
        "tree": outline(tree) if complete else None,
        "unverified": reading.unverified,
        "unverified_records": reading.unverified_records,
        "next": following,
    }
    return await asyncio.to_thread(lambda: f'{canonical(head)[:-1]},"nodes":[{",".join(texts)}]}}')


async def _texts(reading: _Reading, nodes: Sequence[TreeNode], *, whole: bool) -> list[str]:
    """The nodes as JSON, as many as fit into one answer; all of them, or an error, when ``whole``."""
    texts: list[str] = []
    size = 0
    for part in reading.parts(nodes):
        contents = await reading.contents([node.shown.source for node in part])
        for text in await asyncio.to_thread(_node_texts, part, contents):
            size += len(text.encode())
            if size > reading.limits.answer_bytes and texts:
                if whole:
                    raise AnswerTooLargeError(
                        f"the nodes of the session are more than {reading.limits.answer_bytes} bytes: read "
                        "it in pages with ?limit=, then ?after= with the next of each answer"
                    )
                return texts
            texts.append(text)
    return texts


def _node_texts(nodes: Sequence[TreeNode], contents: Mapping[tuple[UUID, int], JsonObject]) -> list[str]:
    return [_node_text(node, contents) for node in nodes]


def _node_text(node: TreeNode, contents: Mapping[tuple[UUID, int], JsonObject]) -> str:
    """A node as it was sent, with its place; members that are not ours stand in ``further``."""
    shown, source = node.shown, node.shown.source
    tree = contents[source.log_uuid, source.seq]["trace_tree"]
    sent = tree[shown.position] if isinstance(tree, list) else None
    sent = sent if isinstance(sent, dict) else {}
    known = {"node_id", "parent_id", *_MEMBERS}
    further = {name: value for name, value in sent.items() if name not in known}
    record: JsonObject = {"agent_id": source.agent_id, "seq": source.seq, "hash": source.hash}
    told: JsonObject = {
        "node_id": shown.node_id,
        "parent_id": shown.parent_id,
        **{name: sent.get(name) for name in _MEMBERS},
        "depth": node.depth,
        "orphan": node.orphan,
        "cyclic": node.cyclic,
        "sendings": node.sendings,
        "conflict": node.conflict,
        "recorded_at": format_timestamp(source.recorded_us),
        "record": record,
    }
    return canonical({**told, "further": further} if further else told)


def _listed(entry: db.sessions.Entry) -> JsonValue:
    return {
        "session_id": str(entry.session_id),
        "agents": [*entry.agents],
        "records": entry.records,
        "nodes": entry.nodes,
        "tool_calls": entry.tool_calls,
        "failed_tool_calls": entry.failed_tool_calls,
        "first_recorded_at": format_timestamp(to_microseconds(entry.first_recorded_at)),
        "last_recorded_at": format_timestamp(to_microseconds(entry.last_recorded_at)),
    }


def _payload(text: str) -> JsonObject:
    record = parse(text.encode(), max_depth=RECORD_DEPTH, max_string=RECORD_STRING).value
    payload = record.get("payload") if isinstance(record, dict) else None
    return payload if isinstance(payload, dict) else {}


def _instant(text: str, name: str) -> int:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise BadRequestError(f"{name}: {error}") from None


def _moment(us: int | None, otherwise: datetime) -> datetime:
    return otherwise if us is None else from_microseconds(us)
