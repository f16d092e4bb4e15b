"""Case C24: keys are rotated, old records verify for ever, and a retired key signs nothing more."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import asyncpg
import msgspec
import pytest

import db.ledger
from app.chain.keys import SigningKey, seal_secret
from app.chain.link import seal, seal_all
from app.chain.record import GENESIS, Draft
from app.errors import (
    KeyMaterialError,
    MirrorError,
    QuarantinedError,
    StaleChainError,
    TenantQuarantinedError,
)
from app.ledger import Ledger
from app.ledger.chain import ChainId
from app.ledger.keys.sealed_key import key_context, open_row
from app.ledger.mirror import registry_row, row_of
from app.ledger.tenancy.filing import genesis_payload
from app.principal import ADMINISTRATION, Permission, Principal, Role, grant
from db.pool import Pool
from db.schema import DEFAULT_TENANT_ID
from tests.support.ledgers import MASTER_KEY, Caller, Opener, SetClock, Table


async def rotated(ledger: Ledger) -> str:
    """Rotates the default tenant's key; this ledger signs by it at once."""
    ledger._keystore.settle_secs = 0.0
    return await ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")


async def settled(restarted: Opener) -> Ledger:
    """A ledger that goes by the newest key, however new it is."""
    ledger = await restarted()
    ledger._keystore.settle_secs = 0.0
    ledger._keystore.forget(DEFAULT_TENANT_ID)
    return ledger


async def key_ids(table: Table) -> list[str]:
    return [row["key_id"] for row in await table.rows()]


async def test_c24_records_of_three_keys_verify_and_each_rotation_is_signed_by_the_old_one(
    agent: Caller, restarted: Opener, table: Table
) -> None:
    keys = [await agent.ledger.public_key(DEFAULT_TENANT_ID)]
    for _ in range(2):
        for number in range(5):
            await agent.ask("search", number)
        keys.append(await rotated(agent.ledger))
    await agent.ask("search", "last")
    assert await agent.ledger.public_key(DEFAULT_TENANT_ID) == keys[2]
    rotations = [row for row in await table.rows() if row["kind"] == "key_rotated"]
    assert len(rotations) == 2
    assert len(set(await key_ids(table))) == 3
    for ledger in (agent.ledger, await restarted()):
        verdict = await agent.at(ledger).verify()
        assert verdict["ok"] is True
        assert verdict["public_key"] in {keys[0], keys[2]}
    assert (await agent.at(await restarted()).status())["spent"] == 22


async def test_c24_what_the_retired_key_signs_afterwards_does_not_verify(
    agent: Caller, restarted: Opener, pool: Pool
) -> None:
    old = (await agent.ledger._keystore.of(DEFAULT_TENANT_ID)).newest
    await rotated(agent.ledger)
    await agent.ask("search")
    chain = await agent.ledger._chains.get(DEFAULT_TENANT_ID, agent.agent)
    forged = seal(Draft("event", {"type": "x", "data": None}, "thief"), chain.head, 0, old)
    await db.ledger.append(pool, [row_of(chain.id, forged, old.public.key_id)])
    with pytest.raises(QuarantinedError, match="signed"):
        await agent.ask("search")
    other = agent.at(await restarted())
    with pytest.raises(QuarantinedError):
        await other.status()
    assert (await other.verify())["ok"] is False


async def forged_chain(agent: Caller, pool: Pool, name: str, *, at_us: int = 0) -> Caller:
    """A chain that whoever has the first key, and may write into the table, begins by himself."""
    keys = await agent.ledger._keystore.of(DEFAULT_TENANT_ID)
    old = next(iter(keys.by_public_key.values()))
    assert isinstance(old, SigningKey)
    chain_id = ChainId(DEFAULT_TENANT_ID, name, uuid4(), guarded=False)
    payload = genesis_payload(chain_id, msgspec.structs.replace(keys, newest=old))
    [genesis] = seal_all([Draft(GENESIS, payload, "thief")], None, at_us, old)
    row = row_of(chain_id, genesis, old.public.key_id)
    await db.ledger.append(pool, [row], chains=[registry_row(chain_id, row)])
    return Caller(agent.ledger, name)


