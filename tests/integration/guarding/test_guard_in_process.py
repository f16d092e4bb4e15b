"""The guard without a service: the same questions, answers and records, on the database itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from app.client.decisions import ActionDenied, Allowed, Denied, OutcomeRefusedError, Pending
from app.client.in_process import Guard
from app.errors import NotFoundError, StartupError
from app.ledger import Ledger
from db.pool import Pool
from db.schema import DEFAULT_TENANT_ID
from tests.support.guarding import POLICY
from tests.support.ledgers import MASTER_KEY, Caller, Table
from tests.support.postgres import Database
from tests.support.proxy import Fault, Proxy, proxied

AGENT = "agent-1"


@pytest.fixture
async def caller(pool: Pool) -> AsyncIterator[Caller]:
    """An operator beside the guard, who has created the agent."""
    ledger = await Ledger.open(pool, master_key=MASTER_KEY)
    made = Caller(ledger, AGENT)
    await made.create(POLICY)
    yield made
    await ledger.close()


@pytest.fixture
async def route(database: Database) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the database, and the URL through it."""
    async with proxied(database.app_url) as found:
        yield found


@pytest.fixture
async def guard(route: tuple[Proxy, str], caller: Caller) -> AsyncIterator[Guard]:
    """The agent's guard, with a ledger of its own."""
    del caller
    async with await Guard.open(route[1], "default", AGENT, master_key=MASTER_KEY) as made:
        yield made


@pytest.fixture
def table(admin: object) -> Table:
    """The trail as a superuser sees it."""
    return Table(admin)  # type: ignore[arg-type]  # the fixture's connection


async def outcomes(table: Table) -> list[tuple[str, str]]:
    """Action and status of each outcome."""
    found = [record["payload"] for record in await table.records(AGENT) if record["kind"] == "outcome"]
    return [(payload["action_id"], payload["status"]) for payload in found]


async def test_the_same_decisions_and_records(guard: Guard, table: Table) -> None:
    assert await guard.acheck("search", {"q": 1}) == Allowed("act-1", 1, 999)
    assert await guard.acheck("rm") == Denied("act-2", {"code": "tool_not_allowed", "tool": "rm"})
    assert await guard.acheck("send_email") == Pending("act-3")
    records = await table.records(AGENT)
    assert {record["actor"] for record in records[2:]} == {AGENT}
    assert [record["kind"] for record in records[2:4]] == ["action_requested", "action_allowed"]


async def test_coroutines_and_functions_run_when_allowed(guard: Guard, table: Table) -> None:
    @guard.tool("search")
    async def search() -> str:
        return "found"

    @guard.tool("search")
    def fail() -> None:
        raise LookupError("no index")

    @guard.tool("rm")
    async def remove() -> None:
        raise AssertionError("it ran")

    assert await search() == "found"
    with pytest.raises(LookupError):
        await asyncio.to_thread(fail)
    with pytest.raises(ActionDenied):
        await remove()
    assert await outcomes(table) == [("act-1", "success"), ("act-2", "failure")]


async def test_threads_and_their_event_loops_share_it(guard: Guard, caller: Caller) -> None:
    @guard.tool("search")
    def search(number: int) -> int:
        return number

    @guard.tool("search")
    async def asearch(number: int) -> int:
        return number

    async def many() -> list[int]:
        return list(await asyncio.gather(*map(asearch, range(5))))

    def work() -> None:
        with ThreadPoolExecutor(4) as pool:
            loops = [pool.submit(asyncio.run, many()) for _ in range(2)]
            assert list(pool.map(search, range(10))) == list(range(10))
            assert [loop.result() for loop in loops] == [list(range(5))] * 2

    await asyncio.to_thread(work)
    assert (await caller.status())["spent"] == 20


