"""Asking before acting: what every guard client does, whatever guard is behind it.

The rules, each of which a test names:

- Only ``Allowed`` lets a tool run. A guard that cannot be reached, answers with an error, too late or not
  at all has not allowed anything.
- Every question carries an Idempotency-Key and is sent again with it, a bounded number of times, so that an
  answer that was lost on its way is charged once.
- An approval lets exactly one caller go, with exactly what was approved: whoever waited claims the action
  before the tool runs, on the record (``app.client.waiting``).
- What was carried out is reported: ``success``, ``failure`` when the tool raised, ``unknown`` when it was
  interrupted. An outcome is not lost because the service is away for a while.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeAlias, TypeVar, cast, overload

from app.chain.strict import JsonObject
from app.client.backend import Backend, Outcome, Refusal
from app.client.decisions import (
    UNAVAILABLE,
    Allowed,
    Decision,
    Denied,
    OutcomeRefusedError,
    OutcomeStatus,
    Pending,
)
from app.client.instant import now
from app.client.json_values import escape
from app.client.place import Place
from app.client.retry import ATTEMPTS, persistently
from app.client.service import encode
from app.client.toolwrap import ToolDecorator
from app.client.verdicts import Blame, Judge, outcome_of_error, readable, success
from app.client.waiting import Call, Look, OnPending, Persistence, Unanswered, Waiting, as_recorded
from app.client.worker import NoResultError, Worker, WorkerClosedError

if TYPE_CHECKING:
    from app.client.tracker import Session

P = ParamSpec("P")
R = TypeVar("R")

DECISION_SECS: Final = 10.0
"""How long a question may take, all attempts together; then it is denied. The service gives up on its own
database after five seconds, and says so."""

APPROVAL_SECS: Final = 300.0
"""How long a call waits for a person by default."""

CLOSE_SECS: Final = 5.0
"""How long ``close`` waits for outcomes that are still on their way."""

_FIRST_RESEND_SECS: Final = 0.5
_LAST_RESEND_SECS: Final = 30.0

_NOT_OF_THE_OUTCOME: Final = frozenset({UNAVAILABLE, "unauthorized"})
"""Something else answered, or the token is no longer valid: the outcome is kept."""

_log = logging.getLogger("trails.client")


Question: TypeAlias = Callable[[Backend], Coroutine[Any, Any, Decision]]
"""What is asked of a backend; it does not fail, since no answer is a denial."""


class Gate:
    """A guard that programs ask before they act. Safe to use from threads and from any event loop."""

    def __init__(
        self,
        worker: Worker[Backend],
        *,
        tracker: Session | None = None,
        approval_timeout: float = APPROVAL_SECS,
        attempts: int = ATTEMPTS,
        timeout: float = DECISION_SECS,
        on_pending: OnPending | None = None,
    ) -> None:
        self._worker = worker
        self._place = Place(tracker)
        self._approval_timeout = approval_timeout
        self._attempts = attempts
        self._timeout = timeout
        self._on_pending = on_pending
        self._log_uuid: uuid.UUID | None = None
        self._unanswered = Unanswered()

    def in_session(self, session: Session) -> Self:
        """The same guard for the calls of another session of the tracker; closing one closes both."""
        other = copy.copy(self)
        other._place = Place(session)  # noqa: SLF001  of its own class
        return other

    # --- asking ------------------------------------------------------------------------------------

    def check(
        self,
        tool: str,
        input: Any = None,  # noqa: A002, ANN401  the member's name in the API; any JSON
        *,
        cost: int | None = None,
        thought_process: str | None = None,
        idempotency_key: str | None = None,
    ) -> Decision:
        """Asks whether the agent may do this, and puts question and answer on record.

        Never raises for what the service says or does not say: without a decision within the guard's
        ``timeout`` the answer is ``Denied``.

        Args:
            tool: name of the tool, exactly as the policy has it.
            input: what it would be called with; anything, see ``app.client.json_values``.
            cost: raises the charge above the tool's own, never lowers it.
            thought_process: the agent's stated reason.
            idempotency_key: asks the same question again under this key instead of a new one.

        Raises:
            ValueError: ``cost`` is no number that JSON has; nothing was sent.
        """
        question = self._question(tool, input, cost, thought_process, idempotency_key)
        return self._asked(question, self._timeout, self._too_late())

    async def acheck(
        self,
        tool: str,
        input: Any = None,  # noqa: A002, ANN401  as in check
        *,
        cost: int | None = None,
        thought_process: str | None = None,
        idempotency_key: str | None = None,
    ) -> Decision:
        """``check`` for coroutines."""
        question = self._question(tool, input, cost, thought_process, idempotency_key)
        return await self._aasked(question, self._timeout, self._too_late())

    def decide(
        self,
        tool: str,
        input: Any = None,  # noqa: A002, ANN401  as in check
        *,
        cost: int | None = None,
        thought_process: str | None = None,
        wait: bool = True,
    ) -> Decision:
        """``check``, and when a person has to decide, ``wait`` for it (unless told not to)."""
        decision = self.check(tool, input, cost=cost, thought_process=thought_process)
        if not wait or not isinstance(decision, Pending):
            return decision
        return self.wait(decision.action_id, tool=tool, input=input)

    async def adecide(
        self,
        tool: str,
        input: Any = None,  # noqa: A002, ANN401  as in check
        *,
        cost: int | None = None,
        thought_process: str | None = None,
        wait: bool = True,
    ) -> Decision:
        """``decide`` for coroutines."""
        decision = await self.acheck(tool, input, cost=cost, thought_process=thought_process)
        if not wait or not isinstance(decision, Pending):
            return decision
        return await self.await_(decision.action_id, tool=tool, input=input)

    # --- waiting for a person -----------------------------------------------------------------------

    def wait(
        self,
        action_id: str,
        timeout: float | None = None,
        *,
        tool: str | None = None,
        input: Any = None,  # noqa: A002, ANN401  as in check
    ) -> Decision:
        """Waits until a person has decided; looks again in growing intervals, and through outages.

        What it waits for is logged once (WARNING, ``trails.client``), with how to approve it. Once approved,
        the action is claimed with what is to be run: another input than the approved one is denied
        (``claim_mismatch``), and so is every caller but one (``already_claimed``).

        Args:
            action_id: of a ``Pending`` decision.
            timeout: seconds; None: the guard's ``approval_timeout``.
            tool: what will be run; None: what is on record as asked, and the caller runs just that.
            input: what ``tool`` will be called with, read when the approval is there.

        Returns:
            ``Allowed``: to this caller alone, who claimed the action on the record. ``Denied``: also when the
            answer to the claim did not come; the same guard's next ``wait`` for the action asks for it again.
            Or ``Pending`` when the time is over: not allowed, whatever is decided later.
        """
        call = None if tool is None else Call(tool, input)
        look, waiting, late = self._waiting(action_id, timeout, call)
        while True:
            decision = self._asked(look, max(waiting.left, self._timeout), late)
            if look.prepared(call):
                continue
            if not isinstance(decision, Pending) or waiting.over:
                return self._ended(look, decision)
            look.tell(waiting.secs, self._on_pending)
            time.sleep(waiting.interval())

    async def await_(
        self,
        action_id: str,
        timeout: float | None = None,  # noqa: ASYNC109  as wait
        *,
        tool: str | None = None,
        input: Any = None,  # noqa: A002, ANN401  as in check
    ) -> Decision:
        """``wait`` for coroutines."""
        call = None if tool is None else Call(tool, input)
        look, waiting, late = self._waiting(action_id, timeout, call)
        while True:
            decision = await self._aasked(look, max(waiting.left, self._timeout), late)
            if look.prepared(call):
                continue
            if not isinstance(decision, Pending) or waiting.over:
                return self._ended(look, decision)
            look.tell(waiting.secs, self._on_pending)
            await asyncio.sleep(waiting.interval())

    # --- carrying out -------------------------------------------------------------------------------

    def carry_out(
        self,
        allowed: Allowed,
        run: Callable[[], R],
        *,
        judge: Judge = success,
        blame: Blame = outcome_of_error,
    ) -> R:
        """Runs ``run``, which this decision allows, and puts on record how it went.

        Args:
            allowed: the decision.
            run: does it; what it raises is reported and raised again.
            judge: tells from the result how it went, where failures are returned and not raised.
            blame: tells from what was raised how it went.
        """
        try:
            with self._place.inside(self._node(allowed.action_id)):
                result = run()
        except Exception as error:
            self._settle(allowed, *blame(error))
            raise
        except BaseException as error:
            self._send(allowed, *blame(error))
            raise
        self._settle(allowed, *judge(result))
        return result

    async def acarry_out(
        self,
        allowed: Allowed,
        run: Callable[[], Awaitable[R]],
        *,
        judge: Judge = success,
        blame: Blame = outcome_of_error,
    ) -> R:
        """``carry_out`` for coroutines. What is cancelled is on record as ``unknown``."""
        try:
            with self._place.inside(self._node(allowed.action_id)):
                result = await run()
        except Exception as error:
            await self._asettle(allowed, *blame(error))
            raise
        except BaseException as error:
            self._send(allowed, *blame(error))
            raise
        await self._asettle(allowed, *judge(result))
        return result

    @overload
    def tool(self, name: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def tool(
        self,
        name: str | None = None,
        *,
        cost: int | None = None,
        wait: bool = True,
        thought_process: str | None = None,
    ) -> ToolDecorator: ...

    def tool(
        self,
        name: str | Callable[P, R] | None = None,
        *,
        cost: int | None = None,
        wait: bool = True,
        thought_process: str | None = None,
    ) -> ToolDecorator | Callable[P, R]:
        """Guards a function or coroutine function: it asks first, runs only when allowed, and reports.

        A call that is not allowed raises ``ActionDenied`` with the decision. The input on record is the
        call's arguments by name. ``@guard.tool`` alone and ``@guard.tool()`` take the function's own name.

        Args:
            name: of the tool, exactly as the policy has it.
            cost: raises the charge above the tool's own.
            wait: whether a call that needs a person waits for the approval; else it is not run.
            thought_process: put on record with each call.

        Raises:
            TypeError: of the decorator, for what cannot be guarded; see ``ToolDecorator``.
            ValueError: ``name`` is empty.
        """
        if name == "":
            raise ValueError("the name of a tool is empty; give the one that the policy has")
        of_function = name is None or isinstance(name, str)
        made = ToolDecorator(
            self,
            name if isinstance(name, str) else None,
            cost=cost,
            wait=wait,
            thought_process=thought_process,
        )
        return made if of_function else made(cast("Callable[P, R]", name))

    # --- outcomes -----------------------------------------------------------------------------------

    def report(self, action_id: str, status: OutcomeStatus, detail: str = "") -> bool:
        """Puts on record how an allowed action went.

        Returns:
            True when it is on record; False when the service is away: it is kept, and sent later.

        Raises:
            OutcomeRefusedError: the service does not take it, e.g. there is an outcome already.
        """
        return self._worker.call(self._delivery(action_id, status, detail))

    async def areport(self, action_id: str, status: OutcomeStatus, detail: str = "") -> bool:
        """``report`` for coroutines."""
        return await self._worker.acall(self._delivery(action_id, status, detail))

    # --- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for what is on its way, five seconds at most, and closes the connections. Idempotent."""
        self._worker.close(CLOSE_SECS)

    async def aclose(self) -> None:
        """``close`` for coroutines."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- questions ----------------------------------------------------------------------------------

    def _asked(self, question: Question, secs: float, late: Decision) -> Decision:
        try:
            return self._worker.call(question, self._given_up, secs)
        except (WorkerClosedError, Refusal) as error:
            return _none(error)
        except NoResultError:
            return late

    async def _aasked(self, question: Question, secs: float, late: Decision) -> Decision:
        try:
            return await self._worker.acall(question, self._given_up, secs)
        except (WorkerClosedError, Refusal) as error:
            return _none(error)
        except NoResultError:
            return late

    def _too_late(self) -> Denied:
        return Refusal.unavailable(f"no decision came within {self._timeout:g} seconds").denied()

    def _question(
        self,
        tool: str,
        value: Any,  # noqa: ANN401  as in check
        cost: int | None,
        thought: str | None,
        key: str | None,
    ) -> Question:
        session_id, parent_id = self._place.now()
        members: JsonObject = {
            "input": as_recorded(value),
            "cost": cost,
            "session_id": session_id,
            "parent_id": parent_id,
            "thought_process": None if thought is None else escape(thought),
        }
        body = encode({"tool": tool, **{name: said for name, said in members.items() if said is not None}})
        key = key or uuid.uuid4().hex

        async def ask(backend: Backend) -> Decision:
            until = time.monotonic() + self._timeout
            try:
                decision = await persistently(lambda: backend.ask(body, key), self._attempts, until)
            except Refusal as refusal:
                return refusal.denied()
            if self._place.known:
                await self._know_chain(backend, (until - time.monotonic()) / 2)
                self._show(tool, members, decision)
            return decision

        return ask

    def _waiting(
        self, action_id: str, timeout: float | None, call: Call | None
    ) -> tuple[Look, Waiting, Decision]:
        look = self._unanswered.take(action_id, call) or Look(
            action_id,
            Persistence(self._attempts, self._timeout),
            lambda denied: self._place.denied(self._node(action_id), denied.reason),
        )
        return look, Waiting(self._approval_timeout if timeout is None else timeout), Pending(action_id)

    def _ended(self, look: Look, decision: Decision) -> Decision:
        """What a wait ends with. A claim without an answer is the next wait's: it may be this guard's."""
        if not look.unanswered or not isinstance(decision, Pending):
            return decision
        self._unanswered.keep(look)
        return Refusal.unavailable("it was approved, but whether it is claimed is not known").denied(
            decision.action_id
        )

    async def _given_up(self, backend: Backend, decision: Decision) -> None:
        """The caller went away while it was allowed: the record says that nobody knows the outcome."""
        if isinstance(decision, Allowed):
            outcome = _outcome(decision.action_id, "unknown", "given up before it was carried out")
            self._place.ended(self._node(outcome.action_id), outcome.status, outcome.detail)
            await _sent(backend, outcome)

    # --- outcomes -----------------------------------------------------------------------------------

    def _settle(self, allowed: Allowed, status: OutcomeStatus, detail: str) -> None:
        try:
            self.report(allowed.action_id, status, detail)
        except (OutcomeRefusedError, WorkerClosedError, Refusal) as error:
            _log_lost(_outcome(allowed.action_id, status, detail), error)

    async def _asettle(self, allowed: Allowed, status: OutcomeStatus, detail: str) -> None:
        try:
            await self.areport(allowed.action_id, status, detail)
        except (OutcomeRefusedError, WorkerClosedError, Refusal) as error:
            _log_lost(_outcome(allowed.action_id, status, detail), error)

    def _send(self, allowed: Allowed, status: OutcomeStatus, detail: str) -> None:
        """Reports without waiting for it: the caller is being interrupted, and the program may end."""
        outcome = _outcome(allowed.action_id, status, detail)
        self._place.ended(self._node(allowed.action_id), status, outcome.detail)
        try:
            self._worker.spawn(lambda backend: _sent(backend, outcome))
        except WorkerClosedError as error:
            _log_lost(outcome, error)

    def _delivery(
        self, action_id: str, status: OutcomeStatus, detail: str
    ) -> Callable[[Backend], Coroutine[Any, Any, bool]]:
        outcome = _outcome(action_id, status, detail)

        async def deliver(backend: Backend) -> bool:
            try:
                await persistently(lambda: backend.report(outcome), 1 if backend.keeps else self._attempts)
            except Refusal as refusal:
                away = refusal.passing or (backend.keeps and refusal.code in _NOT_OF_THE_OUTCOME)
                if not away:
                    raise OutcomeRefusedError(action_id, refusal.code, str(refusal)) from None
                self._place.ended(self._node(action_id), status, outcome.detail)
                if not backend.keep(outcome):
                    self._worker.spawn(lambda backend: _resent(backend, outcome))
                return False
            self._place.ended(self._node(action_id), status, outcome.detail)
            return True

        return deliver

    # --- the tool call as a node --------------------------------------------------------------------

    def _node(self, action_id: str) -> uuid.UUID | None:
        """The node that the service itself writes for this action, known before it is written."""
        return None if self._log_uuid is None else uuid.uuid5(self._log_uuid, action_id)

    async def _know_chain(self, backend: Backend, secs: float) -> None:
        """Asks once for the chain's id. Without it the call is allowed all the same, and not shown."""
        if self._log_uuid is None:
            with suppress(Refusal, TimeoutError):
                async with asyncio.timeout(secs):
                    self._log_uuid = await backend.log_uuid()

    def _show(self, tool: str, asked: JsonObject, decision: Decision) -> None:
        """The call as a node of the local tree, as the service will write it."""
        if decision.action_id is None:
            return
        node = self._node(decision.action_id)
        members: JsonObject = {
            "parent_id": asked["parent_id"],
            "name": tool,
            "inputs": asked["input"],
            "thought_process": asked["thought_process"],
        }
        metadata: JsonObject = {"action_id": decision.action_id, "timestamp": now()}
        if isinstance(decision, Allowed):
            metadata["cost"] = decision.cost
        self._place.show(node, members, metadata)
        if isinstance(decision, Denied):
            self._place.denied(node, decision.reason)


