"""``trails verify`` on a database that a superuser tampered with (cases C18, C20 to C23, C31)."""

from __future__ import annotations

import asyncio
import hashlib
import tracemalloc
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import db.ledger
from app.audit import dump
from app.audit import rows as audit_rows
from app.audit.rows import Spot
from app.chain.keys import SigningKey, seal_secret
from app.chain.link import seal, seal_all
from app.chain.record import Draft, Head, parse_timestamp
from app.chain.strict import JsonObject, parse
from app.ledger import Ledger
from app.ledger.keys.sealed_key import NewSigningKey, seal_key
from app.ledger.mirror import row_of
from app.principal import Permission
from db.pool import Connection, Pool, create_pool
from tests.integration.cli.conftest import TRAIL, Trail
from tests.support.cli import Result, faults, run_trails
from tests.support.jobs import shared_work
from tests.support.ledgers import MASTER_KEY, Caller, posted, spans
from tests.support.postgres import Database

Fetched = dict[tuple[int, str], list[Any]]
SCOUT = "agent_id = 'scout'"
REHASH = "encode(sha256(convert_to(E'lineage-audit-v1\\n' || {}, 'UTF8')), 'hex')"


def records(trail: Trail) -> int:
    return int(trail.fetch(f"SELECT count(*) FROM {TRAIL}")[0][0])


def scout(result: Result) -> dict[str, Any]:
    """What is said of the default tenant's scout."""
    [found] = [
        chain
        for chain in result.json["chains"]
        if (chain["tenant"], chain["agent_id"]) == ("default", "scout")
    ]
    return dict(found)


def test_c21_a_clean_database_is_verified_and_says_how_far(trail: Trail) -> None:
    result = trail.verify()
    assert result.code == 0, result
    assert result.json["checked"] == records(trail)
    assert [chain["agent_id"] for chain in result.json["chains"]] == ["_administration", "other", "scout"]
    assert result.json["completeness"].startswith("complete up to what this database knows")


def test_c23_without_any_key_the_signer_is_only_self_declared(trail: Trail) -> None:
    keyless = trail.with_url(trail.database.admin_url, master_key=None)
    assert trail.verify(env=keyless).code == 6
    key = scout(trail.verify())["public_key"]
    assert trail.verify("--public-key", key, env=keyless).code == 0
    other = SigningKey.from_raw(bytes(32)).public.hex
    assert trail.verify("--public-key", other, env=keyless).code == 7
    sign_again(trail, SigningKey.from_raw(hashlib.sha256(b"attacker").digest()), plant_key=False)
    assert trail.verify("--public-key", key, env=keyless).code != 0
    assert trail.verify().code == 1


def test_another_installations_master_key_could_not_check(trail: Trail) -> None:
    result = trail.verify(env=trail.with_url(trail.database.admin_url, master_key=bytes(32)))
    assert result.code == 5
    assert "master key" in result.json["findings"][0]["reason"]


def test_c31_a_flipped_byte_in_the_text_is_named(trail: Trail) -> None:
    trail.tamper(
        f"UPDATE {TRAIL} SET signed_text = replace(signed_text, 'ümlaut 2', 'ümlaut 3')"
        f" WHERE {SCOUT} AND seq = 9",
        drop_checks=True,
    )
    result = trail.verify()
    assert result.code == 1
    assert faults(result) == [(9, "content")]
    assert any("trail_hash" in finding["what"] for finding in result.json["findings"])


def test_c31_a_record_rewritten_with_its_hash_is_named_although_the_catalog_is_clean(trail: Trail) -> None:
    changed = "replace(signed_text, 'ümlaut 2', 'ümlaut 3')"
    trail.tamper(
        f"UPDATE {TRAIL} SET signed_text = {changed}, hash = {REHASH.format(changed)}"
        f" WHERE {SCOUT} AND seq = 9"
    )
    result = trail.verify()
    assert (result.code, faults(result), result.json["findings"]) == (1, [(9, "signature")], [])


def test_c31_a_missing_record_is_one_gap(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 5")
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(5, "order")])


def test_c31_a_replaced_signature_is_named(trail: Trail) -> None:
    trail.tamper(
        f"UPDATE {TRAIL} SET signature = (SELECT signature FROM {TRAIL} WHERE {SCOUT} AND seq = 3)"
        f" WHERE {SCOUT} AND seq = 4"
    )
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(4, "signature")])


