"""What counts of keys and tenants is on record: whoever changes a table revives nothing, here or later."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any
from uuid import UUID

import pytest

import db.access
import db.ledger
from app.chain.record import Draft, SignedRecord
from app.chain.verify import Verifier
from app.errors import (
    ConflictError,
    ForbiddenError,
    TenantQuarantinedError,
    UnauthorizedError,
)
from app.fold.administration import AdministrationState, TenantStanding, stand
from app.guard.kinds import ADMIN
from app.ledger import Ledger
from app.ledger.tenancy.administration import IssuedKey, NewKey, NewTenant, told, told_row
from app.principal import ADMINISTRATION, Grant, Permission, Principal, Role, grant
from db.pool import Pool, create_pool
from db.schema import DEFAULT_TENANT_ID
from tests.support.ledgers import MASTER_KEY, TABLE, Caller, Opener, SetClock, Table, next_rows, posted
from tests.support.postgres import Database
from tests.support.proxy import proxied

Tamper = Callable[..., Awaitable[None]]


def may(permission: Permission, tenant: UUID = DEFAULT_TENANT_ID) -> Grant:
    return grant(Principal(tenant, Role.OPERATOR, "operator"), permission)


async def issue(
    ledger: Ledger, name: str = "ci", tenant: UUID = DEFAULT_TENANT_ID, **members: Any
) -> IssuedKey:
    wanted = NewKey(Role.WRITER, name, **members)
    return await ledger.administration.issue_key(may(Permission.ISSUE_KEY, tenant), wanted)


async def revoke(ledger: Ledger, issued: IssuedKey) -> None:
    asking = may(Permission.REVOKE_KEY, issued.key.tenant_id)
    await ledger.administration.revoke_key(asking, issued.key.key_id)


@pytest.fixture
async def second(ledger: Ledger, pool: Pool, clock: SetClock) -> AsyncIterator[Ledger]:
    """What another process would be."""
    del ledger
    opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def tamper(table: Table) -> Tamper:
    """A superuser's statements on tables whose triggers are off."""

    async def run(*statements: str) -> None:
        for name in ("agents", "agent_audit_trails", "api_keys", "api_key_revocations", "tenant_suspensions"):
            await table.admin.execute(f"ALTER TABLE trails.{name} DISABLE TRIGGER ALL")
        for statement in statements:
            await table.admin.execute(statement)

    return run


def old(ledger: Ledger) -> None:
    """What the ledger remembers of tables and records is looked up again."""
    for known in (ledger._keystore._known, ledger._standings._known, ledger._key_ring._known):
        known._entries.clear()  # type: ignore[attr-defined]


# --- keys -----------------------------------------------------------------------------------------------


async def test_a_revocation_that_was_removed_revives_no_key(
    ledger: Ledger, second: Ledger, restarted: Opener, tamper: Tamper
) -> None:
    issued, other = await issue(ledger), await issue(ledger, "other")
    await second.caller(issued.token.encode())
    await revoke(ledger, issued)
    await tamper("DELETE FROM trails.api_key_revocations")
    for one in (ledger, second, await restarted()):
        old(one)
        with pytest.raises(UnauthorizedError):
            await one.caller(issued.token.encode())
        assert (await one.caller(other.token.encode())).name == "other"


async def test_revoking_it_again_says_no_second_time_what_is_on_record(
    ledger: Ledger, table: Table, tamper: Tamper
) -> None:
    issued = await issue(ledger)
    await revoke(ledger, issued)
    await tamper("DELETE FROM trails.api_key_revocations")
    await revoke(ledger, issued)
    recorded = [record["payload"].get("act") for record in await table.records(ADMINISTRATION)]
    assert recorded.count("key_revoked") == 1


async def test_a_revocation_that_sql_made_holds_and_can_be_put_on_record(
    ledger: Ledger, table: Table, tamper: Tamper
) -> None:
    issued = await issue(ledger)
    await tamper(
        f"INSERT INTO trails.api_key_revocations VALUES"
        f" ('{DEFAULT_TENANT_ID}', '{issued.key.key_id}', '2026-01-01 00:00:00+00')"
    )
    with pytest.raises(UnauthorizedError):
        await ledger.caller(issued.token.encode())
    await revoke(ledger, issued)
    recorded = [record["payload"].get("act") for record in await table.records(ADMINISTRATION)]
    assert recorded[-1] == "key_revoked"