async def test_an_approval_lets_one_caller_go(guard: Guard, caller: Caller, table: Table) -> None:
    ran = []

    @guard.tool("send_email")
    async def send(to: str) -> str:
        ran.append(to)
        return "sent"

    calls = [asyncio.create_task(send("a@example.com")) for _ in range(3)]
    async with asyncio.timeout(20):
        while (await table.kinds(AGENT)).count("approval_required") < 3:
            await asyncio.sleep(0.01)
    await caller.approve("act-1")
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [result for result in results if isinstance(result, str)] == ["sent"]
    codes = [str(result.decision.code) for result in results if isinstance(result, ActionDenied)]
    assert len(codes) == 2
    assert set(codes) <= {"already_claimed", "completed"}
    assert ran == ["a@example.com"]
    assert (await table.kinds(AGENT)).count("action_claimed") == 1


async def test_g01_what_changed_since_the_approval_does_not_run(
    guard: Guard, caller: Caller, table: Table
) -> None:
    ran = []

    @guard.tool("send_email")
    async def send(to: list[str]) -> None:
        ran.append(to)

    to = ["a@example.com"]
    call = asyncio.create_task(send(to))
    async with asyncio.timeout(20):
        while "approval_required" not in await table.kinds(AGENT):
            await asyncio.sleep(0.01)
    to.append("b@example.com")
    await caller.approve("act-1")
    with pytest.raises(ActionDenied, match="claim_mismatch"):
        await call
    assert ran == []
    assert await guard.await_("act-1", 0, tool="send_email", input={"to": to[:1]}) == Allowed("act-1", 5)
    kinds = [kind for kind in await table.kinds(AGENT) if "claim" in kind]
    assert kinds == ["claim_refused", "action_claimed"]


async def test_a_claim_whose_answer_was_lost_is_still_the_callers(
    guard: Guard, caller: Caller, table: Table, route: tuple[Proxy, str]
) -> None:
    assert await guard.acheck("send_email", {"to": "a"}) == Pending("act-1")
    await caller.approve("act-1")
    route[0].arm(Fault.SWALLOW, b"action_claimed")
    assert await guard.await_("act-1", 20, tool="send_email", input={"to": "a"}) == Allowed("act-1", 5)
    assert route[0].fired == 1
    assert (await table.kinds(AGENT)).count("action_claimed") == 1
    assert (await caller.action("act-1"))["claimed_by"] == AGENT


async def test_it_and_a_service_know_the_same_keys(guard: Guard, caller: Caller) -> None:
    """A question that was asked on one way and is repeated on the other is one question."""
    first = await guard.acheck("search", {"q": 1}, idempotency_key="order-1")
    again = (await caller.ask("search", {"q": 1}, key="order-1")).to_json()
    assert again == {"decision": "allowed", "action_id": "act-1", "cost": 1, "remaining": 999}
    assert first == Allowed("act-1", 1, 999)


async def test_reporting_by_hand(guard: Guard, table: Table) -> None:
    await guard.acheck("search")
    assert await guard.areport("act-1", "success") is True
    with pytest.raises(OutcomeRefusedError, match="invalid_state"):
        await guard.areport("act-1", "failure")
    with pytest.raises(OutcomeRefusedError, match="unknown_action"):
        await guard.areport("act-9", "failure")
    with pytest.raises(OutcomeRefusedError, match="forbidden"):
        await guard.areport("act-1", "harmful")  # type: ignore[arg-type]  # what an agent may not say
    with pytest.raises(OutcomeRefusedError, match="bad_request"):
        await guard.areport("act-1", "well")  # type: ignore[arg-type]
    assert await outcomes(table) == [("act-1", "success")]


async def test_g27_nothing_is_allowed_when_the_database_is_away(database: Database, caller: Caller) -> None:
    del caller
    ran = []
    async with proxied(database.app_url) as (proxy, url):
        guard = await Guard.open(url, "default", AGENT, master_key=MASTER_KEY, attempts=1)
        assert isinstance(await guard.acheck("search"), Allowed)
        await proxy.close()

    @guard.tool("search")
    async def search() -> None:
        ran.append(1)

    with pytest.raises(ActionDenied) as caught:
        await search()
    assert caught.value.decision.code == "unavailable"
    assert ran == []
    await guard.aclose()


