"""``deploy/README.md``: what it names is there, and what it has people type is what the programs take."""

from __future__ import annotations

import re
import shlex
from typing import Final

import pytest

from app.cli.main import trails
from app.cli.server import DRAIN_SECS
from app.settings import FILE_SUFFIX, SETTINGS
from db import migrate
from tests.support.pages import page_at
from tests.support.tools import DEPLOY, ROOT, output_of, tool

PAGE: Final = page_at(DEPLOY / "README.md")
COMMANDS: Final = "\n".join(PAGE.of_kind("sh")).replace("\\\n", " ")


@pytest.mark.parametrize("link", PAGE.links)
def test_links_lead_somewhere(link: str) -> None:
    path, _, fragment = link.partition("#")
    target = (DEPLOY / path).resolve() if path else PAGE.path
    assert target.is_relative_to(ROOT)
    assert target.exists()
    if fragment:
        assert fragment in page_at(target).anchors


def test_every_folder_and_file_is_told_of() -> None:
    told = {link.partition("#")[0].partition("/")[0] for link in PAGE.links}
    here = {path.name for path in DEPLOY.iterdir()} - {"README.md", "secrets", ".env"}
    assert here <= told


def test_the_shell_reads_every_command() -> None:
    for block in PAGE.of_kind("sh"):
        output_of(tool("bash"), "-n", "-c", block)


def test_files_that_commands_name_are_there() -> None:
    for file in set(re.findall(r"deploy/[\w./*-]+", COMMANDS)):
        assert list(ROOT.glob(file)), file


def test_commands_of_ours_are_taken() -> None:
    lines = re.findall(
        r"(?:^|\badmin )(trails )?((?:key|sql-login|tenant|migrate|verify) .*)$", COMMANDS, re.MULTILINE
    )
    assert len(lines) >= 5
    for _, line in lines:
        words = shlex.split(line)
        command = trails.get_command(None, words[0])  # type: ignore[arg-type]  # it does not look at it
        for word in words[1:]:
            if hasattr(command, "commands") and word in command.commands:
                command = command.commands[word]
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_settings_are_settings() -> None:
    of_files = {"TRAILS_ADMIN_PASSWORD", "TRAILS_APP_PASSWORD", "TRAILS_VERIFIER_PASSWORD"}
    known = {setting.name for setting in SETTINGS}
    known |= {setting.name + FILE_SUFFIX for setting in SETTINGS if setting.secret}
    assert set(re.findall(r"TRAILS_[A-Z_]+", PAGE.text)) <= known | of_files
    script = "".join(
        (DEPLOY / "postgres" / name).read_text("utf-8") for name in ("roles.sql", "verifier.sql")
    )
    assert all(name in script for name in of_files)


def test_secrets_that_are_made_are_those_that_units_load() -> None:
    made = set(re.findall(r">(\w+)$", COMMANDS, re.MULTILINE)) | {
        "master_key",
        "operator_token",
        "metrics_token",
    }
    units = "\n".join(path.read_text("utf-8") for path in (DEPLOY / "systemd").glob("*.service"))
    assert made == set(re.findall(r"^LoadCredential=(\w+):", units, re.MULTILINE))


def test_figures_of_the_upgrade_are_the_programs_own() -> None:
    assert "no table longer than five seconds" in PAGE.text
    source = (ROOT / "db" / "migrate.py").read_text("utf-8")
    assert "SET LOCAL lock_timeout = 5000" in source
    assert migrate.STATEMENT_MILLISECONDS == 5 * 60 * 1000
    assert DRAIN_SECS < 30


def test_the_version_is_one() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert version is not None
    for path in [
        *DEPLOY.rglob("*.yaml"),
        DEPLOY / "Dockerfile",
        DEPLOY / "README.md",
        DEPLOY / ".env.example",
    ]:
        if "grafana" in path.parts:
            continue
        text = path.read_text("utf-8")
        assert set(re.findall(r"lineage-trails:(\d+\.\d+\.\d+)", text)) <= {version[1]}, path
        assert set(re.findall(r"newTag: (\S+)", text)) <= {version[1]}, path
    assert f"lineage-trails-migrate-{version[1].replace('.', '-')}" in COMMANDS
