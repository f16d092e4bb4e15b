"""``trails migrate --app-password-file``: the service's login gets the password of a mounted secret."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from db.migrate import app_url
from tests.support.cli import run_trails
from tests.support.postgres import APP_PASSWORD, Database

PASSWORD = "another-password-of-the-service"  # noqa: S105  of a throw-away server


def _secret(path: Path, value: str, mode: int = 0o440) -> Path:
    path.write_text(value + "\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("prepared", [True, False])
def test_the_login_gets_the_password_of_the_file(
    database: Database, empty_database: Database, tmp_path: Path, *, prepared: bool
) -> None:
    place = database if prepared else empty_database
    env = {
        "TRAILS_DATABASE_URL_FILE": str(_secret(tmp_path / "admin_url", place.admin_url)),
        "TRAILS_DATA_DIR": str(tmp_path / "data"),
    }
    try:
        done = run_trails("migrate", "--app-password-file", _secret(tmp_path / "password", PASSWORD), env=env)
        assert done.code == 0, done.err
        assert "unchanged" not in done.out
        assert PASSWORD not in done.out + done.err
        psycopg.connect(app_url(place.admin_url, PASSWORD)).close()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(place.app_url)
        assert not (tmp_path / "data").exists(), "no key is made where none is needed"
    finally:
        own = _secret(tmp_path / "own", APP_PASSWORD)
        assert run_trails("migrate", "--app-password-file", own, env=env).code == 0


def test_roles_alone_can_be_given_one(database: Database, tmp_path: Path) -> None:
    """A login that is there keeps its own, as with a password that is derived."""
    done = run_trails(
        "migrate",
        "--roles",
        "--app-password-file",
        _secret(tmp_path / "password", PASSWORD),
        env={"TRAILS_DATABASE_URL": database.admin_url, "TRAILS_DATA_DIR": str(tmp_path / "data")},
    )
    assert (done.code, "its password is unchanged" in done.out) == (0, True), done.err
    psycopg.connect(database.app_url).close()


@pytest.mark.parametrize(
    ("value", "mode", "said"),
    [(PASSWORD, 0o444, "chmod o="), ("", 0o400, "must hold"), ("ü", 0o400, "ASCII")],
)
def test_a_file_that_cannot_be_used_changes_nothing(
    database: Database, tmp_path: Path, value: str, mode: int, said: str
) -> None:
    file = _secret(tmp_path / "password", value, mode)
    done = run_trails("migrate", "--app-password-file", file, env={"TRAILS_DATABASE_URL": database.admin_url})
    assert (done.code, said in done.err) == (1, True), done.err
    psycopg.connect(database.app_url).close()


def test_a_file_that_is_not_there_is_told(database: Database, tmp_path: Path) -> None:
    done = run_trails(
        "migrate",
        "--app-password-file",
        tmp_path / "nowhere",
        env={"TRAILS_DATABASE_URL": database.admin_url},
    )
    assert (done.code, "No such file" in done.err) == (1, True)