async def test_without_the_chain_no_key_is_one_any_more(
    ledger: Ledger, restarted: Opener, tamper: Tamper
) -> None:
    issued = await issue(ledger)
    await revoke(ledger, await issue(ledger, "gone"))
    await tamper(
        f"DELETE FROM {TABLE} WHERE agent_id = '{ADMINISTRATION}'",
        f"DELETE FROM trails.agents WHERE agent_id = '{ADMINISTRATION}'",
    )
    with pytest.raises(UnauthorizedError):
        await (await restarted()).caller(issued.token.encode())


async def test_a_key_is_one_as_soon_as_another_process_has_issued_it(ledger: Ledger, second: Ledger) -> None:
    """Also on a process that looked at the tenant's keys a moment before."""
    first = await issue(ledger, "first")
    await second.caller(first.token.encode())
    second._standings._known.secs = second._key_ring._known.secs = inf
    issued = await issue(ledger, "second")
    assert (await second.caller(issued.token.encode())).name == "second"


async def test_an_act_of_this_process_is_known_to_it_at_once(ledger: Ledger) -> None:
    issued = await issue(ledger)
    ledger._standings._known.secs = inf
    await ledger.caller(issued.token.encode())
    await revoke(ledger, issued)
    assert (await ledger._standings.of(DEFAULT_TENANT_ID)).keys == {}
    with pytest.raises(UnauthorizedError):
        await ledger.caller(issued.token.encode())


async def test_a_request_with_a_key_asks_the_database_nothing_while_it_is_remembered(
    ledger: Ledger, database: Database, clock: SetClock
) -> None:
    issued = await issue(ledger)
    async with (
        proxied(database.app_url) as (proxy, url),
        await create_pool(url) as counted,
        AsyncExitStack() as stack,
    ):
        other = await Ledger.open(counted, master_key=MASTER_KEY, clock=clock)
        stack.push_async_callback(other.close)
        for known in (other._keystore._known, other._standings._known, other._key_ring._known):
            known.secs = inf  # type: ignore[attr-defined]
        await other.caller(issued.token.encode())
        await other._key_ring.close()
        before = proxy.executed
        for _ in range(100):
            await other.caller(issued.token.encode())
        assert proxy.executed == before


async def test_what_is_read_is_not_kept_waiting_by_acts_of_the_process_itself(
    ledger: Ledger,
) -> None:
    issued = await issue(ledger)
    old(ledger)
    chain = await ledger._chains.get(DEFAULT_TENANT_ID, ADMINISTRATION)
    async with chain.exclusively():  # as an act has it that waits for the database
        assert (await ledger.caller(issued.token.encode())).name == "ci"


# --- tenants --------------------------------------------------------------------------------------------


@pytest.fixture
async def acme(ledger: Ledger) -> tuple[UUID, IssuedKey]:
    """A second tenant, and its operator's key."""
    row, issued = await ledger.administration.create_tenant(NewTenant("acme", "Acme", "Ada"), "root")
    return row.tenant_id, issued


async def test_a_suspension_that_was_removed_lets_nobody_go_on(
    ledger: Ledger, second: Ledger, restarted: Opener, tamper: Tamper, acme: tuple[UUID, IssuedKey]
) -> None:
    tenant, _ = acme
    bot = Caller(ledger, "bot", tenant)
    await bot.create()
    await ledger.administration.suspend_tenant(tenant, "root", "unpaid", suspended=True)
    await tamper("DELETE FROM trails.tenant_suspensions")
    for one in (ledger, second, await restarted()):
        old(one)
        here = bot.at(one)
        new = Caller(one, "new", tenant)
        for writing in (here.ask, here.scar, new.create, new.observe, lambda: issue(one, "x", tenant)):  # noqa: B023
            with pytest.raises(ForbiddenError, match="suspended"):
                await writing()
        with pytest.raises(ForbiddenError, match="suspended"):
            await here.post(posted({"type": "x"}))
        assert (await here.status())["alive"] is True
    await ledger.administration.suspend_tenant(tenant, "root", "paid", suspended=False)
    old(second)
    for one in (ledger, second):
        await bot.at(one).ask("search")