async def test_c24_a_retired_key_begins_no_chain_even_dated_back(
    agent: Caller, restarted: Opener, pool: Pool
) -> None:
    await agent.ask("search")
    await rotated(agent.ledger)
    thief = await forged_chain(agent, pool, "mole")
    for ledger in (agent.ledger, await settled(restarted)):
        with pytest.raises(QuarantinedError, match="retired before any record told of this chain"):
            await thief.at(ledger).status()
        verdict = await thief.at(ledger).verify()
        assert verdict["ok"] is False
        assert "retired before any record told of this chain" in verdict["failure"]["reason"]
        with pytest.raises(QuarantinedError):
            await thief.at(ledger).status()
        assert (await agent.at(ledger).status())["alive"] is True


async def test_c24_what_a_retired_key_began_in_its_time_stays(agent: Caller, restarted: Opener) -> None:
    """Chains that were told of before; and one that a process began which had not heard of the rotation."""
    idle = Caller(agent.ledger, "idle")
    await idle.create()
    other = await restarted()
    await other._keystore.of(DEFAULT_TENANT_ID)
    await rotated(agent.ledger)
    late = Caller(other, "late")
    await late.create()
    fresh = await settled(restarted)
    for name in ("idle", "late", agent.agent):
        caller = Caller(fresh, name)
        assert (await caller.status())["alive"] is True
        assert (await caller.verify())["ok"] is True
    assert len((await fresh._keystore.of(DEFAULT_TENANT_ID)).by_public_key) == 2
    assert len(fresh._origins._known) == 1, "the record of all is read once"


async def test_c24_while_no_record_can_tell_what_was_begun_chains_are_verified_and_not_used(
    agent: Caller, restarted: Opener, table: Table
) -> None:
    await rotated(agent.ledger)
    await table.unlock()
    await table.admin.execute(
        "DELETE FROM trails.agent_audit_trails WHERE agent_id = $1 AND seq = 1", ADMINISTRATION
    )
    caller = agent.at(await settled(restarted))
    with pytest.raises(TenantQuarantinedError):
        await caller.status()
    assert (await caller.verify())["ok"] is True


async def test_chains_are_handed_over_at_once_or_by_their_next_record(
    agent: Caller, twin: Caller, table: Table
) -> None:
    idle = Caller(agent.ledger, "idle")
    await idle.create()
    public = await rotated(agent.ledger)
    twin.ledger._keystore.settle_secs = 0.0
    twin.ledger._keystore.forget(DEFAULT_TENANT_ID)
    await asyncio.gather(agent.ask("search"), twin.ask("search"))
    assert [row["kind"] for row in await table.rows()].count("key_rotated") == 1
    done = [one async for one in agent.ledger.administration.hand_over(DEFAULT_TENANT_ID, public)]
    assert {one.agent_id: one.problem for one in done} == {
        ADMINISTRATION: None, agent.agent: None, "idle": None,
    }  # fmt: skip
    for name in ("idle", agent.agent, ADMINISTRATION):
        rows = await table.rows(name)
        assert [row["kind"] for row in rows].count("key_rotated") == 1
    again = [one async for one in agent.ledger.administration.hand_over(DEFAULT_TENANT_ID, public)]
    assert len(again) == 3
    assert len(await table.rows("idle")) == 3
    chain = await agent.ledger._chains.get(DEFAULT_TENANT_ID, "idle")
    assert chain.key_in_force.hex == public


