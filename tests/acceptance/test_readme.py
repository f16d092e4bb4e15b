"""The README is executed: its shell, SQL and Python blocks run, in order, against a server it started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from app.client.settings import AGENT_VARIABLE, DEFAULT_URL, TOKEN_VARIABLE, URL_VARIABLE
from app.embedded_place import named_cluster
from app.settings import SETTINGS
from db.cookbook import recipes
from tests.integration.http.client import POLICY, Client

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<note>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

SHOWN = re.compile(r"^```sh\n[^`]*^```\n\n```text\n", re.MULTILINE)
"""A command whose output follows it."""


def without_times(text: str) -> str:
    """A command's output with one time in place of all, since they differ from run to run."""
    lines = re.sub(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "2026-01-01T00:00:00.000000Z", text
    ).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def blocks(language: str, note: str = "") -> list[str]:
    """The README's code blocks of one language; ``note`` is what follows the language's name."""
    found = BLOCK.finditer(README)
    return [m["text"] for m in found if (m["language"], m["note"].strip()) == (language, note)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A folder in which ``trails run`` serves, as a reader would have it, on a port of its own."""
    folder = tmp_path_factory.mktemp("readme")
    port = _free_port()
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [_trails(), "run"], cwd=folder, env=_environment(port), stdout=log, stderr=log
        )
        try:
            _wait_until_ready(server, port, folder / "server.log")
            yield folder, port
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
            if (cluster := named_cluster(folder / "trails-data")) is not None:
                shutil.rmtree(cluster.parent, ignore_errors=True)


async def test_shell_sql_and_python_blocks_run(folder: tuple[Path, int]) -> None:
    path, port = folder
    script = "set -euo pipefail\n" + "\n".join(blocks("sh")).replace("127.0.0.1:9200", f"127.0.0.1:{port}")
    shell = subprocess.run(
        ["bash", "-c", script], cwd=path, env=_environment(port), capture_output=True, text=True, check=False
    )
    assert shell.returncode == 0, shell.stdout + shell.stderr
    assert '"decision":"allowed"' in shell.stdout
    assert '"decision":"pending_approval"' in shell.stdout
    assert "verified" in shell.stdout
    assert len(SHOWN.findall(README)) == len(blocks("text")) == 2
    for shown in blocks("text"):
        assert without_times(shown) in without_times(shell.stdout), shown

    connection = await asyncpg.connect((path / "trails-data" / "database.url").read_text().strip())
    answers = [await connection.fetch(query) for query in blocks("sql")]
    views = await connection.fetch("SELECT viewname FROM pg_views WHERE schemaname = 'trails'")
    await connection.close()
    [table] = re.findall(r"^\| view \|.*?\n\n", README, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", table.replace("`trails verify`", ""))) == {
        row["viewname"] for row in views
    }
    assert len(answers) == 3
    assert len(answers[0]) == 1, "the classic query finds the one failed call"
    assert answers[2][0]["approver"] == "operator"

    [verifier] = blocks("python")
    key = re.search(r'"public_key":"([0-9a-f]{64})"', shell.stdout)
    assert key is not None
    command = [sys.executable, "-c", verifier, "support-bot.jsonl", key[1]]
    proof = subprocess.run(command, cwd=path, capture_output=True, text=True, check=False)
    assert proof.returncode == 0, proof.stderr
    assert proof.stdout.startswith("sound up to ")

    lines = (path / "support-bot.jsonl").read_text().replace("refund policy", "refund polity")
    (path / "support-bot.jsonl").write_text(lines)
    assert subprocess.run(command, cwd=path, capture_output=True, check=False).returncode != 0


def test_guarded_tools_run(folder: tuple[Path, int]) -> None:
    path, port = folder
    url = f"http://127.0.0.1:{port}"
    operator = Client(url, (path / "trails-data/keys/operator.token").read_text().strip())
    agent = operator.create("guarded-bot", POLICY)
    environment = {**_environment(port), "LINEAGE_TRAILS_URL": url, "LINEAGE_TRAILS_TOKEN": str(agent.token)}
    environment["XDG_STATE_HOME"] = str(path)
    [program] = blocks("python", "guard")
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=path, env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        asked = "/v1/agents/guarded-bot/actions"
        while running.poll() is None and not operator.get(f"{asked}/pending").json["pending"]:
            time.sleep(0.05)
        approved = operator.post(f"{asked}/act-2/approve", {"approver": "alice"})
        assert approved.status == 200, approved.raw
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    comment = re.search(r"print\(denied\)\n +# (.*)", program)
    assert comment is not None
    assert said.splitlines() == ["what we know of refunds", "sent to a@example.com", comment[1]]


def test_the_tracker_posts(folder: tuple[Path, int]) -> None:
    path, port = folder
    url = f"http://127.0.0.1:{port}"
    operator = Client(url, (path / "trails-data/keys/operator.token").read_text().strip())
    agent = operator.create("tracked-bot", None)
    environment = {**_environment(port), URL_VARIABLE: url, TOKEN_VARIABLE: str(agent.token)}
    environment["XDG_STATE_HOME"] = str(path / "state")
    [program] = blocks("python", "tracker")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = operator.get("/v1/agents/tracked-bot/log").json["records"]
    nodes = [node for record in log if record["kind"] == "trace" for node in record["payload"]["trace_tree"]]
    assert [(node["name"], node["outputs"]["status"]) for node in nodes] == [
        ("run_sql", "failed"), ("use the cache", "success"), ("answer", "success")
    ]  # fmt: skip


def test_variables_of_the_client_are_those_it_reads() -> None:
    rows = re.findall(r"^\| `(LINEAGE_TRAILS_\w+)` \| (.*?) ?\|", README, re.MULTILINE)
    assert [name for name, _ in rows] == [URL_VARIABLE, TOKEN_VARIABLE, AGENT_VARIABLE]
    assert rows[0][1].strip("`") == DEFAULT_URL


def test_the_cookbook_is_as_large_as_told() -> None:
    [count] = re.findall(r"`trails query` has (\d+) such questions", README)
    assert int(count) == len(recipes())
    for command in re.findall(r"^trails query .*$", "\n".join(blocks("sh")), re.MULTILINE):
        assert command.split()[2] in recipes(), command


def test_settings_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| `(TRAILS_\w+)` \| (.*?) \| (.*?) \|$", README, re.MULTILINE)
    assert [(name, meaning) for name, _, meaning in rows] == [(s.name, s.meaning) for s in SETTINGS]
    for setting, (_, default, _) in zip(SETTINGS, rows, strict=True):
        assert default.strip("`") == setting.default or not setting.default


def test_claims_name_tests_that_exist() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for claim in re.findall(r"`(tests/[^`]+)`", README):
        assert (ROOT / claim).exists(), claim
    for prefix in re.findall(r"`(test_\w+_)\*`", README):
        assert f"def {prefix}" in sources, prefix


def test_the_two_commands_are_targets() -> None:
    [first] = blocks("sh", "make")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make (\w+)", first, re.MULTILINE):
        assert f"\n{target}:" in makefile


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
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the server did not start: {log.read_text()}")
