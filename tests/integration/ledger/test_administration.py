"""Keys, tenants and their standing: what is done to them is on record, and holds on every process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from app.api_key import Mint
from app.errors import (
    BadRequestError,
    ConflictError,
    EndedKeyError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
)
from app.ledger import Ledger
from app.ledger.feed.batches import Wanted
from app.ledger.idempotency import Stamp
from app.ledger.tenancy.administration import IssuedKey, NewKey, NewTenant, written
from app.ledger.webhooks.hooks import NewWebhook
from app.principal import ADMINISTRATION, Grant, Permission, Principal, Role, grant
from app.redaction.rules import RuleList
from db.pool import Pool
from db.schema import DEFAULT_TENANT_ID
from tests.support.ledgers import MASTER_KEY, Caller, SetClock, Table

OPERATOR = Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator")


def may(permission: Permission, tenant: UUID = DEFAULT_TENANT_ID) -> Grant:
    return grant(Principal(tenant, Role.OPERATOR, "operator"), permission)


async def issue(ledger: Ledger, name: str = "ci", role: Role = Role.WRITER, **members: Any) -> IssuedKey:
    tenant = members.pop("tenant", DEFAULT_TENANT_ID)
    wanted = NewKey(role, name, **members)
    return await ledger.administration.issue_key(may(Permission.ISSUE_KEY, tenant), wanted)


async def revoke(ledger: Ledger, key_id: str) -> None:
    await ledger.administration.revoke_key(may(Permission.REVOKE_KEY), key_id)


async def acts(ledger: Ledger, tenant: UUID = DEFAULT_TENANT_ID) -> list[Any]:
    """The payloads of the tenant's administration chain, without its genesis."""
    principal = Principal(tenant, Role.AUDITOR, "auditor")
    reading = grant(principal, Permission.READ_LOG, ADMINISTRATION)
    assert (await ledger.verify(reading))["ok"] is True
    lines, _ = await ledger.log(reading, None, 1_000)
    return [json.loads(line)["payload"] for line in lines[1:]]


# --- keys -----------------------------------------------------------------------------------------------


async def test_a_key_says_who_calls_and_is_on_record(ledger: Ledger, agent: Caller) -> None:
    writer = await issue(ledger, "ingest 1")
    own = await issue(ledger, "laptop", Role.AGENT, agent_id=agent.agent)
    assert await ledger.caller(writer.token.encode()) == Principal(
        DEFAULT_TENANT_ID, Role.WRITER, "ingest 1", None, writer.key.key_id
    )
    assert await ledger.caller(own.token.encode()) == Principal(
        DEFAULT_TENANT_ID, Role.AGENT, agent.agent, agent.agent, own.key.key_id
    )
    told = await acts(ledger)
    assert [act["act"] for act in told] == ["agents_created", "key_issued", "key_issued"]
    assert [act["key"]["name"] for act in told[1:]] == ["ingest 1", "laptop"]


async def test_the_secret_of_a_key_is_nowhere_in_the_database(ledger: Ledger, table: Table) -> None:
    issued = await issue(ledger)
    secret = issued.token.split(".")[2]
    assert len(secret) == 43
    dump = [
        str(await table.admin.fetch(f"SELECT t::text FROM trails.{name} AS t"))
        for name in ("api_keys", "agent_audit_trails", "api_key_uses")
    ]
    assert issued.key.key_id in dump[0]
    assert issued.key.key_id in dump[1]
    assert not any(secret in text for text in dump)
    assert secret not in repr(issued)


@pytest.mark.parametrize("change", ["tenant", "id", "secret", "check", "case", "longer"])
async def test_h18_a_key_with_one_thing_changed_is_none(ledger: Ledger, change: str) -> None:
    issued = await issue(ledger)
    head, key_id, secret, check = issued.token.split(".")
    other = {
        "tenant": f"trk_{uuid4().hex}.{key_id}.{secret}.{check}",
        "id": f"{head}.{key_id[:-1] + ('0' if key_id[-1] != '0' else '1')}.{secret}.{check}",
        "secret": f"{head}.{key_id}.{'A' * 43}.{check}",
        "check": f"{head}.{key_id}.{secret}.{'0' * 16}",
        "case": issued.token.upper(),
        "longer": issued.token + "0",
    }[change]
    with pytest.raises(UnauthorizedError):
        await ledger.caller(other.encode())
    assert (await ledger.caller(issued.token.encode())).key_id == issued.key.key_id


