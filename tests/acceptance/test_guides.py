"""The README and the guides are executed: their blocks run against a server they started.

The README's tour comes first; each guide begins where the tour ends, in a shell of its own, with agents
of its own. So ``-k developers`` runs that guide alone, and all of them may run one after another.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

import asyncpg
import httpx2
import msgspec
import pytest

from app.client.settings import TOKEN_VARIABLE, URL_VARIABLE
from app.embedded.place import named_cluster
from tests.integration.http.client import POLICY, Client
from tests.support.pages import Page, guides, noted, readme

GUIDES: Final = {page.name: page for page in guides()}
RUN_SECS: Final = 180

Told = dict[str, str]
"""What the shell printed, by the name of the page."""


class Reader(msgspec.Struct, frozen=True):
    """Who follows the pages: a folder in which ``trails run`` serves, on a port of its own."""

    folder: Path
    port: int

    def follow(self, page: Page) -> str:
        """Runs a page's shell blocks in order, in one shell; what they printed, ``text`` blocks in it."""
        script = "\n".join(["set -euo pipefail", *page.of_kind("sh")])
        done = subprocess.run(
            ["bash", "-c", script.replace("127.0.0.1:9200", f"127.0.0.1:{self.port}")],
            cwd=self.folder,
            env=_environment(self.port),
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for shown in page.of_kind("text"):
            assert without_times(shown) in without_times(done.stdout), shown + done.stdout
        return done.stdout

    async def ask(self, page: Page) -> list[list[asyncpg.Record]]:
        """The answers to a page's SQL blocks, as the database's superuser."""
        connection = await asyncpg.connect(self.database_url)
        try:
            return [await connection.fetch(query) for query in page.of_kind("sql")]
        finally:
            await connection.close()

    @property
    def url(self) -> str:
        """Where the service is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def database_url(self) -> str:
        """The superuser's, as the pages say where to find it."""
        return (self.folder / "trails-data" / "database.url").read_text().strip()

    @property
    def operator(self) -> Client:
        """The operator that the first start made."""
        return Client(self.url, (self.folder / "trails-data/keys/operator.token").read_text().strip())


def without_times(text: str) -> str:
    """A command's output with one time in place of all, since they differ from run to run."""
    lines = re.sub(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "2026-01-01T00:00:00.000000Z", text
    ).splitlines()
    return "\n".join(line.rstrip() for line in lines)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A reader who has started the service, and nothing else."""
    folder = tmp_path_factory.mktemp("reader")
    port = _free_port()
    (folder / "verify.py").write_text(noted("python verifier"))  # as its page says
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [_trails(), "run"], cwd=folder, env=_environment(port), stdout=log, stderr=log
        )
        try:
            _wait_until_ready(server, port, folder / "server.log")
            yield Reader(folder, port)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
            if (cluster := named_cluster(folder / "trails-data")) is not None:
                shutil.rmtree(cluster.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def tour(newcomer: Reader) -> str:
    """What the tour of the README printed."""
    return newcomer.follow(readme())


@pytest.fixture
def reader(newcomer: Reader, tour: str) -> Reader:
    """A reader who has taken the tour, where every guide begins."""
    assert tour
    return newcomer


async def test_the_tour(newcomer: Reader, tour: str) -> None:
    assert_told(readme(), tour, 2)
    assert "index is down" in tour
    assert re.search(r"^verified: \d+ records", tour, re.MULTILINE)
    [failed] = await newcomer.ask(readme())
    assert failed, "the classic query finds the failed call"


@pytest.mark.parametrize("name", GUIDES)
async def test_a_guide_can_be_followed(reader: Reader, name: str) -> None:
    said = reader.follow(GUIDES[name])
    answers = await reader.ask(GUIDES[name])
    if name == "developers":
        assert_told(GUIDES[name], said, 3)
    if name == "compliance":
        assert len(answers[0]) >= 1, "the classic query finds the failed call"
        assert "operator" in {row["approver"] for row in answers[2]}


def assert_told(page: Page, said: str, count: int) -> None:
    """Each answer that the page tells of was given: what begins with ``{"action_id"`` in it."""
    told = re.findall(r'\{"action_id":"act-\d+",.*?\}(?=[`. ])', page.text)
    assert len(told) == count
    for answer in told:
        assert answer in said


def test_what_the_first_start_prints_works(reader: Reader) -> None:
    log = (reader.folder / "server.log").read_text("utf-8")
    welcome = log[: log.index("Ctrl-C stops.")]
    places = re.findall(r"^  [a-zA-Z ]{15,}  (http://\S+)", welcome, re.MULTILINE)
    assert len(places) == 3
    for place in places:
        assert httpx2.get(place, timeout=30, follow_redirects=True).status_code == HTTPStatus.OK, place
    commands = "\n".join(re.findall(r"^  (?:  )?(?:curl|-H|export|trails) .*$", welcome, re.MULTILINE))
    told = reader.follow(Page(reader.folder, f"```sh\n{commands}\n```\n"))
    assert '"agent_id":"scout"' in told
    assert "verified: " in told
    assert (reader.folder / "scout.jsonl").exists()


def test_the_first_steps_of_the_help_are_commands() -> None:
    told = subprocess.run(
        [_trails(), "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    steps, _, commands = told.partition("Commands:")
    named = re.findall(r"^    trails (\S+)", steps, re.MULTILINE)
    assert named[0] == "run"
    for command in named:
        assert re.search(rf"^  {command} ", commands, re.MULTILINE), command


async def test_the_views_in_the_table_are_those_of_the_database(reader: Reader) -> None:
    connection = await asyncpg.connect(reader.database_url)
    views = await connection.fetch("SELECT viewname FROM pg_views WHERE schemaname = 'trails'")
    await connection.close()
    [table] = re.findall(r"^\| view \|.*?\n\n", GUIDES["compliance"].text, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert named == {row["viewname"] for row in views}


def test_metrics_in_the_table_are_those_of_the_service(reader: Reader) -> None:
    told = httpx2.get(f"{reader.url}/metrics", timeout=10).text
    families = set(re.findall(r"^# TYPE (trails_\w+)", told, re.MULTILINE))
    [table] = re.findall(r"^\| metric \|.*?\n\n", GUIDES["administrators"].text, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(trails_\w+)`", table)) == families - {"trails_build_info"}


def test_an_exported_chain_verifies_by_the_program_of_the_page(reader: Reader) -> None:
    exported = reader.folder / "changed.jsonl"
    command = [_trails(), "export", "support-bot", "--out", str(exported)]
    subprocess.run(command, cwd=reader.folder, env=_environment(reader.port), check=True, timeout=RUN_SECS)
    key = reader.operator.get("/v1/public-key").json["public_key"]
    verify = [sys.executable, "-c", noted("python verifier"), str(exported), key]
    proof = subprocess.run(verify, capture_output=True, text=True, check=False, timeout=RUN_SECS)
    assert proof.returncode == 0, proof.stderr
    assert proof.stdout.startswith("sound up to ")

    exported.write_text(exported.read_text().replace("refund policy", "refund polity"))
    assert subprocess.run(verify, capture_output=True, check=False, timeout=RUN_SECS).returncode != 0


def test_guarded_tools_run(reader: Reader) -> None:
    agent = reader.operator.create("guarded-bot", POLICY)
    environment = {**_environment(reader.port), URL_VARIABLE: reader.url, TOKEN_VARIABLE: str(agent.token)}
    environment["XDG_STATE_HOME"] = str(reader.folder)
    program = noted("python guard")
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=reader.folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        asked = "/v1/agents/guarded-bot/actions"
        while running.poll() is None and not reader.operator.get(f"{asked}/pending").json["pending"]:
            time.sleep(0.05)
        approved = reader.operator.post(f"{asked}/act-2/approve", {"approver": "alice"})
        assert approved.status == 200, approved.raw
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    comment = re.search(r"print\(denied\)\n +# (.*)", program)
    assert comment is not None
    assert said.splitlines() == ["what we know of refunds", "sent to a@example.com", comment[1]]


def test_the_tracker_posts(reader: Reader) -> None:
    agent = reader.operator.create("tracked-bot", None)
    environment = {**_environment(reader.port), URL_VARIABLE: reader.url, TOKEN_VARIABLE: str(agent.token)}
    environment["XDG_STATE_HOME"] = str(reader.folder / "state")
    done = subprocess.run(
        [sys.executable, "-c", noted("python tracker")],
        cwd=reader.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECS,
    )
    assert done.returncode == 0, done.stderr
    log = reader.operator.get("/v1/agents/tracked-bot/log").json["records"]
    nodes = [node for record in log if record["kind"] == "trace" for node in record["payload"]["trace_tree"]]
    assert [(node["name"], node["outputs"]["status"]) for node in nodes] == [
        ("run_sql", "failed"), ("use the cache", "success"), ("answer", "success")
    ]  # fmt: skip


def test_the_consumer_of_the_feed_prints_every_record_and_comes_back(reader: Reader) -> None:
    folder = reader.folder / "consumer"
    folder.mkdir()
    token = str(reader.operator.token)
    environment = {**_environment(reader.port), URL_VARIABLE: reader.url, TOKEN_VARIABLE: token}

    def told_until(is_enough: Callable[[list[str]], bool]) -> list[str]:
        """The ids that a consumer prints until it is killed, which it is when they are enough."""
        told: list[str] = []
        with subprocess.Popen(
            [sys.executable, "-c", noted("python feed")],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout is not None
            given_up = threading.Timer(RUN_SECS, running.kill)
            given_up.start()
            for line in running.stdout:  # what it prints until it has died was told, too
                told += [json.loads(line)["id"]] if line.endswith("\n") else []
                if is_enough(told):
                    running.kill()
            given_up.cancel()
        return told

    events = reader.operator.get("/v1/feed?from=start&limit=1000").json["events"]
    every = {one["id"] for one in events}
    first = told_until(lambda told: len(told) >= 3)
    again = told_until(lambda told: {*first, *told} >= every)
    assert {*first, *again} >= every
    assert len(set(first) & set(again)) <= 1, "killed between printing and noting it may print one twice"


def _trails() -> str:
    return str(Path(sys.executable).with_name("trails"))


def _environment(port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAILS_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "TRAILS_BIND": f"127.0.0.1:{port}"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == HTTPStatus.OK:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start: {log.read_text()}")