async def test_a_process_that_has_not_heard_of_the_new_key_does_not_hand_back(
    agent: Caller, twin: Caller, table: Table
) -> None:
    """It goes on with what it knows; when the chain is signed by a key unknown to it, it asks again."""
    await twin.ask("search")
    await rotated(agent.ledger)
    await agent.ask("search")
    twin.ledger._keystore._known.secs = 3_600.0
    for _ in range(3):
        await twin.ask("search")
    kinds = [row["kind"] for row in await table.rows()]
    assert kinds.count("key_rotated") == 1
    assert (await twin.verify())["ok"] is True


async def test_a_new_key_signs_nothing_before_every_process_can_know_it(agent: Caller, table: Table) -> None:
    before = await agent.ledger.public_key(DEFAULT_TENANT_ID)
    await agent.ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")
    assert agent.ledger._keystore.settle_secs > agent.ledger._keystore._known.secs
    await agent.ask("search")
    assert await agent.ledger.public_key(DEFAULT_TENANT_ID) == before
    assert "key_rotated" not in [row["kind"] for row in await table.rows()]


async def test_a_hand_over_to_a_key_that_is_not_in_force_yet_is_told_as_none(
    agent: Caller, table: Table
) -> None:
    public = await agent.ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")
    done = [one async for one in agent.ledger.administration.hand_over(DEFAULT_TENANT_ID, public)]
    assert {one.agent_id for one in done if "is still signed by" in (one.problem or "")} == {
        ADMINISTRATION, agent.agent,
    }  # fmt: skip
    assert "key_rotated" not in [row["kind"] for row in await table.rows()]


async def test_a_chain_that_was_handed_to_a_still_newer_key_is_handed_over(agent: Caller) -> None:
    """Rotations that follow one another quickly: the earlier one has no problem with what came after it."""
    public = await rotated(agent.ledger)
    newest = await rotated(agent.ledger)
    done = [one async for one in agent.ledger.administration.hand_over(DEFAULT_TENANT_ID, public)]
    assert [one.problem for one in done] == [None, None]
    chain = await agent.ledger._chains.get(DEFAULT_TENANT_ID, agent.agent)
    assert chain.key_in_force.hex == newest


async def test_rotations_are_on_record_and_new_chains_begin_with_the_newest_key(
    ledger: Ledger, pool: Pool, clock: SetClock
) -> None:
    public = await rotated(ledger)
    young = Caller(ledger, "young")
    status = await young.create()
    assert status["public_key"] == public
    reading = grant(Principal(DEFAULT_TENANT_ID, Role.AUDITOR, "a"), Permission.READ_LOG, ADMINISTRATION)
    lines, _ = await ledger.log(reading, None, 100)
    assert any("signing_key_rotated" in line and public in line for line in lines)
    fresh = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
    assert (await young.at(fresh).verify())["ok"] is True
    await fresh.close()


async def test_a_rotation_to_a_key_that_is_not_the_tenants_leads_nowhere(agent: Caller, pool: Pool) -> None:
    """Who stole the key in force and hands the chain to a key of his own: the service signs nothing there."""
    stolen = (await agent.ledger._keystore.of(DEFAULT_TENANT_ID)).newest
    chain = await agent.ledger._chains.get(DEFAULT_TENANT_ID, agent.agent)
    his = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    forged = seal(Draft("key_rotated", {"public_key": his}, "thief"), chain.head, 0, stolen)
    await db.ledger.append(pool, [row_of(chain.id, forged, stolen.public.key_id)])
    with pytest.raises(Exception) as caught:  # noqa: PT011  which of the refusals it is does not matter here
        await agent.ask("search")
    assert not isinstance(caught.value, StaleChainError | MirrorError | AssertionError)
    assert "thief" not in str(caught.value)


