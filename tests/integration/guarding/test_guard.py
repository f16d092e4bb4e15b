"""The guard client against a running service: what runs, what does not, and what is on record of it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.client.decisions import ActionDenied, Allowed, Denied, OutcomeRefusedError, Pending
from app.client.guard import Guard
from tests.support.guarding import Stage
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]


def test_decisions_are_values(guard: Guard) -> None:
    assert guard.check("search", {"q": "rates"}) == Allowed("act-1", 1, 999)
    assert guard.check("rm", cost=3) == Denied("act-2", {"code": "tool_not_allowed", "tool": "rm"})
    assert guard.check("send_email", {"to": "a"}) == Pending("act-3")


async def test_coroutines_get_the_same(guard: Guard) -> None:
    assert await guard.acheck("search", {"q": "rates"}, cost=7) == Allowed("act-1", 7, 993)
    denied = await guard.acheck("rm")
    assert isinstance(denied, Denied)
    assert denied.code == "tool_not_allowed"


def test_a_guarded_function_runs_once_and_its_outcome_is_on_record(guard: Guard, stage: Stage) -> None:
    ran = []

    @guard.tool("search")
    def search(query: str, limit: int = 10, *rest: int, **more: object) -> list[str]:
        """Finds."""
        ran.append((query, rest, more))
        return [query] * limit

    assert search("rates", 2, 3, fast=True) == ["rates", "rates"]
    assert ran == [("rates", (3,), {"fast": True})]
    assert stage.asked() == [("search", {"query": "rates", "limit": 2, "rest": [3], "more": {"fast": True}})]
    assert stage.outcomes() == [("act-1", "success", "")]
    assert search.__name__ == "search"
    assert search.__doc__ == "Finds."
    assert list(inspect.signature(search).parameters) == ["query", "limit", "rest", "more"]


async def test_a_guarded_coroutine_function_too(guard: Guard, stage: Stage) -> None:
    @guard.tool("search", cost=4)
    async def search(query: str, limit: int = 10) -> str:
        return f"{query} {limit}"

    assert inspect.iscoroutinefunction(search)
    assert await search("rates") == "rates 10"
    assert stage.asked() == [("search", {"query": "rates", "limit": 10})]
    assert stage.outcomes() == [("act-1", "success", "")]
    assert stage.spent == 4


def test_a_methods_input_is_without_the_object(guard: Guard, stage: Stage) -> None:
    class Shop:
        @guard.tool("search")
        def find(self, query: str) -> str:
            return query

        @classmethod
        @guard.tool("search")
        def list(cls, query: str) -> str:
            return query

    assert Shop().find("a") == "a"
    assert Shop.list("b") == "b"
    assert stage.asked() == [("search", {"query": "a"}), ("search", {"query": "b"})]


def test_a_raising_tool_is_a_failure_and_raises(guard: Guard, stage: Stage) -> None:
    @guard.tool("search")
    def search() -> None:
        raise LookupError("no index\x00\ud800")

    with pytest.raises(LookupError):
        search()
    [(action_id, status, detail)] = stage.outcomes()
    assert (action_id, status) == ("act-1", "failure")
    assert detail.startswith("LookupError: no index")


async def test_a_raising_coroutine_too(guard: Guard, stage: Stage) -> None:
    @guard.tool("search")
    async def search() -> None:
        raise LookupError("no index")

    with pytest.raises(LookupError):
        await search()
    assert stage.outcomes() == [("act-1", "failure", "LookupError: no index")]


def test_a_denied_function_does_not_run(guard: Guard, stage: Stage) -> None:
    ran = []

    @guard.tool("rm")
    def remove(path: str) -> None:
        ran.append(path)

    with pytest.raises(ActionDenied, match="rm was not run: denied, tool_not_allowed") as caught:
        remove("/")
    assert ran == []
    assert isinstance(caught.value.decision, Denied)
    assert caught.value.decision.action_id == "act-1"
    assert stage.outcomes() == []


def test_arguments_that_do_not_fit_are_not_asked_about(guard: Guard, stage: Stage) -> None:
    @guard.tool("search")
    def search(query: str) -> str:
        return query

    with pytest.raises(TypeError):
        search(nothing=1)  # type: ignore[call-arg]
    assert stage.asked() == []


def test_without_a_name_the_tool_is_the_functions(guard: Guard, stage: Stage) -> None:
    @guard.tool
    def search(query: str) -> str:
        """Finds."""
        return query

    @guard.tool()
    async def rm(path: str) -> None:
        raise AssertionError(path)

    class Shop:
        @guard.tool
        def search(self, query: str) -> str:
            return query

    assert (search("a"), Shop().search("b"), search.__doc__) == ("a", "b", "Finds.")
    with pytest.raises(ActionDenied, match="rm was not run"):
        asyncio.run(rm("/"))
    assert stage.asked() == [("search", {"query": "a"}), ("search", {"query": "b"}), ("rm", {"path": "/"})]


class Nameless:
    def __call__(self) -> None:
        """Nothing."""


def generator() -> Any:
    yield 1


async def asynchronous_generator() -> Any:
    yield 1


NO_TOOLS: dict[str, tuple[Any, str]] = {
    "a generator": (generator, "a generator does its work after the call"),
    "an async generator": (asynchronous_generator, "a generator does its work after the call"),
    "a partial of one": (functools.partial(generator), "a generator does its work after the call"),
    "a class": (Stage, "a class is no tool"),
    "a property": (property(lambda self: self), "a property is not called"),
    "a partialmethod": (functools.partialmethod(generator), "a partialmethod is not called"),
    "a classmethod": (classmethod(lambda cls: cls), "put @classmethod above the guard"),
    "a staticmethod": (staticmethod(lambda: None), "put @staticmethod above the guard"),
    "a number": (5, "a int is not called"),
}


@pytest.mark.parametrize(("what", "said"), NO_TOOLS.values(), ids=NO_TOOLS)
def test_what_cannot_be_guarded_is_refused_and_never_let_through(what: Any, said: str, guard: Guard) -> None:
    with pytest.raises(TypeError, match=said):
        guard.tool("search")(what)
    with pytest.raises(TypeError, match=f"{said}|has no name of its own"):
        guard.tool(what)


@pytest.mark.parametrize("nameless", [lambda: None, functools.partial(print), Nameless()])
def test_what_has_no_name_of_its_own_is_given_one(nameless: Any, guard: Guard, stage: Stage) -> None:
    for bare in (guard.tool, guard.tool()):
        with pytest.raises(TypeError, match=r'write @guard.tool\("name"\)'):
            bare(nameless)
    with pytest.raises(ValueError, match="empty"):
        guard.tool("")
    guard.tool("search")(nameless)()
    assert len(stage.asked()) == 1


async def test_what_a_partial_brings_with_it_is_on_record(guard: Guard, stage: Stage) -> None:
    class Shop:
        def find(self, query: str, limit: int = 1, *, fast: bool = False) -> str:
            return f"{query} {limit} {fast}"

    class Later:
        async def __call__(self, query: str, limit: int) -> str:
            return f"{query} {limit}"

    plain = guard.tool("search")(functools.partial(Shop().find, "a", fast=True))
    unbound = guard.tool("search")(functools.partial(Shop.find, Shop(), "b"))
    later = guard.tool("search")(functools.partial(functools.partial(Later(), "c"), limit=2))
    assert (plain(2), unbound(fast=True)) == ("a 2 True", "b 1 True")
    assert await later() == "c 2"
    assert stage.asked() == [
        ("search", {"query": "a", "limit": 2, "fast": True}),
        ("search", {"query": "b", "limit": 1, "fast": True}),
        ("search", {"query": "c", "limit": 2}),
    ]
    assert [status for _, status, _ in stage.outcomes()] == ["success"] * 3


def test_what_is_called_like_a_generator_cannot_be_guarded_either(guard: Guard) -> None:
    class Search:
        def __call__(self) -> Any:
            yield 1

    with pytest.raises(TypeError, match="generator"):
        guard.tool("search")(Search())


def test_class_and_static_methods_stand_above_the_guard(guard: Guard, stage: Stage) -> None:
    kinds: list[Any] = [classmethod, staticmethod]
    for kind in kinds:
        with pytest.raises(TypeError, match=f"put @{kind.__name__} above"):
            guard.tool("search")(kind(lambda: None))

    class Tools:
        @classmethod
        @guard.tool("search")
        def search(cls, query: str) -> str:
            return f"{cls.__name__} {query}"

        @staticmethod
        @guard.tool("search")
        def look(query: str) -> str:
            return query

    assert (Tools.search("a"), Tools().look("b")) == ("Tools a", "b")
    assert [asked for _, asked in stage.asked()] == [{"query": "a"}, {"query": "b"}]


async def test_an_object_that_is_called_like_a_coroutine_is_awaited(guard: Guard, stage: Stage) -> None:
    class Search:
        async def __call__(self, query: str) -> str:
            await asyncio.sleep(0)
            raise LookupError(query)

    with pytest.raises(LookupError):
        await guard.tool("search")(Search())("a")
    assert stage.outcomes() == [("act-1", "failure", "LookupError: a")]


async def test_what_returns_a_promise_has_not_succeeded_yet(guard: Guard, stage: Stage) -> None:
    async def later() -> int:
        return 1

    @guard.tool("search")
    def search() -> Coroutine[Any, Any, int]:
        return later()

    assert await search() == 1
    assert stage.outcomes() == [("act-1", "unknown", "returned a coroutine, which does its work later")]


def test_c11_what_is_no_json_is_said_or_never_sent(guard: Guard, stage: Stage) -> None:
    assert isinstance(guard.check("search", {"x": float("nan"), "y": {1}, "z": b"\xff"}), Allowed)
    [(_, recorded)] = stage.asked()
    assert recorded["x"] == "NaN"
    with pytest.raises(ValueError, match="JSON"):
        guard.check("search", cost=float("nan"))  # type: ignore[arg-type]
    assert len(stage.asked()) == 1


def test_what_is_too_large_is_denied_and_never_cut(guard: Guard, stage: Stage) -> None:
    denied = guard.check("search", "x" * (1024 * 1024 + 1))
    assert isinstance(denied, Denied)
    assert (denied.action_id, denied.code) == (None, "bad_request")
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    assert isinstance(guard.check("search", deep), Denied)
    assert stage.asked() == []


def test_a_token_that_is_not_valid_denies(stage: Stage) -> None:
    with Guard(stage.url, "nonsense", "worker", spool=stage.folder / "spool") as stranger:
        denied = stranger.check("search")
    assert isinstance(denied, Denied)
    assert denied.code == "unauthorized"


def test_the_same_key_is_the_same_question(guard: Guard, stage: Stage) -> None:
    first = guard.check("search", {"q": 1}, idempotency_key="order-1")
    assert guard.check("search", {"q": 1}, idempotency_key="order-1") == first
    other = guard.check("search", {"q": 2}, idempotency_key="order-1")
    assert isinstance(other, Denied)
    assert other.code == "idempotency_conflict"
    assert stage.spent == 1


def test_reporting_by_hand(guard: Guard, stage: Stage) -> None:
    allowed = guard.check("search", thought_process="it may be there")
    assert isinstance(allowed, Allowed)
    assert guard.report(allowed.action_id, "unknown", "no reply") is True
    assert guard.report(allowed.action_id, "success") is True
    with pytest.raises(OutcomeRefusedError, match="invalid_state"):
        guard.report(allowed.action_id, "failure", "after all")
    with pytest.raises(OutcomeRefusedError, match="forbidden"):
        guard.report(allowed.action_id, "harmful")  # type: ignore[arg-type]  # what an agent may not say
    assert [status for _, status, _ in stage.outcomes()] == ["unknown", "success"]
    assert stage.records("action_requested")[0]["payload"]["thought_process"] == "it may be there"


def test_an_outcome_that_is_refused_does_not_change_what_the_tool_gives(guard: Guard, stage: Stage) -> None:
    @guard.tool("search")
    def search() -> str:
        guard.report("act-1", "failure", "said by another")
        return "found"

    assert search() == "found"
    assert stage.outcomes() == [("act-1", "failure", "said by another")]


def test_threads_share_a_guard(guard: Guard, stage: Stage) -> None:
    @guard.tool("search")
    def search(number: int) -> int:
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(search, range(40))) == list(range(40))
    assert stage.spent == 40
    assert len(stage.outcomes()) == 40


def test_event_loops_of_several_threads_share_a_guard(guard: Guard, stage: Stage) -> None:
    @guard.tool("search")
    async def search(number: int) -> int:
        return number

    async def many() -> list[int]:
        return list(await asyncio.gather(*map(search, range(10))))

    with ThreadPoolExecutor(3) as pool:
        results = [done.result() for done in [pool.submit(asyncio.run, many()) for _ in range(3)]]
    assert results == [list(range(10))] * 3
    assert stage.spent == 30


async def test_what_is_cancelled_is_unknown(guard: Guard, stage: Stage) -> None:
    began = asyncio.Event()

    @guard.tool("search")
    async def search() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(search())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(guard.close)
    assert stage.outcomes() == [("act-1", "unknown", "interrupted: CancelledError")]


def test_what_is_interrupted_is_unknown(guard: Guard, stage: Stage) -> None:
    @guard.tool("search")
    def search() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search()
    guard.close()
    assert stage.outcomes() == [("act-1", "unknown", "interrupted: KeyboardInterrupt")]


async def test_whoever_gives_up_asking_does_not_leave_an_action_open(guard: Guard, stage: Stage) -> None:
    asking = asyncio.create_task(guard.acheck("search"))
    await asyncio.sleep(0)  # the question is on its way
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(guard.close)
    assert stage.outcomes() == [("act-1", "unknown", "given up before it was carried out")]


def test_a_closed_guard_allows_nothing(guard: Guard) -> None:
    guard.close()
    guard.close()
    for denied in (guard.check("search"), guard.wait("act-1")):
        assert isinstance(denied, Denied)
        assert denied.code == "unavailable"


def test_nothing_is_left_behind_by_a_guard_that_was_closed(stage: Stage) -> None:
    before = set(threading.enumerate())
    with stage.guard() as guard:
        guard.check("search")
        assert {thread.name for thread in set(threading.enumerate()) - before} >= {"trails-guard"}
    assert not any(thread.name == "trails-guard" for thread in set(threading.enumerate()) - before)