async def test_a_key_whose_text_is_sound_and_whose_row_is_missing_is_none(ledger: Ledger) -> None:
    token = Mint(MASTER_KEY).token(DEFAULT_TENANT_ID, "00" * 8, bytes(32))
    with pytest.raises(UnauthorizedError):
        await ledger.caller(token.encode())


@pytest.mark.parametrize(
    "change",
    [
        "role = 'operator'",
        "name = 'someone else'",
        "expires_at = NULL",
        "tenant_id = '00000000-0000-4000-8000-000000000009'",
        "secret_hash = sha256('guessed')",
    ],
)
async def test_a_row_that_was_written_by_sql_is_no_key(
    ledger: Ledger, table: Table, clock: SetClock, change: str
) -> None:
    soon = datetime.fromtimestamp(clock.now_us / 1e6, UTC) + timedelta(hours=1)
    issued = await issue(ledger, expires_at=soon)
    await table.admin.execute("ALTER TABLE trails.api_keys DISABLE TRIGGER ALL")
    await table.admin.execute(f"UPDATE trails.api_keys SET {change}")
    await table.admin.execute("ALTER TABLE trails.api_keys ENABLE ALWAYS TRIGGER refuse_change_row")
    with pytest.raises(UnauthorizedError):
        await ledger.caller(issued.token.encode())
    assert await ledger.administration.keys(may(Permission.LIST_KEYS)) == []


async def test_a_revoked_key_is_none_on_every_process_soon(ledger: Ledger, second: Ledger) -> None:
    issued = await issue(ledger)
    token = issued.token.encode()
    for one in (ledger, second):
        await one.caller(token)
    await revoke(ledger, issued.key.key_id)
    for one in (ledger, second):
        await _refused_soon(one, token)
    await revoke(second, issued.key.key_id)
    assert [act["act"] for act in await acts(ledger)] == ["key_issued", "key_revoked"]


async def test_a_key_that_another_process_has_just_issued_can_be_revoked(
    ledger: Ledger, second: Ledger
) -> None:
    """The revocation is decided on what is on record now, not on what this process has read so far."""
    await issue(second, "first")
    issued = await issue(ledger, "second")
    await revoke(second, issued.key.key_id)
    assert [act["act"] for act in await acts(ledger)] == ["key_issued", "key_issued", "key_revoked"]
    await _refused_soon(ledger, issued.token.encode())


async def _refused_soon(ledger: Ledger, token: bytes) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await ledger.caller(token)
            except UnauthorizedError:
                return
            await asyncio.sleep(0.01)


async def test_an_expired_key_is_none(ledger: Ledger, clock: SetClock) -> None:
    now = datetime.fromtimestamp(clock.now_us / 1e6, UTC)
    issued = await issue(ledger, expires_at=now + timedelta(seconds=60))
    clock.move(59.9)
    await ledger.caller(issued.token.encode())
    clock.move(0.1)
    with pytest.raises(
        EndedKeyError, match=f"this key expired on {written(now + timedelta(seconds=60))}; ask"
    ):
        await ledger.caller(issued.token.encode())
    with pytest.raises(BadRequestError, match="in the future"):
        await issue(ledger, "late", expires_at=now)


@pytest.mark.parametrize("ends", ["expires", "is revoked"])
async def test_what_became_of_a_key_is_told_to_nobody_without_its_secret(
    ledger: Ledger, clock: SetClock, ends: str
) -> None:
    soon = datetime.fromtimestamp(clock.now_us / 1e6, UTC) + timedelta(seconds=60)
    issued = await issue(ledger, expires_at=soon)
    if ends == "is revoked":
        await revoke(ledger, issued.key.key_id)
    clock.move(60)
    with pytest.raises(EndedKeyError):
        await ledger.caller(issued.token.encode())
    # Its check digits are right, which none but the service can make: a secret alone opens what it is for.
    guessed = Mint(MASTER_KEY).token(issued.key.tenant_id, issued.key.key_id, bytes(32))
    altered = issued.token[:-1] + ("0" if issued.token[-1] != "0" else "1")
    unknown = Mint(MASTER_KEY).token(issued.key.tenant_id, "00" * 8, bytes(32))
    said = set()
    for token in (guessed, altered, unknown):
        with pytest.raises(UnauthorizedError) as refused:
            await ledger.caller(token.encode())
        said.add((type(refused.value), str(refused.value)))
    assert said == {(UnauthorizedError, str(UnauthorizedError()))}


