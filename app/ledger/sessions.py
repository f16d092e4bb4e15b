"""Sessions: what all agents of a tenant did together, assembled from records that verify.

How its records are read and verified is in ``app.ledger.session_reading``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

import msgspec

import db.ledger
import db.sessions
from app.chain.canonical import canonical
from app.chain.record import format_timestamp
from app.errors import (
    AnswerTooLargeError,
    BadRequestError,
    ConflictError,
    NotFoundError,
)
from app.ledger.session_reading import EVER, FIRST, LIMITS, MARK_LENGTH, Limits, OriginOf, Reading
from app.ledger.surveys import Survey, Surveys
from app.moment import from_microseconds, to_microseconds
from app.trace.instant import parse_instant
from app.trace.node import is_uuid
from app.trace.tree import assemble, outline
from db.sessions import Beginning, Wanted

if TYPE_CHECKING:
    from app.chain.strict import JsonObject, JsonValue
    from app.ledger.chain import Chains
    from app.ledger.keys.keystore import Keystore
    from app.ledger.tenancy.origins import Origins
    from app.trace.tree import Tree, TreeNode
    from db.pool import Pool

_AT_ONCE: Final = 2
"""Sessions that one process assembles at the same moment."""

_NEWEST: Final = Beginning(EVER, UUID(int=2**128 - 1))
_MEMBERS: Final = ("name", "node_type", "inputs", "thought_process", "outputs", "metadata")
_CURSOR: Final = re.compile(rf"([0-9]{{1,9}}),([0-9TZ:.+-]{{20,40}}),([0-9a-f]{{{MARK_LENGTH}}})")

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


T = TypeVar("T")


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
        self._surveys = Surveys()

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
        async with self._turns:
            upto = EVER if after is None else from_microseconds(after.upto_us)
            reading = await self._reading(tenant_id, session_id, upto)
            if after is not None and (after.upto_us, after.mark) != (reading.upto_us, reading.mark):
                raise ConflictError(_CHANGED)
            tree = await asyncio.to_thread(assemble, reading.sendings)
            return await _page_of(reading, tree, after.given if after else 0, limit)

    async def survey(
        self,
        tenant_id: UUID,
        session_id: UUID,
        look: Callable[[TreeNode, JsonObject], T],
        *,
        only: Callable[[TreeNode], bool] | None = None,
    ) -> Survey[T]:
        """One session as a whole, and of its nodes what ``look`` keeps.

        Args:
            tenant_id: whose.
            session_id: which.
            look: is given a node and its members as they were sent; runs in a thread.
            only: which nodes to look at; None: all. The contents of the others are not read.

        Raises:
            NotFoundError: the tenant has no record of this session.
            AnswerTooLargeError: it is larger than can be assembled, or than can be looked at as a whole.
        """
        async with self._turns:
            reading = await self._reading(tenant_id, session_id, EVER)
            tree = await asyncio.to_thread(assemble, reading.sendings)
            if only is None and len(tree.nodes) > self._limits.nodes:
                raise AnswerTooLargeError(
                    f"the session has {len(tree.nodes)} nodes, and at most {self._limits.nodes} are shown as "
                    "one tree; read it in pages by GET /v1/sessions/{id}?limit=, or ask the SQL "
                    "view session_paths"
                )
            seen: list[T] = []
            for part in reading.parts([node for node in tree.nodes if only is None or only(node)]):
                contents = await reading.contents([node.shown.source for node in part])
                seen += await asyncio.to_thread(_looked_at, part, contents, look)
        survey = Survey(
            tree=tree,
            seen=seen,
            sendings=reading.sendings,
            agents=sorted(reading.agents),
            kinds=reading.kinds,
            records=reading.records,
            first_us=reading.first_us,
            last_us=reading.upto_us,
            unverified=reading.unverified,
            unverified_records=reading.unverified_records,
        )
        self._surveys.keep(tenant_id, session_id, survey)
        return survey

    async def look_at(
        self,
        tenant_id: UUID,
        session_id: UUID,
        look: Callable[[TreeNode, JsonObject], T],
        *,
        only: Callable[[TreeNode], bool],
    ) -> Survey[T]:
        """One session as ``survey`` gives it, of which the first node that is meant is looked at.

        Of a session that was surveyed a moment ago, and still has the same records, that node's record alone
        is read and verified.

        Raises:
            NotFoundError, AnswerTooLargeError: as ``survey``.
        """
        kept = await self._kept(tenant_id, session_id)
        if kept is not None:
            node = next(filter(only, kept.tree.nodes), None)
            if node is None:
                return _seen(kept, [])
            contents = await self._again(tenant_id, session_id, node)
            if contents is not None:
                return _seen(kept, await asyncio.to_thread(_looked_at, [node], contents, look))
        return await self.survey(tenant_id, session_id, look, only=only)

    async def _kept(self, tenant_id: UUID, session_id: UUID) -> Survey[None] | None:
        """The survey that is kept of a session, if its records are still those."""
        kept = self._surveys.get(tenant_id, session_id)
        if kept is None:
            return None
        extent = await db.sessions.extent(self._pool, tenant_id, session_id)
        last_us = None if extent.last is None else to_microseconds(extent.last)
        if (extent.records, last_us) == (kept.records, kept.last_us):
            return kept
        self._surveys.drop(tenant_id, session_id)
        return None

    async def _again(
        self, tenant_id: UUID, session_id: UUID, node: TreeNode
    ) -> Mapping[tuple[UUID, int], JsonObject] | None:
        """What the record of a node holds, if it is the one that was verified and verifies now."""
        reading = await self._begun(tenant_id, session_id)
        return await reading.again(node.shown.source)

    async def sums(self, tenant_id: UUID, session_ids: Sequence[UUID]) -> dict[UUID, db.sessions.Sums]:
        """Tokens, cost and the senders' times of sessions, as the view ``trails.sessions`` counts them."""
        return await db.sessions.sums(self._pool, tenant_id, session_ids)

    async def models(self, tenant_id: UUID, session_id: UUID) -> list[db.sessions.Model]:
        """Tokens and cost of one session by model."""
        return await db.sessions.models(self._pool, tenant_id, session_id)

    async def _reading(self, tenant_id: UUID, session_id: UUID, upto: datetime) -> Reading:
        """All records of a session up to a time; it is somebody's turn to read one."""
        reading = await self._begun(tenant_id, session_id)
        await reading.run(upto)
        if not reading.records:
            raise NotFoundError("session not found")
        return reading

    async def _begun(self, tenant_id: UUID, session_id: UUID) -> Reading:
        keys = await self._keystore.of(tenant_id)
        origin_of = OriginOf(self._pool, self._origins, keys)
        return Reading(self._pool, self._chains, origin_of, session_id, self._limits)


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