async def test_a_resumption_that_was_removed_leaves_a_way_out(
    ledger: Ledger, tamper: Tamper, acme: tuple[UUID, IssuedKey]
) -> None:
    tenant, _ = acme
    bot = Caller(ledger, "bot", tenant)
    await bot.create()
    await ledger.administration.suspend_tenant(tenant, "root", "unpaid", suspended=True)
    await ledger.administration.suspend_tenant(tenant, "root", "paid", suspended=False)
    await tamper("DELETE FROM trails.tenant_suspensions WHERE NOT suspended")
    old(ledger)
    with pytest.raises(ForbiddenError, match="suspended"):
        await bot.ask("search")
    await ledger.administration.suspend_tenant(tenant, "root", "paid", suspended=False)
    await bot.ask("search")
    with pytest.raises(ConflictError, match="not suspended already"):
        await ledger.administration.suspend_tenant(tenant, "root", "paid", suspended=False)


# --- fail closed ----------------------------------------------------------------------------------------


async def test_while_the_administration_does_not_verify_no_key_is_believed_and_the_token_reads(
    ledger: Ledger,
    restarted: Opener,
    table: Table,
    agent: Caller,
    acme: tuple[UUID, IssuedKey],
) -> None:
    issued = await issue(ledger)
    await ledger.administration.revoke_key(
        may(Permission.REVOKE_KEY), (await issue(ledger, "gone")).key.key_id
    )
    await table.unlock()
    changed = f"replace(signed_text, 'key_revoked', 'key_praised') WHERE agent_id = '{ADMINISTRATION}'"
    await table.admin.execute(f"UPDATE {TABLE} SET signed_text = {changed}")
    other = await restarted()
    here = agent.at(other)
    for _ in range(2):
        with pytest.raises(TenantQuarantinedError, match=r"administration failed verification.*seq 4"):
            await other.caller(issued.token.encode())
    for writing in (here.ask, here.terminate, Caller(other, "new").create, lambda: issue(other, "x")):
        with pytest.raises(TenantQuarantinedError):
            await writing()
    assert (await here.status())["alive"] is True
    assert (await here.verify())["ok"] is True
    reading = grant(
        Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.READ_LOG, ADMINISTRATION
    )
    assert (await other.verify(reading))["failure"]["seq"] == 4  # type: ignore[index, call-overload]
    # Another tenant is not concerned.
    assert (await other.caller(acme[1].token.encode())).name == "Ada"
    # What verifies again is believed again.
    back = changed.replace("'key_revoked', 'key_praised'", "'key_praised', 'key_revoked'")
    await table.admin.execute(f"UPDATE {TABLE} SET signed_text = {back}")
    assert (await other.verify(reading))["ok"] is True
    assert (await other.caller(issued.token.encode())).name == "ci"
    await here.ask("search")


async def test_a_chain_that_is_found_faulty_later_is_believed_no_more(ledger: Ledger, table: Table) -> None:
    """Also by a process that has verified it before."""
    issued = await issue(ledger)
    await ledger.caller(issued.token.encode())
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET actor = 'x' WHERE agent_id = '{ADMINISTRATION}' AND seq = 1"
    )
    reading = grant(
        Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.READ_LOG, ADMINISTRATION
    )
    assert (await ledger.verify(reading))["ok"] is False
    old(ledger)
    with pytest.raises(TenantQuarantinedError):
        await ledger.caller(issued.token.encode())
    chain = await ledger._chains.get(DEFAULT_TENANT_ID, ADMINISTRATION)
    chain.release()
    assert chain.standing == TenantStanding()


