"""``trails migrate`` of the embedded database, whether it runs or not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from app.embedded import EmbeddedPostgres
from tests.support.cli import run_trails

TRIGGER = "ALTER TABLE trails.agent_audit_trails ENABLE TRIGGER"


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """The data folder of a migrated database that does not run."""
    data = tmp_path / "data"
    with EmbeddedPostgres(data, settings={"fsync": "off"}):
        assert run_trails("migrate", env={"TRAILS_DATA_DIR": str(data)}).code == 0
    yield data
    shutil.rmtree(EmbeddedPostgres(data).home, ignore_errors=True)


def test_triggers_that_keep_the_service_from_starting_are_switched_on_without_it(data: Path) -> None:
    env = {"TRAILS_DATA_DIR": str(data)}
    with EmbeddedPostgres(data) as server, psycopg.connect(server.url, autocommit=True) as admin:
        name = admin.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = 'trails.agent_audit_trails'::regclass"
            " AND NOT tgisinternal ORDER BY 1 LIMIT 1"
        ).fetchone()
        assert name is not None
        admin.execute(f"{TRIGGER} {name[0]}")
    done = run_trails("migrate", "--enable-triggers", env=env)
    assert done.code == 0, done.err
    assert "Fires always again: " in done.out
    assert name[0] in done.out
    assert not EmbeddedPostgres(data).running
    again = run_trails("migrate", "--enable-triggers", env=env)
    assert "Fires always again" not in again.out


def test_without_a_database_nothing_is_made(tmp_path: Path) -> None:
    done = run_trails("migrate", env={"TRAILS_DATA_DIR": str(tmp_path / "none")})
    assert done.code != 0
    assert "no database" in done.err
    assert not (tmp_path / "none").exists()
