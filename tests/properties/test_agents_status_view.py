"""``trails.agents_status`` says what the guard's fold says, whatever happened to the agent.

The guard itself makes the histories (it decides, seals and folds); the view reads them as rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import db.ledger
from app.errors import ConflictError, UnknownActionError
from app.guard.state import GuardState
from app.guard.words import OutcomeStatus, Severity
from db.pool import create_pool
from tests.support.guard_chain import GuardChain
from tests.support.postgres import Database
from tests.support.rows import Maker, register_tenant
from tests.support.view_rows import view

TOOLS = ("free", "paid", "held", "capped", "other")

policies = st.fixed_dictionaries(
    {
        "budget": st.sampled_from([0, 3, 12, 200, 10**15]),
        "scar_limit": st.sampled_from([0, 2, 20, 2**32 - 1, 2**32 - 1]),
        "tools": st.fixed_dictionaries(
            {
                "free": st.just({"cost": 0}),
                "paid": st.just({"cost": 3}),
                "held": st.just({"cost": 2, "requires_approval": True}),
                "capped": st.just({"cost": 1, "max_calls": 1}),
            }
        ),
    },
    optional={"rate_limit": st.just({"max_actions": 3, "window_secs": 2})},
)
places = st.integers(0, 7)
mild = st.sampled_from([Severity.MINOR] * 4 + [Severity.MODERATE, Severity.SEVERE, Severity.FATAL])
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.sampled_from(TOOLS),
            st.sampled_from([1, {"a": 1}]),
            st.none() | st.integers(0, 9),
        ),
        st.tuples(st.just("approve"), places),
        st.tuples(st.just("reject"), places, st.just("no"), st.none() | mild),
        st.tuples(st.just("report"), places, st.sampled_from([*OutcomeStatus])),
        st.tuples(st.just("scar"), mild),
        st.tuples(st.just("wait"), st.sampled_from([0.4, 3, -1])),
        st.sampled_from([("wait", 0)] * 9 + [("terminate",)]),
    ),
    max_size=25,
)


def history(policy: dict[str, Any] | None, drawn: list[tuple[Any, ...]]) -> GuardChain:
    chain = GuardChain(policy)
    for name, *arguments in drawn:
        if policy is None and name != "wait":
            continue
        if name in {"approve", "reject", "report"}:
            arguments[0] = chosen(chain, name, arguments[0])
        # What is refused leaves perhaps a record of its own, perhaps none.
        with suppress(ConflictError, UnknownActionError):
            getattr(chain, name)(*arguments)
    return chain


def chosen(chain: GuardChain, act: str, place: int) -> str:
    """An action of the chain, if it can be one that waits."""
    waiting = [] if act == "report" else sorted(chain.state.pending)
    return waiting[place % len(waiting)] if waiting else f"act-{place + 1}"


class Bench:
    """One database for all examples; each has a chain of its own."""

    def __init__(self, database: Database) -> None:
        self.runner = asyncio.Runner()
        self.pool = self.runner.run(create_pool(database.app_url))
        self.tenant: UUID = self.runner.run(register_tenant(self.pool, "acme"))

    def close(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()

    async def status(self, chain: GuardChain, *, guarded: bool) -> dict[str, Any]:
        """Stores the chain as an agent of its own and reads its row."""
        maker = Maker(self.tenant, uuid4().hex)
        registry = db.ledger.ChainRow(
            self.tenant, maker.agent_id, maker.log_uuid, guarded=guarded, created_at=maker.chain.created_at
        )
        await db.ledger.append(self.pool, [maker.mirror(r) for r in chain.records], chains=[registry])
        [row] = await view(self.pool, self.tenant, "agents_status", "agent_id = $1", maker.agent_id)
        return row


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    made = Bench(database)
    yield made
    made.close()


def told(state: GuardState) -> dict[str, Any]:
    """The fold in the view's words."""
    policy, head = state.policy, state.head
    assert head is not None
    return {
        "guarded": policy is not None,
        "alive": state.alive,
        "termination_reason": state.terminated,
        "budget": None if policy is None else policy.budget,
        "spent": state.spent,
        "remaining": None if policy is None else state.remaining,
        "scar_score": state.scar_score,
        "scar_limit": None if policy is None else policy.scar_limit,
        "actions_requested": state.action_count,
        "actions_allowed": state.allowed,
        "actions_denied": state.denied,
        "actions_pending": len(state.pending),
        "head_seq": head.seq,
        "head_hash": head.hash,
    }


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(policy=st.integers(0, 9).flatmap(lambda n: policies if n else st.none()), drawn=steps)
def test_the_view_equals_the_fold(
    bench: Bench, policy: dict[str, Any] | None, drawn: list[tuple[Any, ...]]
) -> None:
    chain = history(policy, drawn)
    row = bench.runner.run(bench.status(chain, guarded=policy is not None))
    expected = told(chain.state)
    assert {name: row[name] for name in expected} == expected