async def test_a_malformed_act_is_a_fault_of_the_chain(ledger: Ledger, restarted: Opener) -> None:
    issued = await issue(ledger)
    admin = Caller(ledger, ADMINISTRATION)
    admin.may = lambda _: grant(  # type: ignore[method-assign, assignment, misc]
        Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.READ_LOG, ADMINISTRATION
    )
    rows = await next_rows(admin, Draft(ADMIN, {"act": "key_revoked"}, "somebody"))
    await db.ledger.append(ledger._pool, rows)
    with pytest.raises(TenantQuarantinedError, match="key_id: is required"):
        await (await restarted()).caller(issued.token.encode())


# --- the fold is what the tables say --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_the_fold_is_what_the_tables_say_after_whatever_was_done(
    ledger: Ledger, second: Ledger, restarted: Opener, table: Table, seed: int
) -> None:
    """Random acts by two processes whose clock goes back now and then."""
    clock, pool = ledger._clock, ledger._pool
    assert isinstance(clock, SetClock)
    chance = random.Random(seed)  # noqa: S311  acts of a test, no secret
    row, first = await ledger.administration.create_tenant(NewTenant("acme", "Acme", "Ada"), "root")
    tenant, issued = row.tenant_id, [first]
    for number in range(40):
        one = chance.choice((ledger, second))
        old(one)
        clock.move(chance.choice((0, 0.5, 30, -2)))
        now = datetime.fromtimestamp(clock.now_us / 1e6, UTC)
        ends = chance.choice((None, now + timedelta(seconds=chance.randint(1, 60))))
        try:
            match chance.choice(("issue", "issue", "revoke", "suspend", "resume", "rotate")):
                case "issue":
                    issued.append(await issue(one, f"k{number}", tenant, expires_at=ends))
                case "revoke":
                    await revoke(one, chance.choice(issued))
                case "rotate":
                    await one.administration.rotate_signing(tenant, "root")
                case act:
                    await one.administration.suspend_tenant(tenant, "root", "r", suspended=act == "suspend")
        except (ConflictError, ForbiddenError):
            pass
    state, standing = await folded(table, tenant)
    rows = {row.key_id: row for row in await db.access.api_keys(pool, tenant)}
    assert {one.key.key_id: told(one.key) for one in issued} == {
        key_id: {name: told_row(row)[name] for name in told(first.key)} for key_id, row in rows.items()
    }
    assert {key.key_id: key.created_at for key in state.keys.values()} == {
        row.key_id: row.created_at for row in rows.values()
    }
    assert {key_id: told.at for key_id, told in state.revoked.items()} == {
        row.key_id: row.revoked_at for row in rows.values() if row.revoked_at is not None
    }
    assert set(standing.keys) == set(rows) - set(state.revoked)
    suspended = await db.access.is_suspended(pool, tenant)
    assert (state.suspended, standing.suspended) == (suspended, suspended)
    changes = await table.admin.fetch("SELECT suspended FROM trails.tenant_suspensions ORDER BY changed_at")
    assert [one.suspended for one in state.suspensions] == [change["suspended"] for change in changes]
    signing = [key.public_key for key in await db.ledger.signing_keys(pool, tenant)]
    assert [state.first_key, *(rotation.new for rotation in state.rotations)] == signing
    assert state.tenant == ("acme", "Acme")
    for one in (ledger, second, await restarted()):
        old(one)
        assert await one._standings.of(tenant) == standing
        for key in issued:
            expected = key.key.key_id in standing.keys and (
                key.key.expires_at is None or key.key.expires_at > now_of(clock)
            )
            assert await is_key(one, key) is expected


def now_of(clock: SetClock) -> datetime:
    return datetime.fromtimestamp(clock.now_us / 1e6, UTC)


async def is_key(ledger: Ledger, issued: IssuedKey) -> bool:
    try:
        await ledger.caller(issued.token.encode())
    except UnauthorizedError:
        return False
    return True


async def folded(table: Table, tenant: UUID) -> tuple[AdministrationState, TenantStanding]:
    """What the rows of the administration chain say, verified and folded without any ledger."""
    verifier, state, standing = Verifier(), AdministrationState(), TenantStanding()
    for row in await table.rows(ADMINISTRATION, tenant):
        record = verifier.step(SignedRecord(row["signed_text"], row["hash"], row["signature"]))
        state.add(record)
        standing = stand(standing, record)
    return state, standing
