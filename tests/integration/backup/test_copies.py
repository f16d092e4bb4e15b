"""Copies of a whole server: to a point in time, and of the embedded one; heads tell what is lost (C18)."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.embedded import EmbeddedPostgres, place
from app.heads import read
from tests.support.backups import (
    append_one,
    block,
    done,
    environment,
    fill,
    head,
    other_server,
    programs,
    query,
    service_url,
    shell,
)
from tests.support.cli import run_trails
from tests.support.ledgers import MASTER_KEY
from tests.support.leftovers import MEMORY, PREFIX
from tests.support.server import ServerProcess


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder that the server's own user may enter."""
    parent = MEMORY if MEMORY.is_dir() else tmp_path
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def give(path: Path, like: Path) -> None:
    """Lets files belong to whoever owns ``like``."""
    owner = like.stat()
    for each in (path, *path.rglob("*")):
        os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)


@contextmanager
def archived(folder: Path, archive: Path) -> Iterator[EmbeddedPostgres]:
    """A server whose log is archived."""
    with other_server(folder, archive_mode="on") as server:
        archive.mkdir()
        give(archive, server.cluster)
        query(
            server.url, "ALTER SYSTEM SET archive_mode = 'on'"
        )  # so that a copy archives, unless it is told not to
        query(server.url, f'ALTER SYSTEM SET archive_command = \'cp "%p" "{archive}/%f"\'')
        query(server.url, "SELECT pg_reload_conf()")
        yield server


@contextmanager
def started_from(cluster: Path, keys: Path, folder: Path, like: Path) -> Iterator[str]:
    """The embedded server on a copied cluster; the superuser's URL when recovery is over."""
    give(cluster, like)
    folder.mkdir()
    shutil.copy(keys / place.URL_FILE, folder / place.URL_FILE)
    place.name_cluster(folder, cluster)
    given = os.environ.get("TRAILS_TEST_POSTGRES_BIN")
    server = EmbeddedPostgres(
        folder,
        binaries=Path(given) if given else None,
        settings={"fsync": "off", "trails.disposable": "on"},
    )
    with server:
        until(lambda: query(server.url, "SELECT NOT pg_is_in_recovery()") == [(True,)])
        yield server.url


def served(url: str, folder: Path, file: Path) -> ServerProcess:
    env = {
        "TRAILS_MASTER_KEY": MASTER_KEY.hex(),
        "TRAILS_HEADS_FILE": str(file),
        "TRAILS_HEADS_SECS": "0.2",
    }
    return ServerProcess(service_url(url), folder, env=env)


def ask(server: ServerProcess, agent: str) -> dict[str, Any]:
    with server.client() as client:
        path = f"/v1/agents/{agent}/{'actions' if agent == 'scout' else 'events'}"
        body = {"tool": "search", "input": "x"} if agent == "scout" else {"type": "seen", "data": {}}
        answer: dict[str, Any] = client.post(path, json=body).json()
        return answer


def kept(file: Path, agent: str) -> int:
    """The newest record of an agent that the file of heads has seen."""
    found = read(file)
    [name] = [name for name, told in found.told.items() if told == f"default/{agent}"]
    return max(found.heads[name])


def test_c18_a_point_in_time_comes_back_and_chains_that_went_further_do_not_go_on(
    tmp_path: Path, room: Path
) -> None:
    programs("pg_basebackup")
    archive, file = room / "archive", tmp_path / "heads"
    with archived(tmp_path / "first", archive) as first:
        fill(first.url, tmp_path)
        done(shell(block("base-backup"), room, first.url))
        with served(first.url, tmp_path, file) as service:
            assert ask(service, "scout")["decision"] == "allowed"
            before = head(first.url)
            [(moment,)] = query(first.url, "SELECT clock_timestamp()::text")
            assert ask(service, "scout")["decision"] == "allowed"
            lost = head(first.url)[0]
            until(lambda: kept(file, "scout") == lost)
        [(segment,)] = query(first.url, "SELECT pg_walfile_name(pg_switch_wal())")
        until((archive / segment).exists)
        owner = first.cluster
        script = block("point-in-time").replace("/archive/", f"{archive}/")
        script = script.replace("2026-11-30 12:00:00+00", moment)
        done(shell(script, room, first.url))
        with started_from(room / "restored", tmp_path / "first", tmp_path / "second", owner) as url:
            env = environment(url, tmp_path)
            assert head(url) == before
            assert query(url, "SELECT timeline_id > 1 FROM pg_control_checkpoint()") == [(True,)]
            assert query(url, "SHOW archive_mode") == [("off",)]
            assert not list(archive.glob("*.history")), (
                "later restores of the first server would follow this one"
            )
            assert run_trails("verify", env=env).code == 0
            behind = run_trails("verify", "--heads", file, env=env)
            assert behind.code == 3, behind.out

            with served(url, tmp_path, file) as service:
                refused = ask(service, "scout")
                assert refused["code"] == "quarantined"
                assert f"record {lost} was seen before and is not in the table" in refused["error"]
                assert "hash" in ask(service, "other"), "all other chains go on"
                until(lambda: kept(file, "other") == head(url, "other")[0])
                assert kept(file, "scout") == lost, "the head that was seen stays"
                assert f"default/scout: record {lost} was seen before" in service.log
                with service.client() as client:
                    assert "trails_chains_behind 1.0" in client.get("/metrics").text

                accepting = block("heads").replace("support-bot", "scout")
                said = done(shell(accepting, tmp_path, url, env={"TRAILS_HEADS_FILE": str(file)}))
                assert f"goes on from {before[0]}:{before[1]}" in said
                until(lambda: ask(service, "scout").get("decision") == "allowed")
            assert run_trails("verify", "--heads", file, env=env).code == 0


def test_the_embedded_database_is_copied_with_its_keys(tmp_path: Path, room: Path) -> None:
    data = tmp_path / "trails-data"
    with other_server(data) as server:
        fill(server.url, tmp_path)
        before, owner = head(server.url), server.cluster.stat()
        server.stop()
        done(shell(block("embedded"), tmp_path, server.url))
        copied = (
            tmp_path / "backup" / ("cluster" if (tmp_path / "backup" / "cluster").exists() else "postgres")
        )
        restored = room / "postgres"
        shutil.copytree(copied, restored)
        assert copied.stat().st_uid == owner.st_uid
        with started_from(restored, tmp_path / "backup", tmp_path / "again", copied) as url:
            assert head(url) == before
            assert append_one(url) == (before[0] + 1, before[1])
            assert run_trails("verify", env=environment(url, tmp_path)).code == 0