async def _page_of(reading: Reading, tree: Tree, given: int, limit: int | None) -> str:
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


async def _texts(reading: Reading, nodes: Sequence[TreeNode], *, whole: bool) -> list[str]:
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
    sent = _sent(node, contents)
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


def _sent(node: TreeNode, contents: Mapping[tuple[UUID, int], JsonObject]) -> JsonObject:
    """The members of a node as they were sent."""
    source = node.shown.source
    tree = contents[source.log_uuid, source.seq]["trace_tree"]
    sent = tree[node.shown.position] if isinstance(tree, list) else None
    return sent if isinstance(sent, dict) else {}


def _looked_at(
    nodes: Sequence[TreeNode],
    contents: Mapping[tuple[UUID, int], JsonObject],
    look: Callable[[TreeNode, JsonObject], T],
) -> list[T]:
    return [look(node, _sent(node, contents)) for node in nodes]


def _seen(survey: Survey[None], seen: list[T]) -> Survey[T]:
    return msgspec.structs.replace(survey, seen=seen)  # type: ignore[arg-type]  # of another type from here


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


def _instant(text: str, name: str) -> int:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise BadRequestError(f"{name}: {error}") from None


def _moment(us: int | None, otherwise: datetime) -> datetime:
    return otherwise if us is None else from_microseconds(us)