async def test_the_last_use_of_a_key_is_told(ledger: Ledger, clock: SetClock) -> None:
    issued = await issue(ledger)
    assert [row.used_at for row in await ledger.administration.keys(may(Permission.LIST_KEYS))] == [None]
    await ledger.caller(issued.token.encode())
    await ledger._key_ring.close()
    [row] = await ledger.administration.keys(may(Permission.LIST_KEYS))
    assert row.used_at is not None
    now = datetime.fromtimestamp(clock.now_us / 1e6, UTC)
    assert timedelta(0) <= now - row.used_at < timedelta(minutes=10)


async def test_two_actors_are_never_called_the_same(ledger: Ledger, agent: Caller) -> None:
    first = await issue(ledger, "nightly")
    with pytest.raises(ConflictError, match="'nightly'"):
        await issue(ledger, "nightly", Role.AUDITOR)
    with pytest.raises(ConflictError, match="agent"):
        await issue(ledger, agent.agent)
    await revoke(ledger, first.key.key_id)
    await issue(ledger, "nightly", Role.AUDITOR)


@pytest.mark.parametrize(
    ("role", "members", "said"),
    [
        (Role.ROOT, {}, "role: must be one of"),
        (Role.AGENT, {}, "agent_id: is required"),
        (Role.WRITER, {"agent_id": "agent-1"}, "agent_id: is required for role agent, and for no other"),
    ],
)
async def test_a_key_of_no_kind_is_refused(
    ledger: Ledger, role: Role, members: dict[str, str], said: str
) -> None:
    with pytest.raises(BadRequestError, match=re.escape(said)):
        await issue(ledger, "k", role, **members)
    with pytest.raises(NotFoundError, match="agent not found"):
        await issue(ledger, "k", Role.AGENT, agent_id="nobody")


@pytest.mark.parametrize("name", ["", " x", "x ", "a\nb", "a\u202eb", "x" * 65, "-", "a/b", "\x1b[31m"])
async def test_h21_a_name_that_would_disturb_a_log_is_refused(ledger: Ledger, name: str) -> None:
    with pytest.raises(BadRequestError, match="name: must have"):
        await issue(ledger, name)


async def test_two_actors_that_differ_in_case_alone_are_refused(ledger: Ledger) -> None:
    await Caller(ledger, "Strasse").observe()
    await issue(ledger, "Ada")
    for name, said in (("ADA", "a key in use is called 'Ada'"), ("straße", "an agent is called 'Strasse'")):
        with pytest.raises(ConflictError, match=said):
            await issue(ledger, name)


async def test_a_token_that_was_revoked_is_none_in_any_process(ledger: Ledger, second: Ledger) -> None:
    await Caller(ledger, "bot").observe()
    tokens = [Principal(DEFAULT_TENANT_ID, Role.AGENT, "bot", "bot", epoch=epoch) for epoch in range(3)]
    asking = Caller(ledger, "bot").may(Permission.REVOKE_TOKEN)
    for epoch, one in enumerate((ledger, second)):
        for each in (ledger, second):
            each._standings._known.secs = 0.0  # as half a second later
            await each.require_in_force(tokens[epoch])
            with pytest.raises(UnauthorizedError):
                await each.require_in_force(tokens[epoch + 1])
        assert await one.administration.revoke_token(asking, "leaked") == epoch + 1
        for each in (ledger, second):
            with pytest.raises(UnauthorizedError):
                await each.require_in_force(tokens[epoch])
            await each.require_in_force(tokens[epoch + 1])
            assert await each.token_epoch(asking) == epoch + 1
    both = [one.administration.revoke_token(asking, "leaked") for one in (ledger, second)]
    await asyncio.gather(*both)
    assert await ledger.token_epoch(asking) == 4


