"""Roles and hardening made by hand: carried out on a new server, on which the service then runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from sqlalchemy import make_url

from tests.support.cli import run_trails
from tests.support.cluster import Cluster, running_cluster
from tests.support.server import MASTER_KEY, ServerProcess
from tests.support.tools import DEPLOY, output_of

ADMIN_PASSWORD: Final = "administrators-password"  # noqa: S105  of a throw-away server
APP_PASSWORD: Final = "services-password"  # noqa: S105  of a throw-away server
VERIFIER_PASSWORD: Final = "verifiers-password"  # noqa: S105  of a throw-away server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that logs everything, with what ``roles.sql`` makes."""
    with running_cluster(bare=True, settings={"log_statement": "all"}) as made:
        maintenance = _url(made, "postgres")
        with psycopg.connect(maintenance, autocommit=True) as connection:
            connection.execute("DROP DATABASE trails")
        _psql(made, maintenance, "roles.sql")
        yield made


def _url(cluster: Cluster, database: str, user: str | None = None, password: str = "") -> str:
    url = make_url(cluster.admin_url).set(database=database)
    if user is not None:
        url = url.set(username=user, password=password)
    return url.render_as_string(hide_password=False)


def _psql(cluster: Cluster, url: str, file: str) -> str:
    passwords = {
        "TRAILS_ADMIN_PASSWORD": ADMIN_PASSWORD,
        "TRAILS_APP_PASSWORD": APP_PASSWORD,
        "TRAILS_VERIFIER_PASSWORD": VERIFIER_PASSWORD,
    }
    script = str(DEPLOY / "postgres" / file)
    return output_of(cluster.tool("psql"), url, "--no-psqlrc", "--file", script, env=passwords)


def _rows(url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def test_the_service_runs_on_what_they_make(cluster: Cluster, tmp_path: Path) -> None:
    admin_url = _url(cluster, "trails", "trails_admin", ADMIN_PASSWORD)
    app_url = _url(cluster, "trails", "trails_app", APP_PASSWORD)
    env = {
        "TRAILS_DATABASE_URL": admin_url,
        "TRAILS_MASTER_KEY": MASTER_KEY,
        "TRAILS_DATA_DIR": str(tmp_path),
    }
    migrated = run_trails("migrate", env=env)
    assert migrated.code == 0, migrated.err
    made = run_trails("sql-login", "create", "--name", "grafana", "--json", env=env)
    assert made.code == 0, made.err
    login = made.json["login"]
    unlimited = "SELECT rolconfig::text FROM pg_roles WHERE rolname = '{}'"
    [(before,)] = _rows(cluster.admin_url, unlimited.format(login))
    assert "log_statement" not in str(before)

    superuser = _url(cluster, "trails")
    for _ in range(2):  # it may be run again at any time
        _psql(cluster, superuser, "hardening.sql")
    [(after,)] = _rows(cluster.admin_url, unlimited.format(login))
    assert "log_statement=all" in str(after)
    assert "temp_file_limit=1GB" in str(after)

    with ServerProcess(app_url, tmp_path) as server, server.client() as client:
        created = client.post("/v1/agents", json={"agent_id": "a", "policy": None})
        assert created.status_code == 200, created.text
    again = run_trails("migrate", env=env)
    assert again.code == 0, again.err
    verified = run_trails("verify", env=env)
    assert verified.code == 0, verified.out + verified.err
    check_that_all_tenants_are_verified(cluster, env)
    for user, password in (("trails_app", APP_PASSWORD), (login, made.json["password"])):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(_url(cluster, "postgres", user, password))


def check_that_all_tenants_are_verified(cluster: Cluster, env: dict[str, str]) -> None:
    """By the verifier's login, which writes nothing; the administrator sees one tenant."""
    made = run_trails("tenant", "create", "acme", "--name", "Acme", "--operator", "Ada", env=env)
    assert made.code == 0, made.err
    bound = run_trails("verify", "--json", env=env).json
    assert "only tenant default was looked at; name another with --tenant" in str(bound["notes"])
    assert "acme" not in {chain["tenant"] for chain in bound["chains"]}
    with psycopg.connect(cluster.admin_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE trails_verifier LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA trails TO trails_verifier")  # as an earlier form did
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA trails TO trails_verifier")
    for _ in range(2):  # it may be run again
        _psql(cluster, _url(cluster, "trails"), "verifier.sql")
    url = _url(cluster, "trails", "trails_verifier", VERIFIER_PASSWORD)
    whole = run_trails("verify", "--json", env={**env, "TRAILS_DATABASE_URL": url})
    assert whole.code == 0, whole.out + whole.err
    assert {chain["tenant"] for chain in whole.json["chains"]} == {"acme", "default"}
    dump = output_of(cluster.tool("pg_dump"), url)
    assert f"\t{made.out.split()[1]}\t" in dump, "rows of every tenant"
    assert "trails_verifier" not in dump, "a server without this role takes it"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE trails.tenants SET slug = slug")
    assert VERIFIER_PASSWORD not in cluster.log


def test_neither_role_may_more_than_it_has_to(cluster: Cluster) -> None:
    rows = _rows(
        cluster.admin_url,
        "SELECT rolname, rolsuper, rolbypassrls, rolreplication, rolcreatedb, rolcreaterole FROM pg_roles"
        " WHERE rolname IN ('trails_admin', 'trails_app') ORDER BY 1",
    )
    assert rows == [
        ("trails_admin", False, False, False, False, True),
        ("trails_app", False, False, False, False, False),
    ]


def test_no_password_is_in_the_servers_log_nor_stored(cluster: Cluster) -> None:
    assert "CREATE DATABASE" in cluster.log, "it would be told"
    for password in (ADMIN_PASSWORD, APP_PASSWORD):
        assert password not in cluster.log
    stored = _rows(cluster.admin_url, "SELECT rolpassword FROM pg_authid WHERE rolname LIKE 'trails\\_a%'")
    assert all(str(value).startswith("SCRAM-SHA-256$") for (value,) in stored if value is not None)
