"""Case H26: an export that breaks off is no file for anybody: curl fails, verify says incomplete.

Some megabytes more than the system's buffers hold are exported to a client that takes its time; the backend
of the database is ended, the server killed, or the client goes away while it waits.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.support.cli import verify
from tests.support.faults import FULL, rounds
from tests.support.long_chains import fill
from tests.support.postgres import Database, Server, fresh_database
from tests.support.server import MASTER_KEY, ROOT, ServerProcess, StartServer, service_environment

AGENT = "talker"
RECORDS = rounds(1_500, 6_000)
CHARS = 8_000
"""Of each record: 16 MB in all, of which buffers hold five or six."""

WAIT_SECS = 30.0
CURL_PARTIAL = {18, 56}
"""Transfer closed with outstanding data; failure in receiving: what a chunked answer that was cut ends in."""

FORMS = ("jsonl", "csv", "bundle", "parquet")[: rounds(3, 4)]


@pytest.fixture(scope="module")
def long_chain(postgres: Server, template: NoopExecutor) -> Iterator[str]:
    """The name of a database with one long chain, for clones."""
    with fresh_database(postgres, template.template_dbname) as made:
        asyncio.run(fill(made.app_url, bytes.fromhex(MASTER_KEY), AGENT, RECORDS, chars=CHARS))
        yield made.name


@pytest.fixture
def database(postgres: Server, long_chain: str) -> Iterator[Database]:
    """A database with one long chain, of this test alone."""
    with fresh_database(postgres, long_chain) as found:
        yield found


@contextmanager
def taking_slowly(
    server: ServerProcess, path: Path, query: str, *, rate: str = "1M"
) -> Iterator[subprocess.Popen[bytes]]:
    """A curl on its way through an export, which goes on as soon as the block ends."""
    command = [
        "curl",
        *("--silent", "--fail", "--limit-rate", rate, "--max-time", "120"),
        *("--header", f"Authorization: Bearer {server.operator_token}"),
        *("--output", str(path), f"{server.base_url}/v1/agents/{AGENT}/export?{query}"),
    ]
    with subprocess.Popen(command) as curl:
        try:
            until(lambda: path.exists() and path.stat().st_size > 5_000)
            yield curl
        finally:
            curl.kill()


def until(holds: Any) -> None:
    """Returns when it holds; fails when that takes too long."""
    deadline = time.monotonic() + WAIT_SECS
    while not holds():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.05)


def exporting(database: Database, what: LiteralString = "true") -> bool:
    """Whether an export has a backend, of which ``what`` holds."""
    with psycopg.connect(database.admin_url) as connection:
        found = connection.execute(
            f"SELECT bool_or({what}) FROM pg_stat_activity WHERE datname = current_database()"
            " AND usename = 'trails_app' AND state IN ('active', 'idle in transaction')"
            " AND query LIKE '%(seq, hash) >%'"
        ).fetchone()
    return found is not None and bool(found[0])


def end_backend(database: Database) -> None:
    """Ends the backend of the only export."""
    until(lambda: exporting(database, "pg_terminate_backend(pid)"))


def acts(server: ServerProcess) -> list[dict[str, Any]]:
    """What is on record of exports."""
    with server.client() as client:
        records = client.get("/v1/agents/_administration/log").json()["records"]
    told = [record["payload"] for record in records if record["kind"] == "admin"]
    return [act for act in told if act["act"].startswith("export")]


def is_incomplete(path: Path, form: str) -> bool:
    """Whether the file is found to be no whole export."""
    if form == "parquet":
        return b"PAR1" not in path.read_bytes()[4:]
    return verify(path).code == 3


@pytest.mark.parametrize("form", FORMS)
def test_h26_an_export_whose_backend_is_ended_is_cut(
    database: Database, server: ServerProcess, tmp_path: Path, form: str
) -> None:
    path = tmp_path / "export"
    with taking_slowly(server, path, f"format={form}") as curl:
        end_backend(database)
        assert curl.wait(WAIT_SECS * 2) in CURL_PARTIAL
    assert is_incomplete(path, form)
    until(lambda: len(acts(server)) == 2)
    begun, broken = acts(server)
    assert (begun["act"], broken["act"]) == ("export_begun", "export_broken")
    assert broken["export"] == begun["export"]
    assert 0 < broken["rows"] < RECORDS
    assert "Traceback" not in server.log
    assert "an export broke off" in server.log


def test_h26_bare_lines_of_an_export_that_breaks_off_end_within_a_line(
    database: Database, server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "export.jsonl"
    with taking_slowly(server, path, "trailer=false") as curl:
        end_backend(database)
        assert curl.wait(WAIT_SECS * 2) in CURL_PARTIAL
    found = verify(path)
    assert (found.code, found.json["chains"][0]["cut"]) == (3, True)


def test_h26_an_export_of_a_server_that_is_killed_is_cut_and_stands_as_begun(
    database: Database, start_server: StartServer, tmp_path: Path
) -> None:
    path, server = tmp_path / "export.jsonl", start_server()
    with taking_slowly(server, path, "format=jsonl") as curl:
        until(lambda: exporting(database))
        server.kill()
        assert curl.wait(WAIT_SECS * 2) in CURL_PARTIAL
    assert is_incomplete(path, "jsonl")
    server.start()
    assert [act["act"] for act in acts(server)] == ["export_begun"]
    until(lambda: not exporting(database))


def test_h26_who_goes_away_leaves_no_export_behind(
    database: Database, server: ServerProcess, tmp_path: Path
) -> None:
    """The connection is given back at once, the end is on record, and the next export is served."""
    path = tmp_path / "export.jsonl"
    with taking_slowly(server, path, "format=jsonl") as curl:
        until(lambda: exporting(database))
        with server.client() as client:
            refused = client.get(f"/v1/agents/{AGENT}/export")
            assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (429, True)
            assert client.get("/v1/agents").status_code == 200
        curl.kill()
    until(lambda: not exporting(database))
    until(lambda: [act["act"] for act in acts(server)] == ["export_begun", "export_broken"])
    with server.client() as client:
        last = client.get(f"/v1/agents/{AGENT}/export").content.splitlines()[-1]
    assert json.loads(last)["trailer"]["rows"] == RECORDS + 1
    assert "Traceback" not in server.log


def test_h26_the_command_line_fails_when_its_backend_is_ended(database: Database, tmp_path: Path) -> None:
    """Into a pipe, where it cannot take anything back: the end is not there, and the exit code says so."""
    path = tmp_path / "export.jsonl"
    environment = service_environment(database.app_url, TRAILS_DATA_DIR=str(tmp_path / "data"))
    command = [sys.executable, "-m", "app.cli", "export", "--all", "--out", "-"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as export:
        assert export.stdout is not None
        assert export.stderr is not None
        data = export.stdout.read(100_000)
        end_backend(database)
        data += export.stdout.read()
        said = export.stderr.read().decode()
        assert export.wait(WAIT_SECS) == 1
    assert "the database is not available" in said
    assert "Traceback" not in said
    path.write_bytes(data)
    assert is_incomplete(path, "jsonl")
    with psycopg.connect(database.admin_url) as connection:
        told = connection.execute(
            "SELECT trace_data ->> 'act' FROM trails.agent_audit_trails"
            " WHERE trace_data ->> 'act' LIKE 'export%' ORDER BY seq"
        ).fetchall()
    assert told == [("export_begun",), ("export_broken",)]


def command_line(database: Database, folder: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
    environment = service_environment(database.app_url, TRAILS_DATA_DIR=str(folder / "data"))
    command = [sys.executable, "-m", "app.cli", "export", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)


def exported(database: Database, folder: Path, *arguments: str | Path) -> None:
    with command_line(database, folder, *arguments) as export:
        _, said = export.communicate(timeout=WAIT_SECS)
    assert export.returncode == 0, said.decode()


def killed_as_it_writes(database: Database, folder: Path, out: Path, *arguments: str | Path) -> None:
    """Begins an export and kills it as soon as the folder ``out`` holds something of it."""
    out.mkdir()
    with command_line(database, folder, *arguments) as export:
        while export.poll() is None and not any(file.stat().st_size for file in out.iterdir()):
            time.sleep(0.001)
        export.kill()
    assert export.returncode == -signal.SIGKILL


def test_h26_a_chain_whose_export_is_killed_is_gone_on_with_to_the_same_bytes(
    database: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path, whole = out / "one.jsonl", tmp_path / "whole.jsonl"
    killed_as_it_writes(database, tmp_path, out, AGENT, "--out", path)
    assert [file.name for file in out.iterdir()] == ["one.jsonl.part"]
    exported(database, tmp_path, AGENT, "--out", path, "--resume")
    exported(database, tmp_path, AGENT, "--out", whole)
    assert path.read_bytes() == whole.read_bytes()
    assert [file.name for file in out.iterdir()] == ["one.jsonl"]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_h26_of_an_export_that_is_killed_nothing_has_its_name(
    database: Database, tmp_path: Path, form: str
) -> None:
    path, out = tmp_path / "out" / f"all.{form}", tmp_path / "out"
    arguments = ("--all", "--format", form, "--out", path)
    killed_as_it_writes(database, tmp_path, out, *arguments)
    assert not path.exists()
    with command_line(database, tmp_path, *arguments, "--resume") as export:
        _, said = export.communicate(timeout=WAIT_SECS)
    assert (export.returncode != 0, b"for the records of one AGENT alone" in said) == (True, True)
    exported(database, tmp_path, *arguments)
    assert not is_incomplete(path, form)


@pytest.mark.skipif(not FULL, reason="it lasts as long as a service waits for its requests")
def test_h27_a_service_that_is_told_to_stop_cuts_an_export_that_does_not_end(
    database: Database, start_server: StartServer, tmp_path: Path
) -> None:
    path, server = tmp_path / "export.jsonl", start_server()
    with taking_slowly(server, path, "format=jsonl", rate="10k") as curl:
        until(lambda: exporting(database))
        assert server.stop() == 0
        assert curl.poll() is None  # it has much to take that was sent before
    assert is_incomplete(path, "jsonl")
    server.start()
    assert [act["act"] for act in acts(server)] == ["export_begun", "export_broken"]
    assert "Traceback" not in server.log
