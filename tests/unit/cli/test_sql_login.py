"""What ``trails sql-login create`` prints of an address: a form for each kind of tool, TLS in all of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import make_url

from app.cli.sql_login import _psql, _urls
from app.settings import Settings

URL = "postgresql://trails_auditor_1:word-_1@db.example:5433/trails?sslmode=verify-full&application_name=x"


def test_each_tool_has_its_form() -> None:
    told = _urls(URL, "psql")
    assert list(told) == ["uri", "psql", "sqlalchemy_psycopg2", "sqlalchemy_psycopg", "jdbc"]
    assert (told["uri"], told["psql"]) == (URL, f"psql '{URL}'")
    for driver in ("psycopg2", "psycopg"):
        assert make_url(told[f"sqlalchemy_{driver}"]) == make_url(URL).set(drivername=f"postgresql+{driver}")


def test_jdbc_asks_for_the_same_tls() -> None:
    parts = urlsplit(_urls(URL, "psql")["jdbc"].removeprefix("jdbc:"))
    assert (parts.netloc, parts.path) == ("db.example:5433", "/trails")
    assert parse_qs(parts.query) == {
        "user": ["trails_auditor_1"], "password": ["word-_1"], "sslmode": ["verify-full"]
    }  # fmt: skip


def test_psql_is_the_embedded_servers_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = _psql(Settings())
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("psql (PostgreSQL) ")
    assert _psql(Settings(database_url=URL)) == "psql"
    (tmp_path / "psql").touch(mode=0o755)
    assert _psql(Settings()) == "psql"
    assert os.environ["PATH"] == str(tmp_path)