def test_c31_two_texts_that_changed_places_are_named(trail: Trail) -> None:
    columns = "signed_text, hash, signature, kind, actor, prev_hash, session_id, created_at, idempotency_key"
    pairs = ", ".join(f"{name} = o.{name}" for name in columns.split(", "))
    trail.tamper(
        f"UPDATE {TRAIL} AS t SET {pairs} FROM (SELECT * FROM {TRAIL}) AS o"
        f" WHERE t.{SCOUT} AND o.{SCOUT} AND t.seq IN (5, 6) AND o.seq = 11 - t.seq",
        drop_checks=True,
    )
    result = trail.verify()
    assert result.code == 1
    assert faults(result)[0] == (5, "order")


def test_c31_a_second_record_at_one_seq_is_a_fork(trail: Trail) -> None:
    columns = (
        "tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at, prev_hash, hash, signature"
    )
    columns += ", key_id, signed_text"
    trail.tamper(
        f"ALTER TABLE {TRAIL} DROP CONSTRAINT trail_pkey",
        f"INSERT INTO {TRAIL} ({columns}) SELECT {columns} FROM {TRAIL} WHERE {SCOUT} AND seq = 5",
        drop_checks=True,
    )
    result = trail.verify()
    assert result.code == 1
    assert (5, "fork") in faults(result)


@pytest.mark.parametrize("keep_registry_row", [True, False])
def test_c18_a_chain_without_records_is_an_error(trail: Trail, *, keep_registry_row: bool) -> None:
    heads = trail.folder / "heads.txt"
    assert trail.trails("verify", "--save-heads", heads).code == 0
    trail.tamper(
        f"DELETE FROM {TRAIL} WHERE {SCOUT}",
        *([] if keep_registry_row else [f"DELETE FROM trails.agents WHERE {SCOUT}"]),
    )
    if keep_registry_row:
        result = trail.verify()
        assert result.code == 1
        assert (0, "order") in faults(result)
    else:
        gone = trail.verify()
        assert gone.code == 1
        assert "the chain of agent scout is on record" in gone.json["findings"][0]["reason"]
        # Who removes that record, too, is found by the head that was kept.
        result = trail.verify("--heads", heads)
        assert result.code == 1
        assert "incomplete" in [chain["verdict"] for chain in result.json["chains"]]
        [missing] = [line for line in result.out.splitlines() if "the chain is not there" in line]
        assert "(default/scout)" in missing


def test_c18_rows_of_a_chain_that_the_registry_does_not_name_are_an_error(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM trails.agents WHERE {SCOUT}")
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(0, "mirror")])
    assert result.json["checked"] == records(trail)


def test_c18_a_cut_tail_is_found_by_a_checkpoint_alone(trail: Trail) -> None:
    head = trail.head()
    trail.tamper(
        f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq > (SELECT max(seq) - 3 FROM {TRAIL} WHERE {SCOUT})"
    )
    alone = trail.verify()
    assert alone.code == 0
    assert "only a head kept elsewhere" in alone.json["completeness"]
    result = trail.verify("--agent", "scout", "--checkpoint", head)
    assert result.code == 3
    assert scout(result)["missing_checkpoints"] == [int(head.partition(":")[0])]


def test_c18_a_checkpoint_with_another_hash_is_tampering(trail: Trail) -> None:
    assert trail.verify("--agent", "scout", "--checkpoint", trail.head()).code == 0
    other = trail.head().partition(":")[0] + ":" + "0" * 64
    assert trail.verify("--agent", "scout", "--checkpoint", other).code == 1


def test_a_checkpoint_for_the_whole_database_has_to_name_its_chain(trail: Trail) -> None:
    assert trail.trails("verify", "--checkpoint", trail.head()).code == 2


def test_c23_a_chain_signed_anew_with_the_attackers_key_is_tampered(trail: Trail) -> None:
    sign_again(trail, SigningKey.from_raw(hashlib.sha256(b"attacker").digest()), plant_key=False)
    result = trail.verify()
    assert result.code == 1
    assert (0, "signature") in faults(result)


def test_c23_an_attackers_key_planted_in_the_registry_is_tampering_too(trail: Trail) -> None:
    sign_again(trail, SigningKey.from_raw(hashlib.sha256(b"attacker").digest()), plant_key=True)
    result = trail.verify()
    assert result.code == 1
    assert "signing key" in [finding["what"] for finding in result.json["findings"]]
    assert (0, "signature") in faults(result)