async def test_the_next_token_of_an_agent_is_one_at_once_in_another_process(
    ledger: Ledger, second: Ledger
) -> None:
    await Caller(ledger, "bot").observe()
    asking = Caller(ledger, "bot").may(Permission.REVOKE_TOKEN)
    second._standings._known.secs = 3_600.0
    await second.require_in_force(Principal(DEFAULT_TENANT_ID, Role.AGENT, "bot", "bot"))
    epoch = await ledger.administration.revoke_token(asking, "leaked")
    await second.require_in_force(Principal(DEFAULT_TENANT_ID, Role.AGENT, "bot", "bot", epoch=epoch))


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "200000-01-01", "4000-01-01 BC"])
async def test_rows_with_times_that_the_service_never_writes_stop_nobody(
    ledger: Ledger, table: Table, moment: str
) -> None:
    """Who may insert rows past the service spoils neither lists nor what comes after."""
    issued = await issue(ledger)
    first = f"'{DEFAULT_TENANT_ID}', '{moment}'"
    own = f"{first}, '{issued.key.key_id}'"
    for columns, values in {
        "api_keys (tenant_id, created_at, expires_at, key_id, role, name, secret_hash, seal)":
            f"{first}, '{moment}', '00000000000000aa', 'writer', 'x', sha256('a'), sha256('b')",
        "api_key_revocations (tenant_id, revoked_at, key_id)": own,
        "api_key_uses (tenant_id, used_at, key_id)": own,
        "tenant_suspensions (tenant_id, changed_at, suspended)": f"{first}, false",
        "agents (tenant_id, created_at, agent_id, log_uuid, guarded)": f"{first}, 'x1', '{uuid4()}', false",
        "tenants (tenant_id, created_at, slug, name)": f"'{uuid4()}', '{moment}', 'x', 'X'",
    }.items():  # fmt: skip
        await table.admin.execute(f"INSERT INTO trails.{columns} VALUES ({values})")
    await ledger.caller(issued.token.encode())
    [row] = await ledger.administration.keys(may(Permission.LIST_KEYS))
    assert (row.key_id, row.revoked_at) == (issued.key.key_id, None)
    await issue(ledger, "x")
    for suspended in (True, False, True):
        await ledger.administration.suspend_tenant(DEFAULT_TENANT_ID, "root", "why", suspended=suspended)
        assert [told for _, told in await ledger.administration.tenants()] == [suspended, False]
    assert (await Caller(ledger, "x1").listed())["state"] == "quarantined"
    public = await ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")
    done = [one.agent_id async for one in ledger.administration.hand_over(DEFAULT_TENANT_ID, public)]
    assert done == [ADMINISTRATION, "x1"]


async def test_keys_that_are_issued_at_once_by_two_processes_are_all_there(
    ledger: Ledger, second: Ledger
) -> None:
    names = [f"k{number}" for number in range(20)]
    issued = await asyncio.gather(
        *(issue((ledger, second)[number % 2], name) for number, name in enumerate(names))
    )
    same = await asyncio.gather(*(issue(one, "same") for one in (ledger, second)), return_exceptions=True)
    assert sorted(type(result) for result in same if isinstance(result, Exception)) == [ConflictError]
    assert len({one.key.key_id for one in issued}) == 20
    told = sorted(act["key"]["name"] for act in await acts(second))
    assert told == sorted([*names, "same"])


async def test_p19_a_key_is_shown_once_whatever_is_sent_again(ledger: Ledger) -> None:
    mark = Stamp("ab" * 32, "cd" * 32)
    asking = may(Permission.ISSUE_KEY)
    await ledger.administration.issue_key(asking, NewKey(Role.WRITER, "once"), mark)
    with pytest.raises(ConflictError):
        await ledger.administration.issue_key(asking, NewKey(Role.WRITER, "once"), mark)
    with pytest.raises(ConflictError, match="not shown again"):
        await ledger.administration.issue_key(asking, NewKey(Role.WRITER, "other name"), mark)
    assert len(await acts(ledger)) == 1


async def test_t08_nobody_removes_a_key_or_brings_one_back(ledger: Ledger, table: Table) -> None:
    issued = await issue(ledger)
    await revoke(ledger, issued.key.key_id)
    for statement in (
        "DELETE FROM trails.api_key_revocations",
        "DELETE FROM trails.api_keys",
        "UPDATE trails.api_key_revocations SET revoked_at = revoked_at + interval '1 year'",
    ):
        with pytest.raises(asyncpg.PostgresError, match="append-only"):
            await table.admin.execute(statement)


# --- tenants --------------------------------------------------------------------------------------------


@pytest.fixture
async def acme(ledger: Ledger) -> tuple[UUID, IssuedKey]:
    """A second tenant, and its operator's key."""
    row, issued = await ledger.administration.create_tenant(NewTenant("acme", "Acme", "Ada"), "root")
    return row.tenant_id, issued


async def test_a_new_tenant_has_a_key_a_chain_and_an_operator(
    ledger: Ledger, acme: tuple[UUID, IssuedKey]
) -> None:
    tenant, operator = acme
    caller = await ledger.caller(operator.token.encode())
    assert caller == Principal(tenant, Role.OPERATOR, "Ada", None, operator.key.key_id)
    assert await ledger.public_key(tenant) != await ledger.public_key(DEFAULT_TENANT_ID)
    assert [act["act"] for act in await acts(ledger, tenant)] == ["tenant_created", "key_issued"]
    with pytest.raises(ConflictError, match="slug"):
        await ledger.administration.create_tenant(NewTenant("acme", "Another", "Bob"), "root")


