"""A dump comes back as it was, by the commands of the guide: whole, or only its data (cases P23, P25)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import make_url

from app.errors import StartupError
from app.ledger import Ledger
from db import migrate
from db.checks import check_start
from db.pool import create_pool
from tests.support.backups import (
    Contents,
    append_one,
    block,
    contents,
    done,
    environment,
    fill,
    head,
    make_database,
    other_server,
    programs,
    query,
    service_url,
    shell,
)
from tests.support.cli import run_trails
from tests.support.ledgers import MASTER_KEY
from tests.support.postgres import APP_PASSWORD, Server, fresh_database

UNKNOWN_TO_THE_PLANNER = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'trails'::regnamespace AND relkind = 'r'"
    " AND pg_relation_size(oid) > 0 AND (reltuples < 0 OR pg_stat_get_last_analyze_time(oid) IS NULL"
    " AND pg_stat_get_last_autoanalyze_time(oid) IS NULL)"
)


class Dumped:
    """A database that was dumped: its dump's folder, and what it held then."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.contents: Contents = contents(url)
        self.head = head(url)


@pytest.fixture(scope="module")
def dumped(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dumped]:
    programs("pg_dump", "pg_restore")
    folder = tmp_path_factory.mktemp("backup")
    with fresh_database(postgres, None) as source:
        password = _password(source.admin_url)
        migrate.bootstrap(source.admin_url, app_password=password, reset_password=True)
        fill(source.admin_url, folder)
        # The role is the server's, which other tests share.
        migrate.bootstrap(source.admin_url, app_password=APP_PASSWORD, reset_password=True)
        # The records lie in the table, and so in the dump, in an order that says nothing.
        query(source.admin_url, "CREATE INDEX shuffled ON trails.agent_audit_trails (id)")
        query(source.admin_url, "CLUSTER trails.agent_audit_trails USING shuffled")
        query(source.admin_url, "DROP INDEX trails.shuffled")
        done(shell(block("backup"), folder, source.admin_url))
        yield Dumped(source.admin_url, folder)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Another server, on which nobody has heard of our roles."""
    with other_server(tmp_path_factory.mktemp("elsewhere")) as server:
        yield Server.at(server.url)


@pytest.fixture
def emptied(elsewhere: Server) -> Iterator[Server]:
    """The same, its databases and roles of ours gone afterwards."""
    yield elsewhere
    maintenance = elsewhere.url("postgres")
    for (name,) in query(maintenance, "SELECT datname FROM pg_database WHERE datname LIKE 'restored%'"):
        query(maintenance, f"DROP DATABASE {name} WITH (FORCE)")
    for (name,) in query(maintenance, "SELECT rolname FROM pg_roles WHERE rolname ~ '^(trails_|keeper|dba)'"):
        query(maintenance, f"DROP ROLE {name}")


def is_what_it_was(dumped: Dumped, url: str) -> None:
    """Rows, hashes and catalog are those of the dump, and the next record follows the last one."""
    found = contents(url)
    assert found.rows == dumped.contents.rows
    assert found.catalog == dumped.contents.catalog
    assert found.raw == dumped.contents.raw
    goes_on(dumped, url)


def goes_on(dumped: Dumped, url: str) -> None:
    seq, newest = dumped.head
    assert head(url) == dumped.head
    assert append_one(url) == (seq + 1, newest)
    assert query(url, UNKNOWN_TO_THE_PLANNER) == []
    verified = run_trails("verify", env=environment(url, dumped.folder))
    assert verified.code == 0, verified.out


def test_p23_a_dump_comes_back_beside_the_original(dumped: Dumped, postgres: Server) -> None:
    with fresh_database(postgres, None) as target:
        said = done(shell(block("restore"), dumped.folder, target.admin_url))
        assert "its password is unchanged" in said
        assert "verified: " in said
        migrate.bootstrap(target.admin_url, app_password=_password(target.admin_url), reset_password=True)
        try:
            is_what_it_was(dumped, target.admin_url)
        finally:  # the role is the server's, which other tests share
            migrate.bootstrap(target.admin_url, app_password=APP_PASSWORD, reset_password=True)


def test_p23_a_dump_comes_back_on_a_server_without_our_roles(dumped: Dumped, emptied: Server) -> None:
    url = make_database(emptied, "restored")
    refused = shell(f"pg_restore --exit-on-error --dbname='{url}' trails.dump", dumped.folder, url)
    assert 'role "trails_owner" does not exist' in refused.stderr, "what the roles are made for"
    url = make_database(emptied, "restored_again")
    done(shell(block("restore"), dumped.folder, url))
    is_what_it_was(dumped, url)


@pytest.mark.parametrize("power", ["SUPERUSER", "CREATEROLE"])
def test_p23_a_dump_comes_back_for_another_owner(dumped: Dumped, emptied: Server, power: str) -> None:
    query(emptied.url("postgres"), f"CREATE ROLE keeper LOGIN {power} PASSWORD 'keeps'")
    url = migrate.with_login(make_database(emptied, "restored", owner="keeper"), "keeper", "keeps")
    script = block("restore").replace("pg_restore ", "pg_restore --no-owner ")
    done(shell(script if power == "SUPERUSER" else script.replace("trails verify", ""), dumped.folder, url))
    is_what_it_was(dumped, emptied.url("restored"))


def test_the_roles_are_made_with_the_master_key_of_the_backup(emptied: Server, tmp_path: Path) -> None:
    url = make_database(emptied, "restored")
    refused = shell("trails migrate --roles", tmp_path, url, env={"TRAILS_MASTER_KEY": ""})
    assert refused.returncode == 1
    assert "bring that of the backup first" in refused.stderr
    assert list(tmp_path.iterdir()) == [], "no new key is made"
    assert query(url, "SELECT FROM pg_roles WHERE rolname = 'trails_app'") == []


def test_p25_data_alone_comes_back_under_the_triggers(dumped: Dumped, emptied: Server) -> None:
    url = make_database(emptied, "restored")
    done(shell(block("data-only"), dumped.folder, url))
    is_what_it_was(dumped, url)


def test_p25_data_alone_comes_back_without_the_triggers(dumped: Dumped, emptied: Server) -> None:
    url = make_database(emptied, "restored")
    script = block("data-only-disable-triggers")
    before, repair = script.split("trails migrate --enable-triggers")
    done(shell(before, dumped.folder, url))
    with pytest.raises(StartupError, match=r"session_replication_role.*trails migrate --enable-triggers"):
        asyncio.run(_start(service_url(url)))
    said = done(shell("trails migrate --enable-triggers" + repair, dumped.folder, url))
    assert "Fires always again: agent_audit_trails.check_append" in said
    asyncio.run(_start(service_url(url)))
    is_what_it_was(dumped, url)
    assert "Fires" not in done(shell("trails migrate --enable-triggers", dumped.folder, url))


@pytest.mark.parametrize("note", ["data-only", "data-only-disable-triggers"])
def test_p25_data_is_not_mixed_into_a_database_that_was_served(
    dumped: Dumped, emptied: Server, note: str
) -> None:
    url = make_database(emptied, "restored")
    migrate.bootstrap(url, app_password=_password(url))
    asyncio.run(_serve(service_url(url)))
    before = contents(url)
    refused = shell(block(note), dumped.folder, url)
    assert refused.returncode != 0
    assert 'duplicate key value violates unique constraint "tenants_pkey"' in refused.stderr
    after = contents(url)
    assert (after.rows, after.catalog) == (before.rows, before.catalog)


def test_p25_records_do_not_come_before_their_registry(dumped: Dumped, emptied: Server) -> None:
    """Why the guide gives an order: that of a dump is the alphabet's."""
    url = make_database(emptied, "restored")
    script = (
        'trails migrate\npg_restore --exit-on-error --data-only --dbname="$TRAILS_DATABASE_URL" trails.dump'
    )
    refused = shell(script.replace("\\\n", "\n"), dumped.folder, url)
    assert "which its tenant's registry does not hold" in refused.stderr
    assert query(url, "SELECT count(*) FROM trails.agent_audit_trails") == [(0,)]


async def _start(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await check_start(connection)
    finally:
        await connection.close()


async def _serve(url: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        await (await Ledger.open(pool, master_key=MASTER_KEY)).close()


def _password(url: str) -> str:
    return str(make_url(service_url(url)).password)