def sign_again(trail: Trail, key: SigningKey, *, plant_key: bool) -> None:
    """Re-signs scout's whole chain, links and hashes included, so that only the key is wrong."""
    rows = trail.fetch(f"SELECT seq, signed_text, tenant_id FROM {TRAIL} WHERE {SCOUT} ORDER BY seq")
    statements, head = [], None
    for seq, text, _ in rows:
        fields = parse(text.encode()).value
        assert isinstance(fields, dict)
        payload = {**fields["payload"], "public_key": key.public.hex} if seq == 0 else fields["payload"]
        draft = Draft(fields["kind"], payload, fields["actor"])
        at_us = parse_timestamp(fields["timestamp"])
        sealed = seal(draft, head, at_us, key)
        head = Head(sealed.seq, sealed.hash, sealed.timestamp_us)
        quoted = sealed.text.replace("'", "''")
        statements.append(
            f"UPDATE {TRAIL} SET signed_text = '{quoted}', hash = '{sealed.hash}',"
            f" prev_hash = '{sealed.prev_hash}', signature = '{sealed.signature}',"
            f" key_id = '{key.public.key_id}' WHERE {SCOUT} AND seq = {seq}"
        )
    if plant_key:
        sealed_secret = seal_secret(bytes(32), bytes(32), context=b"any", nonce=bytes(12)).hex()
        statements.append(
            "INSERT INTO trails.signing_keys SELECT tenant_id, "
            f"'{key.public.key_id}', '{key.public.hex}', '\\x{sealed_secret}', now() FROM trails.tenants"
        )
    trail.tamper(*statements)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("agent_id = 'other'", "agent_id"),
        ("created_at = created_at + interval '1 microsecond'", "created_at"),
        ("created_at = 'infinity'", "created_at"),
        ("created_at = '4713-01-01 BC'", "created_at"),
        ("session_id = gen_random_uuid()", "session_id"),
        ("key_id = repeat('0', 16)", "key_id"),
        ("idempotency_key = NULL", "idempotency_key"),
        ("kind = 'scar'", "kind"),
        ("actor = 'somebody'", "actor"),
        ("prev_hash = repeat('0', 64)", "prev_hash"),
    ],
)
def test_a_column_that_says_something_else_than_the_text_is_named(
    trail: Trail, change: str, named: str
) -> None:
    trail.tamper(f"UPDATE {TRAIL} SET {change} WHERE {SCOUT} AND seq = 2", drop_checks=True)
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(2, "mirror")])
    assert named in scout(result)["faults"][0]["reason"]


@pytest.mark.parametrize(
    "value",
    [
        "trace_data - 'cost'",
        "jsonb_set(trace_data, '{cost}', 'true')",
        "jsonb_set(trace_data, '{input,half}', '0.50000000000000000001')",
        "jsonb_set(trace_data, '{input,long}', '1000000000000000000000000000001')",
        "NULL",
    ],
)
def test_a_payload_column_that_is_no_longer_generated_is_compared_exactly(trail: Trail, value: str) -> None:
    trail.tamper(
        f"ALTER TABLE {TRAIL} ALTER COLUMN trace_data DROP EXPRESSION",
        f"ALTER TABLE {TRAIL} ALTER COLUMN trace_data DROP NOT NULL",
        f"UPDATE {TRAIL} SET trace_data = {value} WHERE {SCOUT} AND seq = 2",
        drop_checks=True,
    )
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(2, "mirror")])
    assert "trace_data" in scout(result)["faults"][0]["reason"]


def test_an_identifier_that_is_no_longer_derived_is_named(trail: Trail) -> None:
    trail.tamper(
        f"ALTER TABLE {TRAIL} ALTER COLUMN id DROP EXPRESSION",
        f"UPDATE {TRAIL} SET id = 7 WHERE {SCOUT} AND seq = 2",
    )
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(2, "mirror")])


def test_a_text_that_is_null_is_a_fault_and_no_crash(trail: Trail) -> None:
    trail.tamper(
        f"ALTER TABLE {TRAIL} ALTER COLUMN trace_data DROP EXPRESSION",
        f"ALTER TABLE {TRAIL} ALTER COLUMN signed_text DROP NOT NULL",
        f"UPDATE {TRAIL} SET signed_text = NULL WHERE {SCOUT} AND seq = 2",
        drop_checks=True,
    )
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(2, "mirror")])


@pytest.mark.parametrize(
    "change", ["guarded = NOT guarded", "created_at = now() + interval '1 day'", "agent_id = 'renamed'"]
)
def test_a_registry_that_says_something_else_than_the_chain_is_an_error(trail: Trail, change: str) -> None:
    trail.tamper(f"UPDATE trails.agents SET {change} WHERE {SCOUT}")
    result = trail.verify()
    assert result.code == 1
    assert faults(result)[0][1] == "mirror"


