"""Snapshots close together, whatever is asked in whatever order: who begins at one says what the rows say.

Two ledgers that take snapshots and one that reads whole chains; keys are rotated, clocks step, ledgers open
anew, and whatever was answered is asked for again.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.errors import ConflictError, ForbiddenError, NotFoundError, TooManyRequestsError
from app.ledger import Ledger
from app.principal import ADMINISTRATION, Permission
from db.pool import create_pool
from db.schema import DEFAULT_TENANT_ID
from tests.properties.test_ledger_model import Bench, pauses, severities
from tests.support.faults import rounds
from tests.support.ledgers import MASTER_KEY, Caller, json_of, posted
from tests.support.postgres import Database

EVERY = (2, 3, 0)
TOOLS = ("free", "paid", "held", "two", "short", "capped", "unheard-of")
REFUSED = (ConflictError, ForbiddenError, NotFoundError, TooManyRequestsError)
POLICY = {
    "budget": 60,
    "scar_limit": 40,
    "tools": {
        "free": {"cost": 0},
        "paid": {"cost": 3},
        "held": {"cost": 2, "requires_approval": True},
        "two": {"cost": 2, "requires_approval": True, "approvers": 2},
        "short": {"cost": 1, "requires_approval": True, "approval_ttl_secs": 2},
        "capped": {"cost": 1, "max_calls": 2},
    },
    "rate_limit": {"max_actions": 3, "window_secs": 2},
}
sides = st.integers(0, 2)


class SnapshotBench(Bench):
    """Ledgers that take snapshots every so many records; the last one reads and writes none."""

    def __init__(self, url: str, admin_url: str) -> None:
        super().__init__(url, admin_url)
        self.pools.append(self.run(create_pool(url)))
        for ledger in self.ledgers:
            self.run(ledger.close())
        self.ledgers = [self.opened(side) for side in range(3)]

    def opened(self, side: int) -> Ledger:
        opened: Ledger = self.run(
            Ledger.open(self.pools[side], master_key=MASTER_KEY, clock=self.clock, snapshot_every=EVERY[side])
        )
        opened._keystore.settle_secs = 0.0
        opened._keystore.forget(DEFAULT_TENANT_ID)
        return opened


class SnapshotMachine(RuleBasedStateMachine):
    """The ledgers beside each other and beside the rows."""

    def __init__(self, bench: SnapshotBench) -> None:
        super().__init__()
        self.bench = bench
        self.agent = uuid4().hex
        self.done: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = []
        self.ids: list[str] = ["act-1"]

    @initialize()
    def begin(self) -> None:
        self.do(0, "create", POLICY)

    def call(self, side: int, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        caller = Caller(self.bench.ledgers[side], self.agent)
        try:
            return json_of(self.bench.run(getattr(caller, method)(*arguments, **named)))
        except REFUSED as error:
            return type(error).__name__, str(error)

    def do(self, side: int, method: str, *arguments: Any, **named: Any) -> Any:
        named["key"] = f"key-{len(self.done)}"
        answer = self.call(side, method, arguments, named)
        if isinstance(answer, dict):
            self.done.append((method, arguments, named, answer))
        self.check()
        return answer

    @rule(side=sides, tool=st.sampled_from(TOOLS), value=st.sampled_from([None, {"a": 1}]), pause=pauses)
    def ask(self, side: int, tool: str, value: Any, pause: float) -> None:
        self.bench.clock.move(pause)
        answer = self.do(side, "ask", tool, value)
        if isinstance(answer, dict) and answer["action_id"] not in self.ids:
            self.ids.append(answer["action_id"])

    @rule(side=sides, data=st.data(), by=st.sampled_from(["alice", "carol"]), pause=pauses)
    def approve(self, side: int, data: st.DataObject, by: str, pause: float) -> None:
        self.bench.clock.move(pause)
        waiting = [one["action"]["action_id"] for one in self.pending(side)]
        if waiting:
            self.do(side, "approve", data.draw(st.sampled_from(waiting)), "fine", by=by)

    @rule(side=sides, data=st.data(), scar=st.none() | severities)
    def reject(self, side: int, data: st.DataObject, scar: str | None) -> None:
        self.do(side, "reject", data.draw(st.sampled_from(self.ids)), "no", scar)

    @rule(side=sides, data=st.data(), tool=st.sampled_from(TOOLS), value=st.sampled_from([None, {"a": 1}]))
    def claim(self, side: int, data: st.DataObject, tool: str, value: Any) -> None:
        self.do(side, "claim", data.draw(st.sampled_from(self.ids)), tool, value)

    @rule(side=sides, data=st.data(), status=st.sampled_from(["success", "failure", "unknown"]))
    def report(self, side: int, data: st.DataObject, status: str) -> None:
        self.do(side, "report", data.draw(st.sampled_from(self.ids)), status, "")

    @rule(side=sides, severity=severities)
    def scar(self, side: int, severity: str) -> None:
        self.do(side, "scar", severity, "seen", None)

    @rule(side=sides, count=st.integers(1, 4))
    def post(self, side: int, count: int) -> None:
        caller = Caller(self.bench.ledgers[side], self.agent)
        self.bench.run(caller.post(*[posted({"type": "x", "data": n}) for n in range(count)]))
        self.check()

    @rule(side=sides, really=st.integers(0, 9))
    def terminate(self, side: int, really: int) -> None:
        if really == 0:
            self.do(side, "terminate", "incident")

    @rule(side=sides)
    def rotate(self, side: int) -> None:
        ledgers = self.bench.ledgers
        self.bench.run(ledgers[side].administration.rotate_signing(DEFAULT_TENANT_ID, "root"))
        for ledger in ledgers:
            ledger._keystore.forget(DEFAULT_TENANT_ID)
        self.check()

    @rule(side=sides)
    def restart(self, side: int) -> None:
        self.bench.run(self.bench.ledgers[side].close())
        self.bench.ledgers[side] = self.bench.opened(side)
        self.check()

    @precondition(lambda self: self.done)
    @rule(side=sides, data=st.data())
    def repeat(self, side: int, data: st.DataObject) -> None:
        method, arguments, named, first = data.draw(st.sampled_from(self.done))
        assert self.call(side, method, arguments, named) == first
        self.check()

    def pending(self, side: int) -> Any:
        return self.bench.run(Caller(self.bench.ledgers[side], self.agent).pending())

    def state(self, side: int) -> Any:
        async def refreshed() -> Any:
            caller = Caller(self.bench.ledgers[side], self.agent)
            chain = await caller.ledger._chain(caller.may(Permission.READ_STATUS))
            state = await caller.ledger._actor.refresh(chain)
            return state, chain.key, chain.genesis_key

        return self.bench.run(refreshed())

    def check(self) -> None:
        by_rows = self.bench.run(self.bench.table.folded(self.agent))
        states = [self.state(side) for side in range(3)]
        assert states[0] == states[1] == states[2]
        assert states[0][0] == by_rows
        statuses = [self.bench.run(Caller(ledger, self.agent).status()) for ledger in self.bench.ledgers]
        assert statuses[0] == statuses[1] == statuses[2]
        assert self.pending(0) == self.pending(1) == self.pending(2)

    def teardown(self) -> None:
        if not self.done:
            return
        for side in range(3):
            self.restart(side)
        self.check()
        for method, arguments, named, first in self.done:
            for side in range(3):
                assert self.call(side, method, arguments, named) == first
        self.check()
        for ledger in self.bench.ledgers:
            assert self.bench.run(Caller(ledger, self.agent).verify())["ok"] is True
            assert self.bench.run(Caller(ledger, ADMINISTRATION).verify())["ok"] is True


def test_g15_who_begins_at_a_snapshot_says_what_the_rows_say(database: Database) -> None:
    bench = SnapshotBench(database.app_url, database.admin_url)
    try:
        run_state_machine_as_test(
            lambda: SnapshotMachine(bench),  # type: ignore[arg-type] # a factory is taken too
            settings=settings(max_examples=rounds(4, 60), stateful_step_count=15, deadline=None),
        )
    finally:
        bench.close()
