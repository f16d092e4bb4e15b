"""How long each of the deployments waits for a service that was told to stop (case H27)."""

from __future__ import annotations

import re

import pytest
import yaml

from app.cli.server import DRAIN_SECS
from app.ledger.watch.heads import STOP_SECS
from app.settings import Settings
from tests.support.tools import DEPLOY
from tests.support.units import unit

SPARE_SECS = 5
"""For what the system itself does between the signal and the end."""


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)(s|m)", text)
    assert match is not None, text
    return int(match[1]) * (60 if match[2] == "m" else 1)


def _compose() -> tuple[dict[str, str], int]:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]["service"]
    return service["environment"], _seconds(service["stop_grace_period"])


def _systemd() -> tuple[dict[str, str], int]:
    lines = (DEPLOY / "systemd" / "trails.env").read_text("utf-8").splitlines()
    told = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return told, int(unit("lineage-trails.service")["Service"]["TimeoutStopSec"][-1])


def _kubernetes() -> tuple[dict[str, str], int]:
    told = yaml.safe_load((DEPLOY / "kubernetes" / "configmap.yaml").read_text("utf-8"))["data"]
    pod = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text("utf-8"))["spec"]["template"]
    return told, pod["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("deployment", [_compose, _systemd, _kubernetes])
def test_h27_nobody_is_killed_who_still_works(deployment: object) -> None:
    assert callable(deployment)
    told, waits = deployment()
    delay = Settings.from_env({"TRAILS_STOP_DELAY_SECS": told["TRAILS_STOP_DELAY_SECS"]}).stop_delay_secs
    needed = delay + DRAIN_SECS + STOP_SECS
    assert waits >= needed + SPARE_SECS
    assert waits <= needed + 30, "an administrator would wait for nothing"


@pytest.mark.parametrize("deployment", [_compose, _systemd, _kubernetes])
def test_every_setting_that_is_given_is_one(deployment: object) -> None:
    assert callable(deployment)
    told, _ = deployment()
    plain = {name: value for name, value in told.items() if not name.endswith("_FILE") and "${" not in value}
    Settings.from_env(plain)
    from app.cli.unknown import warn_of_unknown_settings

    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("app.cli.unknown.complain", said.append)
        warn_of_unknown_settings(told)
    assert said == []


def test_h27_systemd_signals_the_parent_alone() -> None:
    """Each server process would get the signal twice, and a second one ends the time that it is to wait."""
    service = unit("lineage-trails.service")["Service"]
    assert service["KillMode"] == ["mixed"]
    assert service["KillSignal"] == ["SIGTERM"]


def test_h27_a_container_gets_the_signal_itself() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert re.search(r"^STOPSIGNAL SIGTERM$", dockerfile, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["', dockerfile, re.MULTILINE), "a shell would not hand it on"
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]["service"]
    assert "entrypoint" not in service