@pytest.mark.parametrize("moment", ["20000-03-15", "4713-01-01 BC", "0044-03-15 BC", "infinity"])
def test_c22_a_time_that_no_client_can_hold_hides_nothing(trail: Trail, moment: str) -> None:
    execute(
        trail,
        "ALTER TABLE trails.agents DISABLE TRIGGER ALL; ALTER TABLE trails.signing_keys DISABLE TRIGGER ALL;"
        f"UPDATE trails.agents SET created_at = '{moment}' WHERE {SCOUT};"
        f"UPDATE trails.signing_keys SET created_at = '{moment}'",
    )
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(0, "mirror")])
    assert "created_at" in scout(result)["faults"][0]["reason"]
    named = {finding["what"] for finding in result.json["findings"]}
    assert named == {
        f"catalog: trigger {table}.refuse_change_{level}"
        for table in ("agents", "signing_keys")
        for level in ("row", "statement")
    } | {"signing key of default"}


def test_c22_a_text_of_another_type_is_named(trail: Trail) -> None:
    trail.tamper(
        f"ALTER TABLE {TRAIL} ALTER COLUMN trace_data DROP EXPRESSION",
        f"ALTER TABLE {TRAIL} ALTER COLUMN signed_text TYPE bytea USING convert_to(signed_text, 'UTF8')",
        drop_checks=True,
    )
    result = trail.verify()
    assert result.code == 1
    assert {fault for _, fault in faults(result)} == {"format"}
    assert any("signed_text" in finding["what"] for finding in result.json["findings"])


MIRROR_INDEXES = ("trail_failed_tool_calls", "trail_actions")


@pytest.mark.parametrize("kind", ["json", "text"])
def test_a_mirror_of_another_type_is_named(trail: Trail, kind: str) -> None:
    execute(
        trail,
        f"ALTER TABLE {TRAIL} ALTER COLUMN trace_data DROP EXPRESSION;"
        f"ALTER TABLE {TRAIL} ADD COLUMN other {kind}",
    )
    trail.tamper(
        f"UPDATE {TRAIL} SET other = trace_data::text::{kind}",
        f"DROP INDEX {', '.join(f'trails.{name}' for name in MIRROR_INDEXES)}",
        f"DROP TRIGGER keep_waiting ON {TRAIL}",  # it looks at the mirror
        f"ALTER TABLE {TRAIL} DROP COLUMN trace_data",
        f"ALTER TABLE {TRAIL} RENAME COLUMN other TO trace_data",
        drop_checks=True,
    )
    result = trail.verify()
    assert result.code == 1
    assert {fault for _, fault in faults(result)} == {"mirror"}


def test_c22_one_text_that_is_no_json_hides_no_other_row(trail: Trail) -> None:
    changed = "'no JSON'"
    trail.tamper(
        f"ALTER TABLE {TRAIL} ALTER COLUMN trace_data DROP EXPRESSION",
        f"UPDATE {TRAIL} SET signed_text = {changed}, hash = {REHASH.format(changed)}"
        f" WHERE {SCOUT} AND seq = 5",
        f"UPDATE {TRAIL} SET trace_data = trace_data - 'cost' WHERE {SCOUT} AND seq = 2",
        drop_checks=True,
    )
    assert faults(trail.verify()) == [(2, "mirror"), (None, "format")]


def test_c22_a_schema_that_is_said_to_be_newer_hides_no_tampered_row(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 5")
    execute(trail, "UPDATE trails.alembic_version SET version_num = '9999'")
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(5, "order")])
    assert "schema ahead" in result.json["findings"][0]["reason"]


def test_c22_keys_that_are_gone_hide_no_tampered_row(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 5")
    execute(trail, "DROP TABLE trails.signing_keys")
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(5, "order")])
    assert ("signing keys", "could not check") in findings(result)


def findings(result: Result) -> list[tuple[str, str]]:
    return [(finding["what"], finding["verdict"]) for finding in result.json["findings"]]


