"""``trails serve``, ``run``, ``migrate``: what they refuse, how they start and stop (cases P07, P38)."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest
from sqlalchemy import make_url

from app.cli.prepare import app_password
from app.cli.supervisor import MOST_STARTS
from app.embedded import EmbeddedPostgres, postmaster
from app.opening import look
from app.settings import Secrets
from db import migrate
from tests.support.cli import run_trails
from tests.support.postgres import APP_PASSWORD, Database, Server
from tests.support.server import MASTER_KEY, ROOT, ServerProcess, StartServer, service_environment


def refusal(database_url: str, folder: Path, **env: str) -> str:
    """What ``trails serve`` says when it refuses to start."""
    server = ServerProcess(database_url, folder, env=env).start(ready=False)
    assert server.wait() == 1, server.log
    assert "Traceback" not in server.log
    return server.log


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_p07_a_superuser_is_refused(database: Database, tmp_path: Path) -> None:
    log = refusal(database.admin_url, tmp_path)
    assert "trails: role postgres is a superuser (and " in log
    assert len(log.splitlines()[-1]) < 250


@pytest.mark.parametrize("power", ["BYPASSRLS", "CREATEROLE", "IN ROLE trails_owner"])
def test_p07_a_role_that_could_see_or_change_too_much_is_refused(
    database: Database, tmp_path: Path, power: str
) -> None:
    execute(database.admin_url, f"CREATE ROLE risky LOGIN {power} PASSWORD 'risky-password'")
    try:
        url = migrate.with_login(database.admin_url, "risky", "risky-password")
        execute(database.admin_url, "GRANT trails_app TO risky")
        assert "must not connect as this role" in refusal(url, tmp_path)
    finally:
        execute(database.admin_url, "DROP ROLE risky")


def test_a_schema_that_is_behind_is_refused(
    empty_database: Database, template: object, tmp_path: Path
) -> None:
    del template  # it makes the roles of the cluster
    url = migrate.app_url(empty_database.admin_url, APP_PASSWORD)
    assert "schema behind" in refusal(url, tmp_path)


def test_p38_a_schema_that_is_ahead_is_refused(database: Database, tmp_path: Path) -> None:
    execute(database.admin_url, "UPDATE trails.alembic_version SET version_num = '9999'")
    assert "schema ahead" in refusal(database.app_url, tmp_path)


def test_a_trigger_that_is_off_is_refused(database: Database, tmp_path: Path) -> None:
    execute(database.admin_url, "ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER check_append")
    said = "trigger agent_audit_trails.check_append is switched off"
    assert said in refusal(database.app_url, tmp_path)


def test_a_database_that_is_away_is_said_without_its_password(tmp_path: Path) -> None:
    log = refusal("postgresql://trails_app:secret-word@127.0.0.1:1/trails", tmp_path)
    assert "the database cannot be reached" in log
    assert "secret-word" not in log


@pytest.mark.parametrize("trouble", ["password", "database"])
def test_every_command_says_the_same_of_a_login_that_fails(
    database: Database, tmp_path: Path, trouble: str
) -> None:
    url = migrate.with_login(database.admin_url, "trails_app", "wrong-word")
    expected = "(SQLSTATE 28P01): password authentication failed"
    if trouble == "database":
        url = database.app_url.rpartition("/")[0] + "/not_there"
        expected = '(SQLSTATE 3D000): database "not_there" does not exist'
    env = {"TRAILS_DATABASE_URL": url, "TRAILS_DATA_DIR": str(tmp_path), "TRAILS_BIND": "127.0.0.1:0"}
    for command in (["serve"], ["run"], ["migrate"], ["verify"], ["export", "scout"], ["show", "scout"]):
        result = run_trails(*command, env=env)
        assert result.code == (5 if command == ["verify"] else 1)
        assert expected in result.out + result.err, command
        assert "wrong-word" not in result.out + result.err


def test_a_port_that_is_taken_is_said(database: Database, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "cannot listen on" in refusal(database.app_url, tmp_path, TRAILS_BIND=bind)


def test_another_master_key_is_refused(start_server: StartServer, database: Database, tmp_path: Path) -> None:
    start_server().stop()
    log = refusal(database.app_url, tmp_path, TRAILS_MASTER_KEY="00" * 32)
    assert "the master key of TRAILS_MASTER_KEY: the database was set up with another master key" in log
    log = refusal(database.app_url, tmp_path, TRAILS_MASTER_KEY="")
    assert f"the master key of {tmp_path / 'data/keys/master.key'}:" in log


def test_it_serves_stops_cleanly_and_starts_again_on_the_same_records(server: ServerProcess) -> None:
    with server.client() as http:
        http.post("/v1/agents", json={"agent_id": "kept", "policy": None}).raise_for_status()
    assert server.stop() == 0
    assert server.log.count("Application shutdown complete") == 1
    server.start()
    with server.client() as http:
        assert http.get("/v1/agents/kept").json()["head"]["seq"] == 0
        assert "server" not in http.get("/healthz").headers
    server.kill()
    server.start()
    with server.client() as http:
        assert http.get("/v1/agents/kept/verify").json()["ok"] is True


def test_several_worker_processes_share_one_port(start_server: StartServer) -> None:
    server = start_server(arguments=("--workers", "2"))
    with server.client() as http:
        http.post("/v1/agents", json={"agent_id": "shared", "policy": None}).raise_for_status()
    deadline = time.monotonic() + 60
    while server.log.count("Application startup complete") < 2:
        assert time.monotonic() < deadline, server.log
        time.sleep(0.05)
    assert server.stop() == 0


@contextmanager
def logins_refused(database: Database) -> Iterator[None]:
    """The database takes no new connection; those that are open stay so."""
    name = make_url(database.admin_url).database
    maintenance = make_url(database.admin_url).set(database="postgres").render_as_string(hide_password=False)
    try:
        execute(maintenance, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        yield
    finally:
        execute(maintenance, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def workers(server: ServerProcess) -> list[int]:
    """The pids of all server processes so far, in the order in which they began."""
    return [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", server.log)]


def until_said(server: ServerProcess, text: str, times: int = 1) -> None:
    deadline = time.monotonic() + 60
    while server.log.count(text) < times:
        assert time.monotonic() < deadline, server.log
        time.sleep(0.05)


def test_workers_none_of_which_comes_to_serve_are_given_up(
    start_server: StartServer, database: Database
) -> None:
    server = start_server(arguments=("--workers", "2"))
    until_said(server, "Application startup complete", 2)
    with logins_refused(database):
        for pid in workers(server):
            os.kill(pid, signal.SIGKILL)
        assert server.wait() == 1
    last = server.log.splitlines()[-1]
    assert last.startswith(f"trails: no server process comes to serve: {MOST_STARTS} in a row ended")
    assert 2 * (MOST_STARTS - 1) <= server.log.count("ended before it served") <= 2 * MOST_STARTS
    assert "is not currently accepting connections" in server.log


def test_a_worker_that_cannot_start_is_tried_again_while_another_serves(
    start_server: StartServer, database: Database
) -> None:
    server = start_server(arguments=("--workers", "2"), env={"TRAILS_LOG_FORMAT": "json"})
    until_said(server, "Application startup complete", 2)
    with logins_refused(database):
        os.kill(workers(server)[0], signal.SIGKILL)
        until_said(server, '"others_serving": 1')
        with server.client() as http:
            assert http.get("/healthz").status_code == 200
    until_said(server, "Application startup complete", 3)
    assert server.stop() == 0


def send_without_end(connection: socket.socket) -> None:
    for _ in range(10_000):
        connection.sendall(b"a" * 65_536)


def test_a_head_without_end_is_cut_off(server: ServerProcess) -> None:
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ")
        with pytest.raises(ConnectionError):
            send_without_end(connection)
    assert httpx2.get(f"{server.base_url}/healthz").status_code == 200


# --- run ------------------------------------------------------------------------------------------------


class Run:
    """A ``trails run`` process."""

    def __init__(self, folder: Path, name: str, database_url: str = "", **env: str) -> None:
        self.log_file = folder / f"{name}.log"
        environment = {
            **service_environment(database_url),
            "TRAILS_DATA_DIR": str(folder / "data"),
            "TRAILS_BIND": "127.0.0.1:0",
            **env,
        }
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "run"], cwd=ROOT, stdout=log, stderr=log, env=environment
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8")

    def base_url(self) -> str:
        """Waits until it serves."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self.process.poll() is None:
            found = [line for line in self.log.splitlines() if line.startswith("Lineage Trails is at ")]
            if found and (url := found[0].rpartition(" ")[2]) and _ready(url):
                return url
            time.sleep(0.05)
        raise AssertionError(self.log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def _ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture
def derived_password(database: Database) -> Iterator[None]:
    """trails_app has the password of the master key, as in a cluster that ``trails run`` prepared."""
    derived = app_password(Secrets("", bytes.fromhex(MASTER_KEY)))
    for password in (derived, APP_PASSWORD):
        verifier = migrate.scram_verifier(password)
        execute(database.admin_url, f"ALTER ROLE trails_app PASSWORD '{verifier}'")
        if password == derived:
            yield


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[str]:
    """The administrator's URL of a cluster that never saw this program."""
    settings = {"fsync": "off", "trails.disposable": "on"}
    cluster = EmbeddedPostgres(tmp_path / "cluster", settings=settings)
    with cluster:
        yield cluster.url
    shutil.rmtree(cluster.home, ignore_errors=True)


def test_p38_replicas_that_start_together_on_a_new_cluster_all_serve(
    new_cluster: str, tmp_path: Path
) -> None:
    runs = [Run(tmp_path, f"replica-{number}", new_cluster) for number in range(3)]
    try:
        urls = [run.base_url() for run in runs]
        headers = {"Authorization": f"Bearer {ServerProcess.operator_token}"}
        httpx2.post(f"{urls[0]}/v1/agents", headers=headers, json={"agent_id": "one", "policy": None})
        heads = [httpx2.get(f"{url}/v1/agents/one", headers=headers).json()["head"] for url in urls]
        assert heads[0] == heads[1] == heads[2]
    finally:
        codes = [run.stop() for run in runs]
    assert codes == [0, 0, 0], [run.log for run in runs]
    env = {"TRAILS_DATABASE_URL": new_cluster, "TRAILS_MASTER_KEY": MASTER_KEY}
    assert run_trails("verify", "--quiet", env=env).code == 0


@pytest.mark.usefixtures("derived_password")
def test_a_second_database_of_a_prepared_cluster_is_made_ready(
    database: Database, empty_database: Database, tmp_path: Path
) -> None:
    before = _stored_password(database)
    run = Run(tmp_path, "second-database", empty_database.admin_url)
    run.base_url()
    assert run.stop() == 0
    assert _stored_password(database) == before


@pytest.mark.parametrize("prepared", [True, False])
def test_run_leaves_a_login_alone_that_has_a_password_of_its_own(
    database: Database, empty_database: Database, tmp_path: Path, prepared: bool
) -> None:
    before = _stored_password(database)
    run = Run(tmp_path, "run", (database if prepared else empty_database).admin_url)
    assert run.process.wait(60) == 1
    assert "trails_app has a password of its own" in run.log
    assert "Traceback" not in run.log
    assert _stored_password(database) == before
    if not prepared:
        assert not asyncio.run(look(empty_database.admin_url)).prepared


@pytest.mark.usefixtures("derived_password")
def test_run_with_another_master_key_changes_nothing(
    start_server: StartServer, database: Database, tmp_path: Path
) -> None:
    start_server(database_url=_derived_url(database)).stop()
    before = _stored_password(database)
    run = Run(tmp_path, "run", database.admin_url, TRAILS_MASTER_KEY="00" * 32)
    assert run.process.wait(60) == 1
    assert "the master key of TRAILS_MASTER_KEY" in run.log
    assert _stored_password(database) == before


def _derived_url(database: Database) -> str:
    return migrate.app_url(database.admin_url, app_password(Secrets("", bytes.fromhex(MASTER_KEY))))


@pytest.mark.usefixtures("derived_password")
def test_run_serves_as_the_restricted_role(database: Database, tmp_path: Path) -> None:
    first = Run(tmp_path, "first", database.admin_url)
    first.base_url()
    assert first.stop(signal.SIGINT) == 0
    stored = _stored_password(database)
    second = Run(tmp_path, "second", database.admin_url)
    second.base_url()
    with psycopg.connect(database.admin_url) as connection:
        users = connection.execute(
            "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name = 'trails'"
            " AND datname = current_database()"
        ).fetchall()
    assert second.stop() == 0
    assert users == [("trails_app",)]
    assert _stored_password(database) == stored


def _stored_password(database: Database) -> str:
    with psycopg.connect(database.admin_url) as connection:
        row = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'trails_app'").fetchone()
    assert row is not None
    return str(row[0])


def test_run_uses_a_restricted_url_as_it_is(database: Database, tmp_path: Path) -> None:
    run = Run(tmp_path, "restricted", database.app_url)
    run.base_url()
    assert run.stop() == 0


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data folder; the cluster that root's embedded server keeps outside it is removed with it."""
    yield tmp_path / "data"
    shutil.rmtree(EmbeddedPostgres(tmp_path / "data").home, ignore_errors=True)


def test_a_first_start_needs_nothing_and_the_second_finds_everything(tmp_path: Path, data_dir: Path) -> None:
    secrets = {"TRAILS_MASTER_KEY": "", "TRAILS_OPERATOR_TOKEN": ""}
    first = Run(tmp_path, "first", **secrets)
    try:
        url = first.base_url()
        token_file = data_dir / "keys/operator.token"
        assert str(token_file) in first.log
        token = token_file.read_text().strip()
        assert token not in first.log
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        headers = {"Authorization": f"Bearer {token}"}
        httpx2.post(
            f"{url}/v1/agents", headers=headers, json={"agent_id": "kept", "policy": None}
        ).raise_for_status()
        env = {"TRAILS_DATA_DIR": str(data_dir)}
        verified = run_trails("verify", env=env)
        assert (verified.code, "default/kept" in verified.out) == (0, True)
    finally:
        assert first.stop(signal.SIGINT) == 0
    assert run_trails("verify", env=env).code == 5  # the embedded server stopped with it
    second = Run(tmp_path, "second", **secrets)
    try:
        assert httpx2.get(f"{second.base_url()}/v1/agents/kept", headers=headers).status_code == 200
    finally:
        assert second.stop() == 0


def test_an_embedded_server_that_is_killed_comes_back_under_the_running_service(
    tmp_path: Path, data_dir: Path
) -> None:
    run = Run(tmp_path, "run")
    headers = {"Authorization": f"Bearer {ServerProcess.operator_token}"}
    try:
        url = run.base_url()
        body = {"agent_id": "kept", "policy": None}
        httpx2.post(f"{url}/v1/agents", headers=headers, json=body).raise_for_status()
        pid = postmaster(EmbeddedPostgres(data_dir).cluster)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while "had died; it was started again" not in run.log or not _ready(url):
            assert time.monotonic() < deadline, run.log
            time.sleep(0.05)
        assert httpx2.get(f"{url}/v1/agents/kept", headers=headers).json()["head"]["seq"] == 0
    finally:
        assert run.stop() == 0
    assert "Traceback" not in run.log
    assert run.log.count("had died") == 1


# --- migrate --------------------------------------------------------------------------------------------


def test_migrate_makes_an_empty_database_ready_and_does_nothing_twice(
    empty_database: Database, template: object, tmp_path: Path
) -> None:
    del template  # it makes the roles of the cluster
    env = {"TRAILS_DATABASE_URL": empty_database.admin_url, "TRAILS_DATA_DIR": str(tmp_path)}
    before = _stored_password(empty_database)
    assert "its password is unchanged" in run_trails("migrate", env=env).out
    assert "password" not in run_trails("migrate", env=env).out
    assert run_trails("verify", "--quiet", env=env).code == 4
    assert _stored_password(empty_database) == before


@pytest.mark.parametrize("command", ["migrate", "run"])
def test_a_database_that_cannot_hold_every_text_is_refused(
    postgres: Server, tmp_path: Path, command: str
) -> None:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as cluster:
        cluster.execute("CREATE DATABASE narrow TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
        try:
            env = {
                "TRAILS_DATABASE_URL": postgres.url("narrow"),
                "TRAILS_DATA_DIR": str(tmp_path),
                "TRAILS_BIND": "127.0.0.1:0",
            }
            result = run_trails(command, env=env)
        finally:
            cluster.execute("DROP DATABASE narrow WITH (FORCE)")
    assert result.code == 1
    assert "the encoding of the database must be UTF8, it is SQL_ASCII" in result.err


def test_migrate_needs_a_privileged_role_and_says_so(database: Database, tmp_path: Path) -> None:
    env = {"TRAILS_DATABASE_URL": database.app_url, "TRAILS_DATA_DIR": str(tmp_path)}
    result = run_trails("migrate", env=env)
    assert result.code == 1
    assert "may not migrate" in result.err
