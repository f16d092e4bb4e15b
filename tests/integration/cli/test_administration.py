"""``trails tenant``, ``key`` and ``sql-login``: what is shown once, what is listed, what goes on record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from app.chain.verdict import Verdict
from db.migrate import with_login
from tests.support.cli import Result, run_trails, verify
from tests.support.postgres import APP_PASSWORD, Database

MASTER_KEY = "5a" * 32


@pytest.fixture
def service_env(database: Database) -> dict[str, str]:
    """As the service's role, which administers everything but SQL logins."""
    return {"TRAILS_DATABASE_URL": database.app_url, "TRAILS_MASTER_KEY": MASTER_KEY}


@pytest.fixture(params=["derived", "its own"])
def admin_env(database: Database, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """As the database's administrator; trails_app has the password of the master key, or its own."""
    from app.cli.prepare import app_password
    from app.settings import Secrets

    derived = app_password(Secrets("", bytes.fromhex(MASTER_KEY)))
    with psycopg.connect(database.admin_url, autocommit=True) as admin:
        if request.param == "derived":
            admin.execute(f"ALTER ROLE trails_app PASSWORD '{derived}'")
        yield {"TRAILS_DATABASE_URL": database.admin_url, "TRAILS_MASTER_KEY": MASTER_KEY}
        admin.execute(f"ALTER ROLE trails_app PASSWORD '{APP_PASSWORD}'")
        for (login,) in admin.execute("SELECT login FROM trails.sql_logins").fetchall():
            admin.execute(f'DROP ROLE IF EXISTS "{login}"')


def done(result: Result) -> Result:
    assert result.code == 0, result.err
    return result


def recorded(env: dict[str, str], tenant: str) -> list[str]:
    """The acts on the tenant's administration chain."""
    shown = done(run_trails("show", "_administration", "--tenant", tenant, "--json", env=env))
    lines = [json.loads(line) for line in shown.out.splitlines()]
    return [line["payload"]["act"] for line in lines[1:]]


def test_a_key_is_shown_once_listed_and_revoked(service_env: dict[str, str]) -> None:
    issued = done(
        run_trails("key", "issue", "--role", "writer", "--name", "ingest", "--json", env=service_env)
    ).json
    assert issued["token"].startswith("trk_")
    secret = issued["token"].split(".")[2]
    listed = done(run_trails("key", "list", env=service_env))
    assert issued["key"]["key_id"] in listed.out
    assert secret not in listed.out + listed.err
    gone = done(run_trails("key", "revoke", issued["key"]["key_id"], "--json", env=service_env)).json
    assert gone["keys"][0]["revoked_at"] is not None
    assert recorded(service_env, "default") == ["key_issued", "key_revoked"]
    again = run_trails("key", "revoke", "0" * 16, env=service_env)
    assert (again.code, "tenant default has no key" in again.err) == (1, True)


def test_keys_that_expire_and_keys_that_cannot_be(service_env: dict[str, str]) -> None:
    issue = ("key", "issue", "--role", "auditor", "--name")
    soon = done(run_trails(*issue, "soon", "--expires", "90d", "--json", env=service_env)).json
    assert soon["key"]["expires_at"] > soon["key"]["created_at"]
    for arguments, said in (
        (("late", "--expires", "2020-01-01"), "expires_at: must be in the future"),
        (("odd", "--expires", "whenever"), "must be a day"),
        (("soon",), "a key in use is called 'soon'"),
        (("agents", "--agent", "scout"), "agent_id: is required for role agent, and for no other"),
    ):
        refused = run_trails(*issue, *arguments, env=service_env)
        assert refused.code in {1, 2}
        assert said in refused.err


def test_a_tenant_is_made_with_its_operator_suspended_and_resumed(
    service_env: dict[str, str], database: Database
) -> None:
    made = done(
        run_trails("tenant", "create", "acme", "--name", "Acme", "--operator", "Ada", env=service_env)
    )
    assert "trk_" in made.out
    assert "not shown again" in made.err
    slugs = done(run_trails("tenant", "list", "--json", env=service_env)).json["tenants"]
    assert [row["slug"] for row in slugs] == ["acme", "default"]
    done(run_trails("tenant", "suspend", "acme", "--reason", "unpaid", env=service_env))
    standing = done(run_trails("tenant", "list", "--json", env=service_env)).json["tenants"]
    assert [(row["slug"], row["state"]) for row in standing] == [("acme", "suspended"), ("default", "active")]
    refused = run_trails(
        "key", "issue", "--tenant", "acme", "--role", "writer", "--name", "x", env=service_env
    )
    assert (refused.code, "suspended" in refused.err) == (1, True)
    done(run_trails("tenant", "resume", "acme", "--reason", "paid", env=service_env))
    done(run_trails("key", "issue", "--tenant", "acme", "--role", "writer", "--name", "x", env=service_env))
    assert recorded(service_env, "acme") == [
        "tenant_created", "key_issued", "tenant_suspended", "tenant_resumed", "key_issued",
    ]  # fmt: skip
    assert run_trails("tenant", "create", "acme", "--name", "A", "--operator", "B", env=service_env).code == 1
    assert "tenant not found" in run_trails("key", "list", "--tenant", "nobody", env=service_env).err
    verified = run_trails("verify", env={**service_env, "TRAILS_DATABASE_URL": database.admin_url})
    assert verified.code == 0, verified.out


def test_an_auditor_logs_in_with_what_was_printed(
    admin_env: dict[str, str], database: Database, tmp_path: Path
) -> None:
    del database
    done(run_trails("tenant", "create", "acme", "--name", "Acme", "--operator", "Ada", env=admin_env))
    made = done(
        run_trails("sql-login", "create", "--tenant", "acme", "--name", "audit", "--json", env=admin_env)
    ).json
    url = made["psql"].removeprefix("psql '").removesuffix("'")
    assert made["uri"] == url
    with psycopg.connect(url) as login:
        assert login.execute("SELECT agent_id FROM agents").fetchall() == [("_administration",)]
        acts = login.execute(
            "SELECT trace_data ->> 'act' FROM agent_audit_trails WHERE kind = 'admin' ORDER BY seq"
        ).fetchall()
    assert acts == [("tenant_created",), ("key_issued",), ("sql_login_created",)]
    export, auditor = tmp_path / "chain.jsonl", {"TRAILS_DATABASE_URL": url}
    done(run_trails("export", "_administration", "--out", export, env=auditor))
    assert verify(export).code == Verdict.SELF_DECLARED.exit_code
    assert "sql_login_created" in done(run_trails("show", "_administration", env=auditor)).out
    first = run_trails("show", "_administration", "--tenant", "acme", "--limit", "1", env=admin_env)
    assert first.err == "more records follow: trails show _administration --tenant acme --after 0\n"
    named = run_trails("show", "_administration", "--tenant", "default", env=auditor)
    assert (named.code, "sees its own tenant only" in named.err) == (1, True)
    whole = run_trails("verify", env=auditor)
    assert (whole.code, "export them and verify the file" in whole.out) == (Verdict.UNCHECKED.exit_code, True)
    listed = done(run_trails("sql-login", "list", "--tenant", "acme", env=admin_env))
    assert made["login"] in listed.out
    assert made["password"] not in listed.out
    assert "acme" not in made["login"]
    wrong = run_trails("sql-login", "drop", made["login"], env=admin_env)
    assert (wrong.code, "tenant default has no SQL login" in wrong.err) == (1, True)
    done(run_trails("sql-login", "drop", made["login"], "--tenant", "acme", env=admin_env))
    assert "dropped" in done(run_trails("sql-login", "list", "--tenant", "acme", env=admin_env)).out
    assert recorded(admin_env, "acme")[-1] == "sql_login_dropped"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_who_may_not_become_the_services_role_is_told_so(database: Database) -> None:
    with psycopg.connect(database.admin_url, autocommit=True) as admin:
        admin.execute("CREATE ROLE trails_test_boss LOGIN CREATEROLE PASSWORD 'x'")
        try:
            url = with_login(database.admin_url, "trails_test_boss", "x")
            env = {"TRAILS_DATABASE_URL": url, "TRAILS_MASTER_KEY": MASTER_KEY}
            refused = run_trails("key", "list", env=env)
            assert (refused.code, "may not do this (SQLSTATE 42501)" in refused.err) == (1, True)
            admin.execute("GRANT trails_app TO trails_test_boss")
            done(run_trails("key", "list", env=env))
        finally:
            admin.execute("DROP ROLE trails_test_boss")


def test_a_redaction_rule_that_is_there_can_be_added_again(service_env: dict[str, str]) -> None:
    wanted = ("redaction", "set", "--add", "card_numbers", "--path", "$..ssn", "--json")
    first = done(run_trails(*wanted, env=service_env)).json
    again = done(run_trails(*wanted, env=service_env)).json
    assert "card_numbers" in first["patterns"]
    assert (again["patterns"], again["paths"]) == (first["patterns"], ["$..ssn"])


def test_the_services_role_makes_no_sql_logins(service_env: dict[str, str]) -> None:
    refused = run_trails("sql-login", "create", "--name", "audit", env=service_env)
    assert refused.code == 1
    assert "may not make logins" in refused.err


def test_without_the_master_key_nothing_is_administered(database: Database, tmp_path: Path) -> None:
    env = {"TRAILS_DATABASE_URL": database.app_url, "TRAILS_DATA_DIR": str(tmp_path)}
    refused = run_trails("key", "list", env=env)
    assert (refused.code, "no master key" in refused.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("group", ["key", "tenant", "sql-login"])
def test_help_teaches_with_examples(group: str) -> None:
    shown = done(run_trails(group, "--help"))
    assert f"trails {group} " in shown.out
    assert "Examples:" in shown.out


def test_a_signing_key_is_kept_in_a_file_and_comes_back(service_env: dict[str, str], tmp_path: Path) -> None:
    secret = "3c" * 32
    path = tmp_path / "acme.key"
    path.write_text(secret)
    path.chmod(0o644)
    made = ("tenant", "create", "acme", "--name", "Acme", "--operator", "Ada", "--signer", f"file:{path}")
    refused = run_trails(*made, env=service_env)
    assert (refused.code, "chmod 600" in refused.err) == (1, True)
    path.chmod(0o600)
    done(run_trails(*made, env=service_env))
    rotate = ("key", "rotate-signing", "--tenant", "acme", "--json")
    again = run_trails(*rotate, "--signer", f"file:{path}", env=service_env)
    assert (again.code, "already" in again.err) == (1, True)
    back = done(run_trails(*rotate, env=service_env)).json
    assert (back["handed_over"], back["problems"]) == (1, {})
    path.write_text("3d" * 32)
    there = done(run_trails(*rotate, "--signer", f"file:{path}", env=service_env))
    path.unlink()
    assert there.json["handed_over"] == 1
    assert "3d3d" not in there.out + there.err
    away = run_trails("key", "issue", "--role", "writer", "--name", "x", "--tenant", "acme", env=service_env)
    assert (away.code, "cannot be used at the moment" in away.err) == (1, True)
    shown = done(run_trails("show", "_administration", "--tenant", "acme", "--json", env=service_env))
    assert shown.out.count('"act":"signing_key_rotated"') == 2
    assert verify("--tenant", "acme", env=service_env).code == 0
