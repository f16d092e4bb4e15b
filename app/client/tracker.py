"""The tracker: what an agent does, as the nodes of a trace tree that reaches the service.

::

    tracker = LineageTracker()  # the service, the token and the agent from the environment
    with tracker.node("PLANNING", "answer the question", {"question": question}):
        with tracker.node("TOOL_CALL", "run_sql", {"sql": sql}) as node:
            node.outputs = {"rows": len(rows)}

A node is recorded when its block ends: written to a journal on disk, from where a thread sends it
(``app.client.outbox``). Its outputs are an object with ``status``: ``success``, or ``failed`` with ``error``
when an exception left the block, which is raised again. That holds for nodes of every type, so that one
query finds what went wrong; outputs that are no object stand under ``result``.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import re
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar

import msgspec

from app.chain.strict import JsonObject, JsonValue
from app.client.errors import ConfigurationError, OutboxError, OutboxFullError
from app.client.instant import now
from app.client.journal import Refusal
from app.client.json_values import fitted, json_value, text
from app.client.outbox import EXIT_SECS, MAX_QUEUED, MAX_QUEUED_BYTES, Backoff, Outbox, Report
from app.client.place import GuardedCall
from app.client.scope import Scope, current
from app.client.settings import service
from app.client.transport import TIMEOUT_SECS

P = ParamSpec("P")
R = TypeVar("R")

MAX_NAME_BYTES: Final = 1_024
"""The service takes names of up to 1,024 characters."""

MAX_THOUGHT_BYTES: Final = 1024 * 1024

MAX_TREE: Final = 100_000
"""Nodes of one session that are kept in memory for ``compile_tree``; the oldest are left out of it first."""

MAX_TREE_BYTES: Final = 256 * 1024 * 1024
"""The same in bytes."""

ROOM_SECS: Final = 0.05
"""A coroutine looks this often whether a full journal has room again."""

SUCCESS: Final = "success"
FAILED: Final = "failed"
"""``outputs.status`` of a node that ended well, and of one that did not."""

_log = logging.getLogger("trails.client")
_NODE_TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


class Node:
    """One node, and the block in which it happens. Made by ``Session.node``; usable from any thread."""

    def __init__(
        self,
        session: Session,
        node_type: str,
        name: str,
        inputs: object,
        *,
        parent_id: str | None,
        thought_process: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        if _NODE_TYPE.fullmatch(node_type) is None:
            raise ValueError(f"node_type {node_type!r} must match {_NODE_TYPE.pattern}, such as TOOL_CALL")
        self.node_id: Final = str(uuid.uuid4())
        self.node_type: Final = node_type
        self.name: Final = text(str(name), MAX_NAME_BYTES) or "(unnamed)"
        self.parent_id = None if parent_id is None else _uuid(parent_id, "parent_id")
        """The node under which it is; when none was given, found when the block begins."""
        self.outputs: Any = None
        """What came of it: set it to any value before the block ends."""
        self.thought_process = thought_process
        self.metadata: dict[str, Any] = dict(metadata or {})
        """What else there is to say, such as ``model``, ``tokens`` {input, output} and ``cost``."""
        self._session = session
        self._inputs = json_value(inputs)  # as they are now: the block may change them
        self._status: str | None = None
        self._error: JsonValue = None
        self._scope: Scope | None = None
        self._timestamp = ""
        self._began = 0
        self._duration_ms: float | None = None

    def set(self, outputs: object = msgspec.UNSET, **metadata: Any) -> None:  # noqa: ANN401  any value
        """Sets the outputs, and members of the metadata: ``node.set({"rows": 3}, model="m", cost=0.01)``."""
        if outputs is not msgspec.UNSET:
            self.outputs = outputs
        self.metadata.update(metadata)

    def fail(self, error: BaseException | str) -> None:
        """It failed, although no exception will leave the block."""
        self._status = FAILED
        if isinstance(error, BaseException):
            self._error = json_value(error)
        else:
            self._error = {"type": "error", "message": json_value(str(error))}

    def compiled(self) -> JsonObject:
        """The node as it stands, as JSON."""
        thought = self.thought_process
        metadata: JsonObject = {"timestamp": self._timestamp}
        if self._duration_ms is not None:
            metadata["duration_ms"] = self._duration_ms
        return {
            "node_id": self.node_id,
            "parent_id": self.parent_id,
            "node_type": self.node_type,
            "name": self.name,
            "thought_process": None if thought is None else text(str(thought), MAX_THOUGHT_BYTES),
            "inputs": self._inputs,
            "outputs": self._outputs(),
            "metadata": {**metadata, **_object(json_value(self.metadata))},
        }

    def _outputs(self) -> JsonValue:
        outputs = _object(json_value(self.outputs))
        if self._duration_ms is None:
            return outputs or None  # it has not ended
        if self._status is not None:
            outputs["status"] = self._status
        if self._error is not None:
            outputs["error"] = self._error
        return {"status": SUCCESS, **outputs}

    # --- the block ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.begin(sys._getframe(1))  # noqa: SLF001  there is no other way to see who calls
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.end(error)
        with _not_instead_of(error):
            self._session.record(self)
        return False

    async def __aenter__(self) -> Self:
        self.begin(sys._getframe(1))  # noqa: SLF001  as above
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.end(error)
        with _not_instead_of(error):
            await self._session.arecord(self)
        return False

    def begin(self, frame: FrameType | None) -> None:
        """It begins, and is the parent of what this context does until it ends.

        Args:
            frame: whose block it is.
        """
        if self._scope is not None:
            raise RuntimeError("a node happens once; make another one with node(…)")
        if self.parent_id is None:
            self.parent_id = self._session.current
        self._scope = Scope(self._session.session_id, self.node_id)
        self._scope.begin(frame)
        self._timestamp = now()
        self._began = time.perf_counter_ns()
        self._session.began(self)

    def end(self, error: BaseException | None = None) -> None:
        """It ends, with the exception that left its block if one did."""
        self._duration_ms = round((time.perf_counter_ns() - self._began) / 1e6, 3)
        if self._scope is not None:
            self._scope.end()
        if isinstance(error, GeneratorExit):
            self.metadata.setdefault("closed_early", True)  # its consumer had enough: nothing failed
        elif error is not None:
            self.fail(error)

    def conclude(self, outputs: object, status: str | None) -> None:
        """Of ``end_node``: sets what came of it, and ends it."""
        if outputs is not None:
            self.outputs = outputs
        self._status = self._status if status is None else text(str(status), MAX_NAME_BYTES)
        self.end()


class Session:
    """One session of an agent, a tree of nodes. Made by ``LineageTracker``; usable from any thread.

    Args:
        outbox: what sends its nodes.
        session_id: a UUID; None makes a new one.
        put_timeout: seconds that recording waits when the journal is full; None waits for ever.

    Raises:
        ConfigurationError: ``session_id`` is no UUID.
    """

    def __init__(
        self, outbox: Outbox, session_id: str | uuid.UUID | None = None, put_timeout: float | None = None
    ) -> None:
        self.outbox: Final = outbox
        self.session_id: Final = str(uuid.uuid4()) if session_id is None else _uuid(session_id, "session_id")
        self._put_timeout = put_timeout
        # Open nodes, and ended ones as they were sent. Single operations of a dict need no lock, which a
        # forked child could find held for ever.
        self._nodes: dict[str, Node | GuardedCall | bytes] = {}
        self._bytes = 0  # of the ended ones

    @property
    def agent(self) -> str:
        """The agent whose session it is."""
        return self.outbox.service.agent

    # --- recording ---------------------------------------------------------------------------------

    def node(
        self,
        node_type: str,
        name: str,
        inputs: object = None,
        thought_process: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        parent_id: str | None = None,
    ) -> Node:
        """A node, for ``with`` or ``async with``; it is recorded when the block ends.

        Recording waits while the journal is full; ``async with`` waits without holding up the event loop.

        Args:
            node_type: ``PLANNING``, ``TOOL_CALL``, ``SELF_CORRECTION``, ``OUTPUT``, or another word of
                ``A-Z 0-9 _``.
            name: what it is, such as the tool's name.
            inputs: any value; see ``app.client.json_values`` for what becomes of it.
            thought_process: the agent's stated reason.
            metadata: further members, such as ``model``, ``tokens`` {input, output}, ``cost``.
            parent_id: the node under which it is; None: the one whose block this is in.

        Raises:
            ValueError: ``node_type`` or ``parent_id`` cannot be right.
            OutboxError: by the end of the block: it could not be recorded. An exception of the block itself
                is raised instead, with a note.
        """
        return Node(
            self,
            node_type,
            name,
            inputs,
            parent_id=parent_id,
            thought_process=thought_process,
            metadata=metadata,
        )

    def start_node(
        self,
        node_type: str,
        name: str,
        inputs: object = None,
        parent_id: str | None = None,
        *,
        thought_process: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Begins a node where no block can be, and returns its id; ``end_node`` ends it, anywhere.

        Until then it is the parent of what this context (thread, task) records. Arguments as ``node``.
        """
        node = self.node(node_type, name, inputs, thought_process, metadata, parent_id=parent_id)
        node.begin(sys._getframe(1))  # noqa: SLF001  as in Node
        return node.node_id

    def end_node(
        self,
        node_id: str,
        outputs: object = None,
        status: str | None = None,
        *,
        error: BaseException | str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Ends and records a node that ``start_node`` began.

        Args:
            node_id: as ``start_node`` returned it.
            outputs: any value.
            status: becomes ``outputs.status``; None: ``success``, or ``failed`` when there is an error.
            error: why it failed.
            metadata: members to add.

        Raises:
            ValueError: no such node is open in this session.
            OutboxError: it could not be recorded.
        """
        node = self._nodes.get(str(node_id))
        if not isinstance(node, Node):
            raise ValueError(f"node {node_id} is not open in session {self.session_id}")  # noqa: TRY004
        node.metadata.update(metadata or {})
        if error is not None:
            node.fail(error)
        node.conclude(outputs, status)
        self.record(node)

    def record(self, node: Node) -> None:
        """Puts a node that has ended on its way to the service. Raises ``OutboxError``."""
        body = fitted(node.compiled())
        self._put(node, body, self._put_timeout)

    async def arecord(self, node: Node) -> None:
        """``record`` for coroutines. Whoever is cancelled waits no more, and the node is not recorded."""
        body = fitted(node.compiled())
        until = None if self._put_timeout is None else time.monotonic() + self._put_timeout
        while True:
            try:
                return self._put(node, body, 0)
            except OutboxFullError:
                if until is not None and time.monotonic() >= until:
                    raise
            try:
                # No thread waits for room: the program could not end before it.
                await asyncio.sleep(ROOM_SECS)
            except asyncio.CancelledError:
                _log.error("node %s was not recorded: cancelled while the journal was full", node.node_id)
                raise

    def began(self, node: Node) -> None:
        """Keeps an open node for ``compile_tree`` and ``end_node``."""
        if len(self._nodes) >= MAX_TREE:
            self._forget_one()
        self._nodes[node.node_id] = node

    def show(self, call: GuardedCall) -> None:
        """Shows a guarded call in ``compile_tree``; it is not sent, since the service itself writes it."""
        if call.node_id in self._nodes:
            return  # asked again under its key, or joined: the same action
        if len(self._nodes) >= MAX_TREE:
            self._forget_one()
        self._nodes[call.node_id] = call
        self._count(call.size)

    def guarded(self, node_id: str) -> GuardedCall | None:
        """The guarded call that is shown under this id."""
        found = self._nodes.get(node_id)
        return found if isinstance(found, GuardedCall) else None

    def _put(self, node: Node, body: bytes, timeout: float | None) -> None:
        self.outbox.put_node(self.session_id, node.node_id, body, timeout=timeout)
        if node.node_id in self._nodes:
            self._nodes[node.node_id] = body
            self._count(len(body))

    def _count(self, size: int) -> None:
        self._bytes += size
        while self._bytes > MAX_TREE_BYTES and self._forget_one():
            pass

    def _forget_one(self) -> bool:
        """Leaves the oldest node out of the tree, an open one only where all are; False: there is none."""
        with suppress(StopIteration, RuntimeError):  # other threads do the same
            ended = (name for name, found in self._nodes.items() if not isinstance(found, Node))
            gone = self._nodes.pop(next(ended, None) or next(iter(self._nodes)), b"")
            self._bytes -= gone.size if isinstance(gone, GuardedCall) else 0
            self._bytes -= len(gone) if isinstance(gone, bytes) else 0
            return True
        return False

    # --- parents -----------------------------------------------------------------------------------

    @property
    def current(self) -> str | None:
        """The id of the node whose block this is in: the parent of what is recorded here."""
        return current(self.session_id)

    @contextmanager
    def attach(self, node_id: str | None) -> Iterator[None]:
        """Makes a node the parent of what the block records: in a thread that others gave work to.

        Args:
            node_id: the parent, such as ``current`` where the work was given; None makes roots.
        """
        scope = Scope(self.session_id, None if node_id is None else _uuid(node_id, "node_id"))
        scope.begin(sys._getframe())  # noqa: SLF001  as in Node
        try:
            yield
        finally:
            scope.end()

    def bound(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function with the present node as its parent: ``pool.submit(tracker.bound(work), item)``.

        Threads begin with an empty context; a task of asyncio and ``asyncio.to_thread`` need no such thing.
        """
        node_id = self.current

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.attach(node_id):
                return function(*args, **kwargs)

        return run

    # --- what was recorded -------------------------------------------------------------------------

    def compile_tree(self) -> dict[str, Any]:
        """``{session_id, total_nodes, trace_tree: [nodes]}``: what this tracker recorded, as it was sent.

        Nodes stand in the order in which they began; those that have not ended have no status yet. In a very
        long session it holds the last ``MAX_TREE`` nodes or ``MAX_TREE_BYTES``; the service has all.

        Calls of a ``Guard(tracker=…)`` are in it under the id that the service gives them. They are not
        posted: the guard's own record of a call is the node, and stands before what is posted under its id.
        """
        nodes = list(self._nodes.values())
        tree = [json.loads(node) if isinstance(node, bytes) else node.compiled() for node in nodes]
        return {"session_id": self.session_id, "total_nodes": len(tree), "trace_tree": tree}

    def flush(self, timeout: float | None = 30.0) -> Report:
        """Waits until the service has everything; True when it has. See ``Outbox.flush``."""
        return self.outbox.flush(timeout)

    async def aflush(self, timeout: float | None = 30.0) -> Report:  # noqa: ASYNC109  it ends without an error
        """``flush`` for coroutines."""
        return await asyncio.to_thread(self.outbox.flush, timeout)

    @property
    def refused(self) -> list[Refusal]:
        """Nodes that the service refused for good, with the reason; kept until they are discarded."""
        return self.outbox.refused


class LineageTracker(Session):
    """Records what an agent does as trace trees, durably. It is a session itself, and makes further ones.

    Trackers of one process with the same settings share one journal and one thread.

    Args:
        url: of the service; None: ``LINEAGE_TRAILS_URL``, else ``http://127.0.0.1:9200``.
        token: None: ``LINEAGE_TRAILS_TOKEN``. It is written nowhere.
        agent: the agent's id; None: ``LINEAGE_TRAILS_AGENT``, else the one that an agent's token names.
        session_id: a UUID; None makes a new one.
        spool: the folder of journals; None: ``$XDG_STATE_HOME/lineage-trails/spool``, else below
            ``~/.local/state``. It must be on a local disk.
        max_queued: nodes that may wait in the journal; then recording waits.
        max_queued_bytes: the same in bytes.
        put_timeout: seconds that recording waits for room before it raises; None waits for ever.
        timeout: seconds that one request may take.
        backoff: how long to wait between attempts.
        verify: True, or an ``ssl.SSLContext`` with the authority of your own service.

    Raises:
        ConfigurationError: a setting is missing or cannot be right.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        agent: str | None = None,
        session_id: str | uuid.UUID | None = None,
        *,
        spool: str | os.PathLike[str] | None = None,
        max_queued: int = MAX_QUEUED,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        put_timeout: float | None = None,
        timeout: float = TIMEOUT_SECS,
        backoff: Backoff | None = None,
        verify: ssl.SSLContext | Literal[True] = True,
    ) -> None:
        found = service(url, token, agent)
        if session_id is not None:
            _uuid(session_id, "session_id")  # before anything is opened
        outbox = Outbox.shared(
            found,
            spool=spool,
            max_queued=max_queued,
            max_queued_bytes=max_queued_bytes,
            timeout=timeout,
            backoff=backoff,
            verify=verify,
        )
        super().__init__(outbox, session_id, put_timeout)
        self._open = True

    def session(self, session_id: str | uuid.UUID | None = None) -> Session:
        """Another session of the same agent, over the same journal."""
        return Session(self.outbox, session_id, self._put_timeout)

    def close(self, timeout: float | None = EXIT_SECS) -> Report:
        """Flushes and lets go. What could not be sent in time stays on disk, and the next program sends it.

        The end of the program does the same for trackers that were not closed.
        """
        if not self._open:
            return self.outbox.flush(0)
        self._open = False
        return self.outbox.close(timeout)

    async def aclose(self, timeout: float | None = EXIT_SECS) -> Report:  # noqa: ASYNC109  as in aflush
        """``close`` for coroutines."""
        return await asyncio.to_thread(self.close, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@contextmanager
def _not_instead_of(error: BaseException | None) -> Iterator[None]:
    """An exception of the user's block goes on as it is, even when the node cannot be recorded."""
    try:
        yield
    except OutboxError as trouble:
        if error is None:
            raise
        _log.error("a failed node could not be recorded: %s", trouble)
        error.add_note(f"the node of this block could not be recorded: {trouble}")


def _object(value: JsonValue) -> JsonObject:
    """Outputs are an object, so that they have a status: what is none stands under ``result``."""
    if isinstance(value, dict):
        return dict(value)
    return {} if value is None else {"result": value}


def _uuid(value: str | uuid.UUID, what: str) -> str:
    try:
        return str(uuid.UUID(str(value)))
    except ValueError:
        raise ConfigurationError(f"{what} {value!r} must be a UUID") from None
