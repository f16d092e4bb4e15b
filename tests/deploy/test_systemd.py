"""The units: read by systemd itself, hardened by its own measure, and the settings they give are settings."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from app.cli.main import trails
from app.settings import FILE_SUFFIX, SETTINGS
from tests.support.tools import DEPLOY, output_of, tool
from tests.support.units import unit

SERVICES = ("lineage-trails.service", "lineage-trails-migrate.service", "lineage-trails-verify.service")
MOST_EXPOSED = 2.0
"""Of 10; what listens on the network cannot have much less than 1."""

PROGRAM = "/opt/lineage-trails/bin/trails"
SECRETS = "/etc/lineage-trails/secrets/"


def test_systemd_reads_them(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    here = Path(sys.executable).with_name("trails")
    for file in (DEPLOY / "systemd").iterdir():
        text = file.read_text("utf-8").replace(PROGRAM, str(here))
        # Services that stand before ours are not installed where tests run.
        (tmp_path / file.name).write_text(text)
    names = [str(tmp_path / name) for name in (*SERVICES, "lineage-trails-verify.timer")]
    said = output_of(
        analyze, "verify", "--man=no", *names, env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    )
    assert [line for line in said.splitlines() if "lineage-trails" in line] == []


@pytest.mark.parametrize("name", SERVICES)
def test_they_are_hardened(name: str) -> None:
    said = output_of(
        tool("systemd-analyze"), "security", "--offline=true", "--no-pager", str(DEPLOY / "systemd" / name)
    )
    match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert match is not None, said
    assert float(match[1]) < MOST_EXPOSED


@pytest.mark.parametrize("name", SERVICES)
def test_what_they_start_and_hand_over_is_known(name: str) -> None:
    service = unit(name)["Service"]
    [command] = service["ExecStart"]
    program, subcommand, *arguments = command.split()
    assert program == PROGRAM
    known = trails.get_command(None, subcommand)  # type: ignore[arg-type]  # it does not look at it
    assert known is not None
    options = {option for parameter in known.params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options
    loaded = dict(given.split(":", 1) for given in service["LoadCredential"])
    assert all(path == SECRETS + credential for credential, path in loaded.items())
    named = dict(given.split("=", 1) for given in service["Environment"] if given.startswith("TRAILS_"))
    assert named.keys() <= {setting.name + FILE_SUFFIX for setting in SETTINGS if setting.secret}
    used = {path.removeprefix("%d/") for path in [*named.values(), *arguments] if path.startswith("%d/")}
    assert used == set(loaded)


def test_the_administrators_url_and_the_master_key_are_never_with_the_service_together() -> None:
    service = unit("lineage-trails.service")["Service"]["LoadCredential"]
    migrate = unit("lineage-trails-migrate.service")["Service"]["LoadCredential"]
    assert not any("admin_url" in given for given in service)
    assert not any("master_key" in given for given in migrate)


def test_whoever_verifies_reads_all_tenants_and_is_no_administrator() -> None:
    """By the login that ``verifier.sql`` makes, as the page says; row security binds the administrator."""
    service = unit("lineage-trails-verify.service")["Service"]
    assert [given.partition(":")[0] for given in service["LoadCredential"]] == ["verifier_url", "master_key"]
    assert "TRAILS_DATABASE_URL_FILE=%d/verifier_url" in service["Environment"]
    page = (DEPLOY / "README.md").read_text("utf-8")
    assert re.search(r'^ *echo "postgresql://trails_verifier:\S+" >verifier_url$', page, re.MULTILINE)


def test_whoever_verifies_reads_the_heads_that_the_service_keeps() -> None:
    """One account and one folder for both, and the file that the settings name."""
    for key in ("User", "DynamicUser", "StateDirectory"):
        assert unit(SERVICES[0])["Service"][key] == unit(SERVICES[2])["Service"][key]
    settings = (DEPLOY / "systemd" / "trails.env").read_text("utf-8")
    [kept] = re.findall(r"^TRAILS_HEADS_FILE=(.*)$", settings, re.MULTILINE)
    assert f"--heads {kept.replace('/var/lib', '%S')}" in unit(SERVICES[2])["Service"]["ExecStart"][0]