def _none(error: WorkerClosedError | Refusal) -> Denied:
    """The denial when there is nobody to ask."""
    refusal = error if isinstance(error, Refusal) else Refusal.unavailable(str(error))
    return refusal.denied()


def _outcome(action_id: str, status: OutcomeStatus, detail: str) -> Outcome:
    return Outcome(action_id, status, readable(detail), uuid.uuid4().hex)


async def _sent(backend: Backend, outcome: Outcome) -> None:
    """Keeps an outcome where it survives the end of this program, which may be near; else sends it."""
    if not backend.keep(outcome):
        await _resent(backend, outcome)


async def _resent(backend: Backend, outcome: Outcome) -> None:
    """Sends an outcome until it is on record, as long as this process lives."""
    pause = _FIRST_RESEND_SECS
    try:
        while True:
            try:
                return await backend.report(outcome)
            except Refusal as refusal:
                if not refusal.passing:
                    return _log_lost(outcome, refusal)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_RESEND_SECS)
    except asyncio.CancelledError as error:
        _log_lost(outcome, error)
        raise


def _log_lost(outcome: Outcome, error: BaseException) -> None:
    reason = str(error) or type(error).__name__
    _log.error("the outcome of %s (%s) is not on record: %s", outcome.action_id, outcome.status, reason)