async def test_h14_a_key_of_another_tenant_is_as_unknown_as_none(
    ledger: Ledger, acme: tuple[UUID, IssuedKey]
) -> None:
    said = set()
    for key_id in (acme[1].key.key_id, "00" * 8):
        with pytest.raises(NotFoundError) as caught:
            await revoke(ledger, key_id)
        said.add(str(caught.value))
    assert said == {"key not found"}
    assert await ledger.administration.keys(may(Permission.LIST_KEYS)) == []
    await ledger.caller(acme[1].token.encode())


async def test_t08_a_suspended_tenant_is_read_and_not_written(
    ledger: Ledger, second: Ledger, acme: tuple[UUID, IssuedKey], agent: Caller
) -> None:
    tenant, _ = acme
    bot = Caller(ledger, "bot", tenant)
    await bot.create()
    await bot.ask("search")
    before = await bot.status()
    await ledger.administration.suspend_tenant(tenant, "root", "unpaid", suspended=True)
    elsewhere = bot.at(second)
    async with asyncio.timeout(30):
        while not (await second._keystore.of(tenant)).suspended:
            await asyncio.sleep(0.01)
    for caller in (bot, elsewhere):
        for writing in (caller.ask, caller.scar, caller.terminate, Caller(caller.ledger, "x", tenant).create):
            with pytest.raises(ForbiddenError, match="suspended"):
                await writing()
        with pytest.raises(ForbiddenError, match="suspended"):
            await issue(caller.ledger, "more", tenant=tenant)
        assert await caller.status() == before
        assert (await caller.verify())["ok"] is True
    await agent.ask("search")
    with pytest.raises(ConflictError, match="already"):
        await ledger.administration.suspend_tenant(tenant, "root", "again", suspended=True)
    await ledger.administration.suspend_tenant(tenant, "root", "paid", suspended=False)
    await bot.ask("search")
    assert [act["act"] for act in await acts(ledger, tenant)][-2:] == ["tenant_suspended", "tenant_resumed"]


async def test_t08_nothing_of_a_tenant_begins_once_another_process_suspended_it(
    ledger: Ledger, second: Ledger, acme: tuple[UUID, IssuedKey]
) -> None:
    """A process that remembers it as active decides on what is on record, and so when it is let go on."""
    tenant, _ = acme
    await issue(second, "before", tenant=tenant)
    await second._standings.writable(tenant)
    for known in (second._keystore._known, second._standings._known):
        known.secs = inf
    await ledger.administration.suspend_tenant(tenant, "root", "unpaid", suspended=True)
    for begin in (
        lambda name: issue(second, name, tenant=tenant),
        lambda _: second.administration.set_redaction(may(Permission.SET_REDACTION, tenant), RuleList(0, ())),
        lambda name: second.webhooks.create(
            may(Permission.SET_WEBHOOKS, tenant), NewWebhook(name, "https://a.example/", Wanted()), ()
        ),
    ):
        with pytest.raises(ForbiddenError, match="suspended"):
            await begin("after")
    kept = await issue(ledger, "elsewhere")
    await ledger.administration.suspend_tenant(tenant, "root", "paid", suspended=False)
    await issue(second, "again", tenant=tenant)
    assert [act["act"] for act in await acts(ledger, tenant)] == [
        "tenant_created", "key_issued", "key_issued", "tenant_suspended", "tenant_resumed", "key_issued",
    ]  # fmt: skip
    assert (await second.caller(kept.token.encode())).name == "elsewhere"


async def test_nothing_but_the_service_writes_to_the_administration_chain(ledger: Ledger) -> None:
    await issue(ledger)
    for permission in Permission:
        if permission.value.startswith(("read", "list")) or permission is Permission.EXPORT:
            continue  # what changes nothing
        with pytest.raises(ForbiddenError):
            grant(OPERATOR, permission, ADMINISTRATION)
    listed = await ledger.agents(may(Permission.LIST_AGENTS))
    assert [entry["agent_id"] for entry in listed] == []


@pytest.fixture
async def second(ledger: Ledger, pool: Pool, clock: SetClock) -> AsyncIterator[Ledger]:
    """What another process would be."""
    del ledger
    opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
    yield opened
    await opened.close()