@pytest.mark.parametrize("fault", Fault)
async def test_p19_a_lost_commit_is_charged_once(
    fault: Fault, guard: Guard, route: tuple[Proxy, str], caller: Caller
) -> None:
    proxy = route[0]
    proxy.arm(fault, b'"kind":"action_allowed"')
    assert await guard.acheck("search", cost=7) == Allowed("act-1", 7, 993)
    assert proxy.fired == 1
    assert (await caller.status())["spent"] == 7


@pytest.mark.parametrize("fault", Fault)
async def test_p19_a_lost_outcome_is_on_record_once(
    fault: Fault, guard: Guard, route: tuple[Proxy, str], table: Table
) -> None:
    @guard.tool("search")
    async def search() -> str:
        route[0].arm(fault, b'"kind":"outcome"')
        return "found"

    assert await search() == "found"
    await guard.aclose()
    assert route[0].fired == 1
    assert await outcomes(table) == [("act-1", "success")]


async def test_tenants_by_slug_and_by_id(database: Database, caller: Caller) -> None:
    del caller
    for tenant in ("default", DEFAULT_TENANT_ID, str(DEFAULT_TENANT_ID)):
        async with await Guard.open(database.app_url, tenant, AGENT, master_key=MASTER_KEY.hex()) as guard:
            assert isinstance(await guard.acheck("search"), Allowed)


async def test_opening_refuses_what_cannot_work(database: Database, caller: Caller) -> None:
    del caller
    with pytest.raises(NotFoundError, match="tenant"):
        await Guard.open(database.app_url, "nobody", AGENT, master_key=MASTER_KEY)
    with pytest.raises(NotFoundError, match="tenant"):
        await Guard.open(database.app_url, UUID(int=7), AGENT, master_key=MASTER_KEY)
    with pytest.raises(StartupError, match="master key"):
        await Guard.open(database.app_url, "default", AGENT, master_key=b"x" * 32)
    for short in (b"short", "short", ""):
        with pytest.raises(StartupError, match="32 bytes"):
            await Guard.open(database.app_url, "default", AGENT, master_key=short)
    with pytest.raises(StartupError):
        await Guard.open(database.admin_url, "default", AGENT, master_key=MASTER_KEY)
    assert "trails-guard" not in {thread.name for thread in threading.enumerate()}


async def test_an_agent_that_does_not_exist_is_denied(database: Database, caller: Caller) -> None:
    del caller
    async with await Guard.open(database.app_url, "default", "nobody", master_key=MASTER_KEY) as guard:
        denied = await guard.acheck("search")
    assert isinstance(denied, Denied)
    assert denied.code == "not_found"


@pytest.mark.parametrize("says", [b"", b"S", b"N"], ids=["nothing", "tls", "no tls"])
async def test_opening_ends_although_what_listens_there_says_nothing_of_use(
    says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection, answers the question for TLS or not even that, and then is silent."""
    monkeypatch.setattr("app.client.in_process.OPEN_SECS", 0.5)
    held = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        writer.write(says)
        await reader.read()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"postgresql://trails_app:secret@127.0.0.1:{port}/trails"
    with pytest.raises(StartupError, match=f"127.0.0.1:{port}/trails.* did not answer within") as caught:
        await Guard.open(url, "default", AGENT, master_key=MASTER_KEY)
    assert "secret" not in str(caught.value)
    for writer in held:
        writer.close()
    server.close()


async def test_a_child_that_cannot_open_its_own_ledger_denies(database: Database, caller: Caller) -> None:
    """What a fork brings about: the worker begins anew, and the database is away."""
    del caller
    async with proxied(database.app_url) as (_, url):
        guard = await Guard.open(url, "default", AGENT, master_key=MASTER_KEY)
        assert isinstance(await guard.acheck("search"), Allowed)
        await guard._worker.acall(lambda backend: backend.close())
    guard._worker._backend = None
    denied = await guard.acheck("search")
    assert isinstance(denied, Denied)
    assert denied.code == "unavailable"
    await guard.aclose()
