"""Exports and verifications by the command line are on record where they can be (case T15)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from db import migrate, sql_logins
from db.sql_logins import SqlLogin
from tests.integration.cli.conftest import TRAIL, Trail
from tests.support.cli import Result, run_trails
from tests.support.postgres import APP_PASSWORD

ON_RECORD = "on record in the tenant's administration chain"


def acts(trail: Trail, act: str) -> list[dict[str, Any]]:
    """The acts of this kind that are on record, with their actor."""
    rows = trail.fetch(
        f"SELECT actor, trace_data FROM {TRAIL} WHERE agent_id = '_administration'"
        " AND trace_data ->> 'act' = %s ORDER BY tenant_id, seq",
        act,
    )
    return [payload | {"actor": actor} for actor, payload in rows]


def head_of(trail: Trail, agent: str) -> dict[str, Any]:
    seq, _, digest = trail.head(agent).partition(":")
    return {"seq": int(seq), "hash": digest}


def export(env: dict[str, str], agent: str = "scout") -> Result:
    return run_trails("export", agent, "--out", "-", env=env)


def verify_once(env: dict[str, str], *arguments: str) -> Result:
    return run_trails("verify", "--record", "--json", *arguments, env=env)


def log_uuid(trail: Trail, agent: str) -> str:
    return str(trail.fetch("SELECT log_uuid FROM trails.agents WHERE agent_id = %s", agent)[0][0])


def test_t15_an_export_by_who_has_the_services_means_is_on_record(trail: Trail) -> None:
    made = export(trail.with_url(trail.database.app_url))
    assert (made.code, made.err.splitlines()[-1]) == (0, f"this export is {ON_RECORD}")
    assert acts(trail, "exported") == [
        {
            "act": "exported",
            "actor": "root",
            "agent_id": "scout",
            "log_uuid": log_uuid(trail, "scout"),
            "length": len(made.out.splitlines()),
            "head": head_of(trail, "scout"),
        }
    ]
    assert trail.verify().code == 0


def test_t15_the_administration_is_exported_without_the_record_of_that(trail: Trail) -> None:
    env = trail.with_url(trail.database.app_url)
    lengths = [len(export(env, "_administration").out.splitlines()) for _ in range(2)]
    assert [act["length"] for act in acts(trail, "exported")] == lengths
    assert lengths[1] == lengths[0] + 1


def test_who_only_reads_exports_all_the_same_and_is_told_that_it_is_on_no_record(trail: Trail) -> None:
    reader = f"reader_{secrets.token_hex(4)}"
    with psycopg.connect(trail.database.admin_url, autocommit=True) as admin:
        try:
            admin.execute(f"CREATE ROLE {reader} LOGIN BYPASSRLS PASSWORD 'secret'".encode())
            admin.execute(f"GRANT CONNECT ON DATABASE {trail.database.name} TO {reader}".encode())
            admin.execute(f"GRANT USAGE ON SCHEMA trails TO {reader}".encode())
            admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA trails TO {reader}".encode())
            url = trail.database.app_url.replace(f"trails_app:{APP_PASSWORD}", f"{reader}:secret")
            without = export(trail.with_url(url, master_key=None))
            despite = export(trail.with_url(url))
        finally:
            admin.execute(f"DROP OWNED BY {reader}".encode())
            admin.execute(f"DROP ROLE {reader}".encode())
    assert without.code == despite.code == 0
    assert without.out == despite.out
    assert len(without.out.splitlines()) == 15
    assert "this export is not on record: no master key" in without.err
    assert "this export is not on record: " in despite.err
    assert acts(trail, "exported") == []


@pytest.fixture
def auditor(trail: Trail) -> Iterator[str]:
    """The URL of an auditor's login, as ``trails sql-login create`` makes it."""
    [[tenant_id]] = trail.fetch("SELECT tenant_id FROM trails.tenants")
    login = SqlLogin(sql_logins.new_login(), "audit", datetime.now(UTC))
    sql_logins.create(trail.database.admin_url, login, tenant_id, "secret")
    yield migrate.with_login(trail.database.admin_url, login.login, "secret")
    sql_logins.drop(trail.database.admin_url, login.login)


def test_an_auditors_login_exports_where_the_keys_are_and_is_told_why_it_is_on_no_record(
    trail: Trail, auditor: str
) -> None:
    env = trail.with_url(auditor)
    chain = export(env)
    assert (chain.code, len(chain.out.splitlines())) == (0, 15)
    whole = run_trails("export", "--bundle", trail.folder / "all.zip", env=env)
    assert whole.code == 0
    why = "this export is not on record: the login of TRAILS_DATABASE_URL is neither the service's role"
    assert why in chain.err
    assert why in whole.err
    refused = run_trails("key", "list", env=env)
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert acts(trail, "exported") == []


def test_t15_a_verification_is_on_record_when_it_is_asked_for(trail: Trail) -> None:
    env = trail.with_url(trail.database.app_url)
    plain = trail.verify(env=env)
    assert (plain.code, acts(trail, "verified")) == (0, [])
    whole = verify_once(env)
    assert whole.json["notes"][-1] == f"this verification of default is {ON_RECORD}"
    one = verify_once(env, "--agent", "other")
    assert (whole.code, one.code) == (0, 0)
    of_all = {"act": "verified", "actor": "root", "agent_id": None, "chains": 3, "intact": True}
    of_one = {
        "act": "verified", "actor": "root", "agent_id": "other", "chains": 1, "intact": True,
        "length": 4, "log_uuid": log_uuid(trail, "other"), "head": head_of(trail, "other"),
    }  # fmt: skip
    assert acts(trail, "verified") == [of_all | {"length": plain.json["checked"]}, of_one]
    assert trail.verify().code == 0


def test_a_verification_that_finds_something_is_on_record_as_such(trail: Trail) -> None:
    trail.tamper(f"DELETE FROM {TRAIL} WHERE agent_id = 'scout' AND seq = 5")
    assert verify_once(trail.with_url(trail.database.app_url)).code == 1
    assert [act["intact"] for act in acts(trail, "verified")] == [False]


def test_a_verdict_does_not_depend_on_its_being_on_record(trail: Trail) -> None:
    keyless = trail.with_url(trail.database.app_url, master_key=None)
    result = verify_once(keyless)
    assert (result.code, "not on record: " in result.json["notes"][-1]) == (6, True)
    assert acts(trail, "verified") == []


def test_an_administrators_verification_is_on_record_of_each_tenant(trail: Trail) -> None:
    """The service's role has a password here that the administrator does not know."""
    assert verify_once(trail.env).code == 0
    assert [act["intact"] for act in acts(trail, "verified")] == [True]


def test_a_file_is_not_put_on_record(trail: Trail) -> None:
    out = trail.folder / "scout.jsonl"
    assert trail.trails("export", "scout", "--out", out).code == 0
    refused = run_trails("verify", out, "--record", env=trail.env)
    assert (refused.code, "--record" in refused.err) == (2, True)
