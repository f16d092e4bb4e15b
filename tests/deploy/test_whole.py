"""The whole of it, as an administrator puts it together: PostgreSQL, migration, service, pgbouncer, nginx.

Every program is started as its file in ``deploy`` says. Units are carried out as systemd would: nothing in
the environment but what they name, secrets in a folder of credentials, no memory that is written and run.
"""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2
import psycopg
import pytest
from sqlalchemy import make_url

from db import migrate
from tests.support.cli import run_trails
from tests.support.cluster import Cluster, running_cluster
from tests.support.nginx import CLIENT, running_nginx
from tests.support.pgbouncer import program, running_pooler
from tests.support.postgres import APP_PASSWORD, Database
from tests.support.server import ROOT
from tests.support.tools import DEPLOY, output_of, tool
from tests.support.units import unit

ADMIN_PASSWORD: Final = "administrators-password"  # noqa: S105  of a throw-away server
VERIFIER_PASSWORD: Final = "verifiers-password"  # noqa: S105  as above
OPERATOR: Final = "operator-token-of-the-whole-0123456789abcdef"
POLICY: Final = {"budget": 5, "scar_limit": 3, "tools": {"search": {"cost": 1}}}

_REFUSE_EXECUTION_OF_WHAT_WAS_WRITTEN: Final = (65, 1)
"""prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN), from Linux 6.3 on: what MemoryDenyWriteExecute= asks for."""

_NO_NEW_PRIVILEGES: Final = (38, 1)

_WAIT_SECS: Final = 60.0


class Machine:
    """Where units run: their credentials, their settings, their state."""

    def __init__(self, folder: Path, secrets: dict[str, str]) -> None:
        self.folder = folder
        self._secrets = secrets
        (folder / "state" / "trails").mkdir(parents=True, mode=0o700)

    def command(self, name: str) -> list[str]:
        """What the unit starts, with the program of this checkout."""
        program, *arguments = unit(name)["Service"]["ExecStart"][0].split()
        assert program.endswith("/trails")
        return [sys.executable, "-m", "app.cli", *(self._filled(name, given) for given in arguments)]

    def environment(self, name: str) -> dict[str, str]:
        """What the unit gives it, and nothing else but where our code is."""
        service = unit(name)["Service"]
        given = [self._filled(name, each) for each in service["Environment"]]
        for file in service.get("EnvironmentFile", []):
            assert file == "/etc/lineage-trails/trails.env"
            given += self._settings()
        return dict(each.split("=", 1) for each in given) | {"PYTHONPATH": str(ROOT)}

    def _settings(self) -> list[str]:
        text = (DEPLOY / "systemd" / "trails.env").read_text("utf-8")
        ours = {
            "TRAILS_BIND=127.0.0.1:9200": "TRAILS_BIND=127.0.0.1:0",
            "TRAILS_TRUSTED_PROXIES=127.0.0.1,::1": "TRAILS_TRUSTED_PROXIES=127.0.0.1",
            "TRAILS_STOP_DELAY_SECS=5": "TRAILS_STOP_DELAY_SECS=1",
            "=/var/lib/trails/heads": f"={self.folder}/state/trails/heads\nTRAILS_HEADS_SECS=0.2",
            "# TRAILS_POOLER=": "TRAILS_POOLER=",
        }
        for theirs, mine in ours.items():
            assert text.count(theirs) == 1, theirs
            text = text.replace(theirs, mine)
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    def _filled(self, name: str, text: str) -> str:
        """``%d`` is the folder of the unit's credentials, which hold what it loads and nothing besides."""
        credentials = self.folder / "credentials" / name
        credentials.mkdir(parents=True, exist_ok=True)
        for loaded in unit(name)["Service"]["LoadCredential"]:
            file = credentials / loaded.partition(":")[0]
            if not file.exists():
                file.write_text(self._secrets[file.name])
                file.chmod(0o440)
        return text.replace("%d", str(credentials)).replace("%S", str(self.folder / "state"))


def confined() -> None:
    """What of the units' hardening a process can ask for by itself."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in (_NO_NEW_PRIVILEGES, _REFUSE_EXECUTION_OF_WHAT_WAS_WRITTEN):
        libc.prctl(option, value, 0, 0, 0)  # an older kernel knows it not, and is asked in vain


def once(machine: Machine, name: str) -> str:
    """A unit that does something and ends."""
    done = subprocess.run(
        machine.command(name),
        env=machine.environment(name),
        cwd=machine.folder / "state",
        capture_output=True,
        text=True,
        timeout=_WAIT_SECS,
        check=False,
        preexec_fn=confined,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def served(machine: Machine) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The service, and where it listens."""
    name, log = "lineage-trails.service", machine.folder / "service.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            machine.command(name),
            env=machine.environment(name),
            cwd=machine.folder / "state",
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            preexec_fn=confined,  # noqa: PLW1509  no thread runs here
        )
    try:
        yield process, _ready(process, log)
    finally:
        process.kill()
        process.wait()