def test_c22_a_master_key_that_cannot_be_used_hides_no_tampered_row(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 5")
    key_file = trail.folder / "data" / "keys" / "master.key"
    key_file.parent.mkdir(parents=True)
    key_file.write_text("not a key")
    key_file.chmod(0o600)
    result = trail.verify(env=trail.with_url(trail.database.admin_url, master_key=None))
    assert (result.code, faults(result)) == (1, [(5, "order")])
    assert ("master key", "could not check") in findings(result)


def test_c22_heads_that_cannot_be_read_hide_no_tampered_row(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 5")
    assert trail.verify("--heads", trail.folder / "gone").code == 1
    heads = trail.folder / "heads.txt"
    heads.write_text(f"9:{'ab' * 32} scout\n9:{'cd' * 32} scout\n")
    result = trail.verify("--heads", heads)
    assert (result.code, (5, "order") in faults(result)) == (1, True)
    assert "different hashes" in scout(result)["note"]


def test_c18_a_table_that_is_gone_was_not_merely_never_made(trail: Trail) -> None:
    execute(trail, f"ALTER TABLE {TRAIL} RENAME TO elsewhere")
    result = trail.verify()
    assert result.code == 1
    assert ("catalog: relation agent_audit_trails", "tampered") in findings(result)


def test_c22_a_chain_read_halfway_keeps_its_faults(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks behind a tampered row: that row is named all the same."""
    trail.tamper(f"DELETE FROM {TRAIL} WHERE agent_id = 'other' AND seq = 1")
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 1")
    read = audit_rows.fetch

    async def breaking(connection: Connection, statement: str, spots: Sequence[Spot]) -> Fetched:
        found = await read(connection, statement, spots)
        if any((spot.seq or 0) >= 3 for spot in spots):
            connection.terminate()
        return found

    monkeypatch.setattr(audit_rows, "fetch", breaking)
    monkeypatch.setattr(audit_rows, "CHUNK_ROWS", 1)
    result = trail.verify(compare=False)
    assert (result.code, faults(result)) == (1, [(1, "order")])
    assert findings(result) == [("database", "could not check")]
    notes = [chain["note"] for chain in result.json["chains"] if chain["agent_id"] != "_administration"]
    assert notes == ["not read to its end"]


def test_c18_a_guarded_agents_chain_that_ends_before_its_policy_is_an_error(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq > 0")
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(1, "mirror")])


@pytest.mark.parametrize("records", [1, 3])
def test_an_observed_agent_that_the_registry_calls_guarded_is_an_error(trail: Trail, records: int) -> None:
    asyncio.run(observe(trail.database.app_url, records - 1))
    assert trail.verify().code == 0
    trail.tamper("UPDATE trails.agents SET guarded = true WHERE agent_id = 'watched'")
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(1, "mirror")])


async def observe(url: str, events: int) -> None:
    """Makes the observed agent ``watched`` with some events."""
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        watched = Caller(ledger, "watched")
        await watched.observe()
        await append(pool, ledger, watched, [Draft("event", {"type": "t"}, "watched")] * events)
        await ledger.close()


async def append(pool: Pool, ledger: Ledger, caller: Caller, drafts: list[Draft]) -> None:
    """Appends records by hand, signed with the tenant's key."""
    chain = await ledger._chain(caller.may(Permission.READ_STATUS))
    await ledger._actor.refresh(chain)
    key = (await ledger._keystore.of(caller.tenant)).newest
    records = seal_all(drafts, chain.head, 0, key)
    await db.ledger.append(pool, [row_of(chain.id, record, key.public.key_id) for record in records])


@pytest.mark.parametrize("arguments", [[], ["--tenant", "default"], ["--agent", "scout"]])
def test_c18_a_tenant_without_its_row_is_an_error(trail: Trail, arguments: list[str]) -> None:
    execute(
        trail,
        "ALTER TABLE trails.tenants DISABLE TRIGGER ALL; DELETE FROM trails.tenants;"
        "ALTER TABLE trails.tenants ENABLE ALWAYS TRIGGER refuse_change_row;"
        "ALTER TABLE trails.tenants ENABLE ALWAYS TRIGGER refuse_change_statement",
    )
    result = trail.verify(*arguments)
    assert result.code == 1
    assert "no row in the table of tenants" in result.out
    assert not [what for what, _ in findings(result) if what.startswith("catalog")]


@pytest.mark.parametrize(
    ("keep", "ends_in_an_act"), [(2, True), (3, False), (4, False), (7, True), (8, False), (9, True)]
)
def test_c18_a_chain_that_was_cut_in_the_middle_of_an_act_is_incomplete(
    trail: Trail, keep: int, *, ends_in_an_act: bool
) -> None:
    """Records 2 and 3, 9 and 10 are an ask and its decision, 7 and 8 a failure and its scar (of 0 to 14)."""
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq > {keep}")
    result = trail.verify()
    kinds = trail.fetch(f"SELECT kind FROM {TRAIL} WHERE {SCOUT} ORDER BY seq")
    assert (result.code, faults(result)) == (3 if ends_in_an_act else 0, []), kinds
    if ends_in_an_act:
        assert "in the middle of an act" in scout(result)["note"]


def test_c18_a_stamped_act_ends_with_as_many_records_as_it_says(trail: Trail) -> None:
    """Creating ``scout`` with an idempotency key was one act of two records."""
    trail.tamper(
        f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq > 0",
        f"UPDATE trails.agents SET guarded = false WHERE {SCOUT}",
    )
    assert trail.verify("--agent", "scout").code == 3
    assert "is not the one on record" in trail.verify().json["findings"][0]["reason"]


def test_p20_a_key_that_two_records_of_a_chain_carry_is_named(trail: Trail) -> None:
    execute(trail, "DROP INDEX trails.trail_idempotency_key")
    asyncio.run(append_again(trail.database.app_url))
    execute(
        trail,
        f"CREATE INDEX trail_idempotency_key ON {TRAIL} (tenant_id, log_uuid, idempotency_key)"
        " WHERE idempotency_key IS NOT NULL",
    )
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [])
    index, repeated = result.json["findings"]
    assert index["what"] == "catalog: index agent_audit_trails.trail_idempotency_key"
    assert repeated["what"] == "chain default/scout"
    assert "in 2 records, the first at seq 15, the last at seq 16" in repeated["reason"]
    assert trail.verify("--agent", "other").json["findings"] == [index]


async def append_again(url: str) -> None:
    """Appends two records under one idempotency key."""
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        stamp: JsonObject = {"key": "ab" * 32, "request": "cd" * 32, "records": 1}
        draft = Draft("event", {"type": "t", "idempotency": stamp}, "scout")
        await append(pool, ledger, Caller(ledger, "scout"), [draft, draft])
        await ledger.close()


def test_entries_of_the_index_of_spans_that_no_record_bears_out_are_named(trail: Trail) -> None:
    asyncio.run(post_spans(trail.database.app_url))
    assert trail.verify().code == 0
    entry = (
        "INSERT INTO trails.spans SELECT tenant_id, trace_id, '\\x{span:016x}', log_uuid, {seq}"
        " FROM trails.spans WHERE span_id = '\\x{of:016x}'"
    )
    execute(trail, entry.format(span=7, seq="seq", of=1))  # a trace without this span
    execute(trail, entry.format(span=8, seq="seq + 1", of=2))  # an event
    execute(trail, entry.format(span=9, seq=999, of=3))  # nothing
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [])
    said = sorted((finding["what"], finding["reason"]) for finding in result.json["findings"])
    assert [what for what, _ in said] == ["chain default/other", "chain default/scout", "chain default/scout"]
    assert "names record 999 of chain" in said[0][1]
    assert "is not there" in said[0][1]
    assert "names record 15 of chain" in said[1][1]
    assert "does not hold all of them" in said[1][1]
    assert "names record 16 of chain" in said[2][1]
    assert len(trail.verify("--agent", "scout").json["findings"]) == 2


async def post_spans(url: str) -> None:
    """Spans 1 and 2 and an event in the chain of ``scout``, span 3 in that of ``other``."""
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        await Caller(ledger, "scout").post(spans(1, 2), posted({"type": "t"}))
        await Caller(ledger, "other").post(spans(3))
        await ledger.close()


def test_t11_memory_is_bounded_by_the_text_and_not_by_how_jsonb_spells_it(trail: Trail) -> None:
    """Each of these bodies is 0.2 MB of text, and 9 MB as the text of its mirror."""
    bodies = 6
    asyncio.run(ask_for_huge_numbers(trail.database.app_url, bodies))
    assert trail.verify().code == 0
    for jobs, work in ((1, nullcontext()), (2, shared_work(500))):
        tracemalloc.start()
        try:
            with work:
                assert trail.trails("verify", "--quiet", "--jobs", jobs).code == 0
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


async def ask_for_huge_numbers(url: str, times: int) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        scout = Caller(ledger, "scout")
        for number in range(times):
            await scout.ask("search", {"n": number, "huge": [1e308] * 30_000})
        await ledger.close()


def test_t11_rows_come_in_pieces_of_bounded_size(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = trail.trails("export", "scout", "--out", "-").out
    sizes = trail.fetch(f"SELECT max(octet_length(signed_text)) FROM {TRAIL}")[0][0]
    read, largest = audit_rows.fetch, 0

    async def counting(connection: Connection, statement: str, spots: Sequence[Spot]) -> Fetched:
        nonlocal largest
        largest = max(largest, len(spots))
        return await read(connection, statement, spots)

    for limit, rows in ((1, 1), (3 * sizes, 15)):
        monkeypatch.setattr(audit_rows, "fetch", counting)
        monkeypatch.setattr(dump, "fetch", counting)
        with monkeypatch.context() as whole:
            whole.setattr(audit_rows, "CHUNK_BYTES", 2**30)
            expected = trail.verify().json  # anew: each export is one record more
        largest = 0
        monkeypatch.setattr(audit_rows, "CHUNK_BYTES", limit)
        assert trail.verify().json == expected
        assert trail.trails("export", "scout", "--out", "-").out == exported
        assert 1 <= largest <= rows


def test_t11_a_row_larger_than_any_record_is_a_fault_and_is_not_read(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 100_000
    monkeypatch.setattr(audit_rows, "MAX_ROW_BYTES", limit)
    assert trail.verify().code == 0
    trail.tamper(
        f"UPDATE {TRAIL} SET actor = repeat('x', {limit}) WHERE {SCOUT} AND seq = 2", drop_checks=True
    )
    result = trail.verify()
    assert (result.code, faults(result)) == (1, [(2, "format")])
    assert "more than any record has" in scout(result)["faults"][0]["reason"]


@pytest.mark.parametrize(
    "statement",
    [
        f"ALTER TABLE {TRAIL} DISABLE TRIGGER check_append",
        f"ALTER TABLE {TRAIL} ENABLE TRIGGER refuse_change_row",
        f"ALTER TABLE {TRAIL} DROP CONSTRAINT trail_mirror",
        f"ALTER TABLE {TRAIL} DISABLE ROW LEVEL SECURITY",
        f"CREATE POLICY everybody ON {TRAIL} USING (true)",
        f"CREATE RULE quietly AS ON DELETE TO {TRAIL} DO INSTEAD NOTHING",
        "DROP INDEX trails.trail_idempotency_key",
        "UPDATE pg_index SET indisready = false WHERE indexrelid = 'trails.trail_actions'::regclass",
        "CREATE OR REPLACE FUNCTION trails.check_append_v1() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
    ],
)
def test_a_catalog_that_is_not_as_the_migrations_made_it_is_tampering(trail: Trail, statement: str) -> None:
    execute(trail, statement)
    result = trail.verify()
    assert result.code == 1
    assert all(chain["verdict"] == "verified" for chain in result.json["chains"])
    assert result.json["findings"][0]["what"].startswith("catalog: ")


def execute(trail: Trail, statement: str) -> None:
    with psycopg.connect(trail.database.admin_url) as connection:
        connection.execute(statement.encode())


def test_c20_what_is_not_there_is_nothing_to_verify(trail: Trail) -> None:
    for arguments in (
        ["--agent", "scuot"],
        ["--tenant", "defualt"],
        ["--agent", "scout", "--tenant", "no-such"],
    ):
        result = trail.verify(*arguments)
        assert (result.code, result.json["checked"]) == (4, 0), arguments


def test_c20_an_empty_database_is_nothing_to_verify(database: Database, empty_database: Database) -> None:
    for url in (database.admin_url, empty_database.admin_url):
        result = run_trails("verify", "--json", env={"TRAILS_DATABASE_URL": url})
        assert (result.code, result.json["checked"]) == (4, 0)


def test_c21_a_database_that_is_away_could_not_be_checked(trail: Trail) -> None:
    away = "postgresql://trails_app:secret-word@127.0.0.1:1/trails"
    result = trail.verify(env=trail.with_url(away))
    assert (result.code, result.json["checked"]) == (5, 0)
    assert "secret-word" not in result.out


def test_c21_a_newer_schema_could_not_be_checked(trail: Trail) -> None:
    execute(trail, "UPDATE trails.alembic_version SET version_num = '9999'")
    result = trail.verify()
    assert result.code == 5
    assert "schema ahead" in result.json["findings"][0]["reason"]


def test_c22_one_broken_chain_decides_and_all_are_listed(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 5")
    result = trail.verify()
    assert [chain["verdict"] for chain in result.json["chains"]] == ["verified", "verified", "tampered"]
    assert result.code == 1
    assert trail.verify("--agent", "other").code == 0


def test_under_row_security_it_says_what_it_could_see(trail: Trail) -> None:
    result = trail.verify(env=trail.with_url(trail.database.app_url))
    assert (result.code, result.json["checked"]) == (0, records(trail))
    assert "only tenant default" in result.json["notes"][0]


def test_an_index_that_hides_rows_hides_nothing_from_it(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE {SCOUT} AND seq = 5")
    execute(trail, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'trails.trail_pkey'::regclass")
    assert (5, "order") in faults(trail.verify())


def test_an_export_verifies_and_leaves_no_half_file(trail: Trail) -> None:
    out, head_file = trail.folder / "scout.jsonl", trail.folder / "head"
    exported = trail.trails("export", "scout", "--out", out, "--head-file", head_file)
    assert exported.code == 0
    assert trail.head() in exported.err
    assert head_file.read_text() == trail.head() + "\n"
    key = scout(trail.verify())["public_key"]
    assert trail.verify(out, "--public-key", key, "--checkpoint", trail.head()).code == 0
    assert trail.trails("export", "nobody", "--out", trail.folder / "nobody.jsonl").code == 1
    assert sorted(path.name for path in trail.folder.iterdir()) == ["head", "scout.jsonl"]


def test_an_export_replaces_no_file_unless_told(trail: Trail) -> None:
    out = trail.folder / "scout.jsonl"
    out.write_text("an older export")
    refused = trail.trails("export", "scout", "--out", out)
    assert refused.code == 1
    assert "--force" in refused.err
    assert out.read_text() == "an older export"
    assert trail.trails("export", "scout", "--out", out, "--force").code == 0
    assert out.read_text().count("\n") == 15


def test_an_export_into_a_folder_that_is_not_there_says_so(trail: Trail) -> None:
    for option in ("--out", "--head-file"):
        refused = trail.trails("export", "scout", option, trail.folder / "gone" / "file")
        assert refused.code == 1
        assert f"the folder {trail.folder / 'gone'} is not there" in refused.err
    assert not (trail.folder / "gone").exists()


def test_an_export_to_standard_output_is_the_same_bytes(trail: Trail) -> None:
    out = trail.folder / "scout.jsonl"
    trail.trails("export", "scout", "--out", out)
    assert trail.trails("export", "scout", "--out", "-").out == out.read_text("utf-8")


def test_the_records_of_an_agent_are_shown(trail: Trail) -> None:
    shown = trail.trails("show", "scout", "--limit", "3")
    assert shown.code == 0
    assert "action_requested" in shown.out
    assert (
        len(trail.trails("show", "scout", "--json").out.splitlines()) == int(trail.head().split(":")[0]) + 1
    )


def test_verifying_makes_no_file(trail: Trail) -> None:
    trail.verify()
    assert not list(trail.folder.iterdir())


@pytest.mark.parametrize("stored", [True, False])
def test_a_rotated_key_is_followed_if_it_is_the_tenants(trail: Trail, *, stored: bool) -> None:
    asyncio.run(rotate(trail.database.app_url, stored=stored))
    result = trail.verify()
    if stored:
        assert result.code == 0, result
        first_key = scout(result)["genesis_key"]
        keyless = trail.with_url(trail.database.admin_url, master_key=None)
        assert trail.verify("--public-key", first_key, env=keyless).code == 0
    else:
        assert (result.code, faults(result)) == (1, [(15, "signature")])


async def rotate(url: str, *, stored: bool) -> None:
    """Rotates scout's key by hand and appends one record under the new one."""
    new = SigningKey.from_raw(hashlib.sha256(b"second").digest())
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        scout = Caller(ledger, "scout")
        chain = await ledger._chain(scout.may(Permission.READ_STATUS))
        await ledger._actor.refresh(chain)
        old = (await ledger._keystore.of(scout.tenant)).newest
        rotation = seal(Draft("key_rotated", {"public_key": new.public.hex}, "operator"), chain.head, 0, old)
        event = seal(Draft("event", {}, "scout"), rotation.head, 0, new)
        # The table refuses a key that the registry does not hold; a planted one opens under no master key.
        made = NewSigningKey(new.public, hashlib.sha256(b"second").digest())
        row = seal_key(MASTER_KEY if stored else bytes(32), scout.tenant, made, datetime.now(UTC))
        await db.ledger.add_signing_key(pool, row)
        rows = [row_of(chain.id, rotation, old.public.key_id), row_of(chain.id, event, new.public.key_id)]
        await db.ledger.append(pool, rows)
        told = {"act": "signing_key_rotated", "from": old.public.hex, "to": new.public.hex}
        await ledger.administration.record(scout.tenant, "operator", {**told})
        await ledger.close()


def test_tenants_are_told_apart(trail: Trail) -> None:
    asyncio.run(add_tenant(trail.database.app_url))
    everything = trail.verify()
    names = [(chain["tenant"], chain["agent_id"]) for chain in everything.json["chains"]]
    assert (everything.code, names) == (
        0,
        [
            ("acme", "_administration"),
            ("acme", "scout"),
            ("default", "_administration"),
            ("default", "other"),
            ("default", "scout"),
        ],
    )
    assert len(trail.verify("--agent", "scout").json["chains"]) == 2
    one = trail.verify("--tenant", "acme").json["chains"]
    assert [(chain["tenant"], chain["checked"]) for chain in one] == [("acme", 2), ("acme", 2)]
    refused = trail.trails("export", "scout", "--out", trail.folder / "scout.jsonl")
    assert (refused.code, "--tenant" in refused.err) == (1, True)
    assert trail.trails("show", "scout", "--tenant", "acme").code == 0
    bound = trail.verify("--tenant", "acme", env=trail.with_url(trail.database.app_url))
    assert (bound.code, bound.json["checked"]) == (0, 4)


async def add_tenant(url: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        tenant = uuid4()
        await ledger.create_tenant(tenant, "acme", "Acme")
        await Caller(ledger, "scout", tenant).create()
        await ledger.close()
