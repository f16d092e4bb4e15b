"""The compose file: read by the tool that will read it, and what it promises about secrets and networks."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import FILE_SUFFIX, SETTINGS, Settings
from tests.support.tools import DEPLOY, output_of, tool


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of ``deploy`` with secrets that were made."""
    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy, ignore=shutil.ignore_patterns("secrets", ".env"))
    output_of(str(copy / "make-secrets"))
    return copy


def test_the_tool_reads_it(folder: Path) -> None:
    plugin = subprocess.run(
        [shutil.which("docker") or "true", "compose", "version"], capture_output=True, check=False
    )
    has_plugin = shutil.which("docker") is not None and plugin.returncode == 0
    command = [tool("docker"), "compose"] if has_plugin else [tool("docker-compose")]
    if not has_plugin and "version 1.2" in output_of(*command, "--version"):
        # The old one does not know the member; what is behind it is the same.
        text = (folder / "compose.yaml").read_text("utf-8")
        (folder / "compose.yaml").write_text(text.replace("name: lineage-trails\n", "", 1))
    said = output_of(*command, "--file", "compose.yaml", "--profile", "dashboards", "config", cwd=folder)
    assert yaml.safe_load(said[said.index("networks:") :] if "networks:" in said else said)
    assert "10001" in said or str(os.getuid()) in said


def test_secrets_are_made_once_and_only_for_who_runs_the_service(folder: Path) -> None:
    secrets = folder / "secrets"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    before = {path.name: path.read_text() for path in secrets.iterdir()}
    declared = {name: Path(given["file"]).name for name, given in compose()["secrets"].items()}
    assert set(declared.values()) == set(before)
    owner = 10001 if os.getuid() == 0 else os.getuid()
    for path in secrets.iterdir():
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o400, owner)
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600
    env = (folder / ".env").read_text()
    assert f"TRAILS_UID={owner}\n" in env

    said = output_of(str(folder / "make-secrets"))
    assert {path.name: path.read_text() for path in secrets.iterdir()} == before
    assert (folder / ".env").read_text() == env
    assert not any(value.strip() in said for value in before.values())


def test_what_was_made_is_what_the_service_takes(folder: Path) -> None:
    environment = compose()["services"]["service"]["environment"]
    given = {
        name: str(folder / "secrets" / Path(value).name)
        for name, value in environment.items()
        if name.endswith(FILE_SUFFIX)
    }
    settings = Settings.from_env(given)
    assert settings.database_url is not None
    assert settings.database_url.startswith("postgresql://trails_app:")
    assert (folder / "secrets" / "app_password").read_text().strip() in settings.database_url
    assert None not in (settings.master_key, settings.operator_token, settings.metrics_token)


def test_each_service_has_the_secrets_it_names_and_none_besides() -> None:
    parts = compose()
    for name, service in parts["services"].items():
        mounted = set(service.get("secrets", []))
        assert mounted <= set(parts["secrets"])
        named = set(re.findall(r"/run/secrets/(\w+)", str(service)))
        assert named == mounted, name
    assert "admin_url" not in parts["services"]["service"]["secrets"]
    assert "master_key" not in parts["services"]["migrate"]["secrets"]


def test_no_secret_is_in_an_environment() -> None:
    secret = {setting.name for setting in SETTINGS if setting.secret}
    for service in compose()["services"].values():
        assert not secret & set(service["environment"])
        assert "POSTGRES_PASSWORD" not in service["environment"]


def test_every_service_is_confined() -> None:
    for name, service in compose()["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert ":" in service["image"] or "${" in service["image"], name
    assert {name for name, service in compose()["services"].items() if "cap_add" in service} == {"database"}


def test_the_database_cannot_be_reached_from_outside() -> None:
    parts = compose()
    assert parts["networks"]["inside"]["internal"] is True
    database = parts["services"]["database"]
    assert database["networks"] == ["inside"]
    assert "ports" not in database
    for name in ("service", "grafana"):
        [port] = parts["services"][name]["ports"]
        assert re.match(r"\$\{\w+:-127\.0\.0\.1:\d+\}:\d+$", port), (
            "only this machine, unless somebody says so"
        )


def test_the_service_waits_for_the_migration_and_that_for_the_database() -> None:
    services = compose()["services"]
    assert services["service"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["migrate"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert services["migrate"]["restart"] == "no"


def test_the_proxy_that_is_trusted_is_where_published_ports_come_from() -> None:
    parts = compose()
    [network] = parts["networks"]["outside"]["ipam"]["config"]
    assert parts["services"]["service"]["environment"]["TRAILS_TRUSTED_PROXIES"] == network["gateway"]


def test_every_variable_is_told_of_in_the_example() -> None:
    used = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text("utf-8")))
    told = set(re.findall(r"^(\w+)=", (DEPLOY / ".env.example").read_text("utf-8"), re.MULTILINE))
    assert used == told