async def test_c24_a_retired_key_is_not_made_the_newest_again_by_changing_its_time(
    agent: Caller, restarted: Opener, admin: asyncpg.Connection[asyncpg.Record], table: Table
) -> None:
    """A superuser who has stolen the old key gives it the last place: nothing signs, and not that key."""
    old = await agent.ledger.public_key(DEFAULT_TENANT_ID)
    await rotated(agent.ledger)
    await agent.ask("search")
    before = await key_ids(table)
    for moment in ("now()", "'infinity'", "'20000-03-15'"):
        await change_keys(admin, f"created_at = {moment}", f"public_key = '{old}'")
        agent.ledger._keystore.forget(DEFAULT_TENANT_ID)
        with pytest.raises(KeyMaterialError, match="time"):
            await agent.ask("search")
        with pytest.raises(KeyMaterialError, match="time"):
            await Caller(agent.ledger, "young").create()
        with pytest.raises(KeyMaterialError, match="time"):
            await restarted()
    assert await key_ids(table) == before


async def test_c24_a_key_that_this_process_had_opened_is_held_against_its_seal_again(
    agent: Caller, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    await rotated(agent.ledger)
    known = await agent.ledger._keystore.of(DEFAULT_TENANT_ID)
    await change_keys(admin, "created_at = created_at + interval '1 microsecond'", "true")
    with pytest.raises(KeyMaterialError, match="the order of keys was changed"):
        await agent.ledger._keystore._load(DEFAULT_TENANT_ID, known)


async def test_c24_keys_of_the_old_form_open_and_are_older_than_every_dated_one(
    agent: Caller, restarted: Opener, admin: asyncpg.Connection[asyncpg.Record], table: Table
) -> None:
    """What an installation had before the order was sealed: its time can be changed, and changes nothing."""
    await undate(admin, agent.ledger)
    first = await agent.ledger.public_key(DEFAULT_TENANT_ID)
    await agent.ask("search")
    await change_keys(admin, "created_at = '9000-01-01'", "true")
    agent.ledger._keystore.forget(DEFAULT_TENANT_ID)
    second = await rotated(agent.ledger)
    await agent.ask("search")
    assert len(set(await key_ids(table))) == 2  # the hand-over, then what the new key signs
    again = await restarted()
    again._keystore.settle_secs = 0.0
    again._keystore.forget(DEFAULT_TENANT_ID)
    assert await again.public_key(DEFAULT_TENANT_ID) == second != first
    keys = await again._keystore.of(DEFAULT_TENANT_ID)
    assert list(keys.by_public_key) == [first, second]
    assert (await agent.at(again).verify())["ok"] is True


async def test_all_keys_are_told_and_a_chain_tells_the_one_it_began_with(agent: Caller) -> None:
    first = await agent.ledger.public_key(DEFAULT_TENANT_ID)
    second = await rotated(agent.ledger)
    await agent.ask("search")
    told = await agent.ledger.public_keys(DEFAULT_TENANT_ID)
    assert told["public_key"] == second
    assert [(key["public_key"], key["retired"]) for key in told["keys"]] == [(first, True), (second, False)]
    assert (await agent.status())["public_key"] == first
    assert (await agent.verify())["genesis_key"] == first


async def change_keys(admin: asyncpg.Connection[asyncpg.Record], change: str, of: str) -> None:
    """What a superuser can do who switches the triggers off."""
    await admin.execute("ALTER TABLE trails.signing_keys DISABLE TRIGGER ALL")
    await admin.execute(f"UPDATE trails.signing_keys SET {change} WHERE {of}")


async def undate(admin: asyncpg.Connection[asyncpg.Record], ledger: Ledger) -> None:
    """Seals the default tenant's one key as it was sealed before its time was."""
    [row] = (await ledger._keystore.of(DEFAULT_TENANT_ID)).rows
    secret = open_row(MASTER_KEY, row).content
    assert isinstance(secret, bytes)
    context = key_context(DEFAULT_TENANT_ID, row.key_id)
    sealed = seal_secret(MASTER_KEY, secret, context=context, nonce=bytes(12))
    await change_keys(admin, f"sealed_secret = '\\x{sealed.hex()}'", "true")
    ledger._keystore.forget(DEFAULT_TENANT_ID)
