"""Two ledgers on one database, whatever is asked of them in whatever order, against the second guard.

Acts carry Idempotency-Keys; now and then one is repeated at either ledger, or a ledger is opened anew. After
each step both ledgers, the model and the rows say the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any
from uuid import uuid4

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.errors import AlreadyTerminatedError, InvalidStateError
from app.ledger import Ledger
from db.pool import Pool, create_pool
from tests.support.guard_model import GuardModel
from tests.support.ledgers import MASTER_KEY, Caller, SetClock, Table, json_of
from tests.support.postgres import Database

TOOLS = ("free", "paid", "held", "short", "capped", "unheard-of")
policies = st.fixed_dictionaries(
    {
        "budget": st.integers(0, 30),
        "scar_limit": st.integers(3, 25),
        "tools": st.just(
            {
                "free": {"cost": 0},
                "paid": {"cost": 3},
                "held": {"cost": 2, "requires_approval": True},
                "short": {"cost": 1, "requires_approval": True, "approval_ttl_secs": 2},
                "capped": {"cost": 1, "max_calls": 2},
            }
        ),
    },
    optional={"rate_limit": st.just({"max_actions": 3, "window_secs": 2})},
)
pauses = st.sampled_from([0, 0.4, 1, 2.5, -3])
severities = st.sampled_from(["minor", "moderate", "severe"])
sides = st.integers(0, 1)

Repeat = tuple[str, tuple[Any, ...], Any]
"""An act that was carried out: its method, arguments (key last) and first answer."""


class Bench:
    """Event loop, pools and clock that all examples share; each example has an agent of its own."""

    def __init__(self, url: str, admin_url: str) -> None:
        self.runner = asyncio.Runner()
        self.clock = SetClock()
        self.pools: list[Pool] = [self.run(create_pool(url)) for _ in range(2)]
        self.ledgers = [self.opened(side) for side in range(2)]
        self.admin: asyncpg.Connection[asyncpg.Record] = self.run(asyncpg.connect(admin_url))
        self.table = Table(self.admin)

    def run(self, act: Coroutine[Any, Any, Any] | Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await act

        return self.runner.run(awaited())

    def opened(self, side: int) -> Ledger:
        opened: Ledger = self.run(Ledger.open(self.pools[side], master_key=MASTER_KEY, clock=self.clock))
        return opened

    def close(self) -> None:
        for ledger, pool in zip(self.ledgers, self.pools, strict=True):
            self.run(ledger.close())
            self.run(pool.close())
        self.run(self.admin.close())
        self.runner.close()


class LedgerMachine(RuleBasedStateMachine):
    """The ledgers beside the model."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.agent = uuid4().hex
        self.model = GuardModel({})
        self.done: list[Repeat] = []

    @initialize(policy=policies)
    def begin(self, policy: dict[str, Any]) -> None:
        self.model = GuardModel(policy)
        self.do(0, "create", policy)

    def do(self, side: int, method: str, *arguments: Any) -> Any:
        """Acts at one ledger under a new key, and notes it for repetition."""
        keyed = (*arguments, f"key-{len(self.done)}")
        answer = json_of(self.call(side, method, keyed))
        self.done.append((method, keyed, answer))
        return answer

    def call(self, side: int, method: str, keyed: tuple[Any, ...]) -> Any:
        caller = Caller(self.bench.ledgers[side], self.agent)
        return self.bench.run(getattr(caller, method)(*keyed[:-1], key=keyed[-1]))

    def now(self, pause: float) -> int:
        """Moves the clock; the time of the next record, which is never before the last one."""
        self.bench.clock.move(pause)
        state = self.bench.run(self.bench.table.folded(self.agent))
        return int(max(self.bench.clock.now_us, state.head.timestamp_us))

    def decided(self, answer: dict[str, Any], expected: dict[str, Any]) -> None:
        assert {name: value for name, value in answer.items() if name != "retry_after_secs"} == expected

    def pick(self, data: st.DataObject) -> str:
        """Any action, but more often one that waits."""
        waiting = self.model.pending()
        return str(data.draw(st.sampled_from(waiting * 3 + [event[1] for event in self.model.asked()])))

    @rule(side=sides, tool=st.sampled_from(TOOLS), value=st.sampled_from([None, {"a": 1}]), pause=pauses)
    def ask(self, side: int, tool: str, value: Any, pause: float) -> None:
        now = self.now(pause)
        expected = self.model.ask(tool, value, None, now)
        self.decided(self.do(side, "ask", tool, value), expected)

    @precondition(lambda self: self.model.asked())
    @rule(side=sides, data=st.data(), pause=pauses)
    def approve(self, side: int, data: st.DataObject, pause: float) -> None:
        action_id, now = self.pick(data), self.now(pause)
        if action_id in self.model.pending():
            expected = self.model.approve(action_id, "alice", now)
            self.decided(self.do(side, "approve", action_id, "fine"), expected)
        else:
            with pytest.raises(InvalidStateError):
                self.do(side, "approve", action_id, "fine")

    @precondition(lambda self: self.model.asked())
    @rule(side=sides, data=st.data(), scar=st.none() | severities)
    def reject(self, side: int, data: st.DataObject, scar: str | None) -> None:
        action_id = self.pick(data)
        if action_id in self.model.pending():
            expected = self.model.reject(action_id, "bob", "no", scar)
            self.decided(self.do(side, "reject", action_id, "no", scar), expected)
        else:
            with pytest.raises(InvalidStateError):
                self.do(side, "reject", action_id, "no", scar)

    @precondition(lambda self: self.model.asked())
    @rule(side=sides, data=st.data(), status=st.sampled_from(["success", "failure", "harmful", "unknown"]))
    def report(self, side: int, data: st.DataObject, status: str) -> None:
        action_id = self.pick(data)
        if self.model.may_report(action_id, status):
            self.model.report(action_id, status)
            self.do(side, "report", action_id, status, "")
        else:
            with pytest.raises(InvalidStateError):
                self.do(side, "report", action_id, status, "")

    @rule(side=sides, severity=severities)
    def scar(self, side: int, severity: str) -> None:
        self.model.scar(severity)
        self.do(side, "scar", severity, "seen", None)

    @rule(side=sides, really=st.integers(0, 5))
    def terminate(self, side: int, really: int) -> None:
        if self.model.termination() is not None:
            with pytest.raises(AlreadyTerminatedError):
                self.do(side, "terminate", "incident")
        elif really == 0:
            self.model.terminate("incident")
            self.do(side, "terminate", "incident")

    @precondition(lambda self: self.done)
    @rule(side=sides, data=st.data())
    def repeat(self, side: int, data: st.DataObject) -> None:
        method, keyed, first = data.draw(st.sampled_from(self.done))
        assert json_of(self.call(side, method, keyed)) == first

    @rule(side=sides)
    def restart(self, side: int) -> None:
        self.bench.run(self.bench.ledgers[side].close())
        self.bench.ledgers[side] = self.bench.opened(side)

    @invariant()
    def all_say_the_same(self) -> None:
        if not self.done:
            return
        one, other = (self.bench.run(Caller(ledger, self.agent).status()) for ledger in self.bench.ledgers)
        assert one == other
        state, model = self.bench.run(self.bench.table.folded(self.agent)), self.model
        assert one["head"] == {"seq": state.head.seq, "hash": state.head.hash}
        assert (one["spent"], state.spent) == (model.spent(), model.spent())
        assert (one["scar_score"], state.scar_score) == (model.score(), model.score())
        assert (one["termination_reason"], state.terminated) == (model.termination(), model.termination())
        assert one["actions_allowed"] == len(model.allowed())
        assert one["actions_denied"] == len(model.denied())
        assert list(state.pending) == model.pending()
        assert state.action_count == len(model.asked())

    def teardown(self) -> None:
        if self.done:
            for ledger in self.bench.ledgers:
                assert self.bench.run(Caller(ledger, self.agent).verify())["ok"] is True


def test_two_ledgers_say_what_the_second_guard_says(database: Database) -> None:
    bench = Bench(database.app_url, database.admin_url)
    try:
        run_state_machine_as_test(
            lambda: LedgerMachine(bench),  # type: ignore[arg-type] # a factory is taken too
            settings=settings(max_examples=20, stateful_step_count=15, deadline=None),
        )
    finally:
        bench.close()