def _ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _WAIT_SECS
    while time.monotonic() < deadline and process.poll() is None:
        match = re.search(r"Lineage Trails is at http://(\S+)", log.read_text("utf-8"))
        if match is not None:
            try:
                if httpx2.get(f"http://{match[1]}/readyz", timeout=5).status_code == 200:
                    return match[1]
            except httpx2.TransportError:
                pass
        time.sleep(0.1)
    raise AssertionError(log.read_text("utf-8"))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server on which ``roles.sql`` and ``verifier.sql`` were carried out, and nothing else."""
    with running_cluster(bare=True) as made:
        superuser = make_url(made.admin_url).set(database="postgres").render_as_string(hide_password=False)
        with psycopg.connect(superuser, autocommit=True) as connection:
            connection.execute("DROP DATABASE trails")
        passwords = {
            "TRAILS_ADMIN_PASSWORD": ADMIN_PASSWORD,
            "TRAILS_APP_PASSWORD": "not this one",
            "TRAILS_VERIFIER_PASSWORD": VERIFIER_PASSWORD,
        }
        for url, name in ((superuser, "roles.sql"), (made.admin_url, "verifier.sql")):
            script = str(DEPLOY / "postgres" / name)
            output_of(made.tool("psql"), url, "--no-psqlrc", "--file", script, env=passwords)
        yield made


def test_h27_an_action_goes_through_all_of_it_and_the_service_stops_in_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    tool("nginx")
    program()
    told = (DEPLOY / "pgbouncer" / "pgbouncer.ini").read_text("utf-8")
    admin_url = migrate.with_login(cluster.admin_url, "trails_admin", ADMIN_PASSWORD)
    secrets = {
        "admin_url": admin_url,
        "verifier_url": migrate.with_login(cluster.admin_url, "trails_verifier", VERIFIER_PASSWORD),
        "app_password": APP_PASSWORD,
        "master_key": "5e" * 32,
        "operator_token": OPERATOR,
        "metrics_token": "metrics-token-of-the-whole-0123456789abcdef",
    }
    database: Database = cluster.database
    with running_pooler(database, told=told, size=4) as pooler:
        machine = Machine(tmp_path, {**secrets, "database_url": pooler.app_url})
        assert "revision" in once(machine, "lineage-trails-migrate.service")
        with served(machine) as (process, place):
            with running_nginx(tmp_path / "nginx", place) as nginx, nginx.client(OPERATOR) as client:
                made = client.post("/v1/agents", json={"agent_id": "scout", "policy": POLICY})
                assert made.status_code == 200, made.text
                asked = client.post("/v1/agents/scout/actions", json={"tool": "search", "input": {}})
                assert asked.json() == {
                    "decision": "allowed", "action_id": "act-1", "cost": 1, "remaining": 4
                }  # fmt: skip
            heads = tmp_path / "state" / "trails" / "heads"
            deadline = time.monotonic() + _WAIT_SECS
            while not heads.exists() or "/scout" not in heads.read_text("utf-8"):
                assert time.monotonic() < deadline, "no head is kept"
                time.sleep(0.1)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(_WAIT_SECS) == 0
            [limit] = unit("lineage-trails.service")["Service"]["TimeoutStopSec"]
            assert time.monotonic() - began < int(limit)
        env = {"TRAILS_DATABASE_URL": admin_url, "TRAILS_MASTER_KEY": secrets["master_key"]}
        made = run_trails("tenant", "create", "acme", "--name", "Acme", "--operator", "Ada", env=env)
        assert made.code == 0, made.err
        said = once(machine, "lineage-trails-verify.service")
        assert "verified" in said
        assert "acme/_administration" in said, "of all tenants"
    log = (tmp_path / "service.log").read_text("utf-8")
    assert f'"peer": "{CLIENT}"' in log
    assert "Traceback" not in log
    assert not any(secret in log for secret in (OPERATOR, APP_PASSWORD, secrets["master_key"]))
    written = {str(path.relative_to(tmp_path / "state")) for path in (tmp_path / "state").rglob("*")}
    assert written == {"trails", "trails/heads", "trails/heads.lock"}
