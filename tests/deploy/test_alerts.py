"""The alerts: read and tried out by Prometheus' own tool, and about figures that there are."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml

from tests.support.server import ServerProcess
from tests.support.tools import DEPLOY, output_of, tool

FOLDER: Final = DEPLOY / "prometheus"

OF_OTHERS: Final = {
    "up",
    "node_filesystem_avail_bytes",
    "node_timex_offset_seconds",
    "node_timex_sync_status",
    "probe_ssl_earliest_cert_expiry",
    "kube_job_failed",
    "node_systemd_unit_state",
}
"""Of Prometheus itself and of the exporters that the file names."""

_METRIC: Final = re.compile(
    r"\b((?:trails|process|node|probe|kube)_[a-z0-9_]+|up)\b(?=\s*[{\[)>=/-]|\s*$|\s)"
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_promtool_reads_them() -> None:
    output_of(tool("promtool"), "check", "rules", "--lint-fatal", str(FOLDER / "alerts.yaml"))


def test_promtool_tries_them_out() -> None:
    output_of(tool("promtool"), "test", "rules", str(FOLDER / "alerts.test.yaml"))


def test_promtool_takes_the_example_of_a_scrape() -> None:
    example = FOLDER / "scrape.example.yaml"
    output_of(tool("promtool"), "check", "config", "--syntax-only", str(example))
    [job] = yaml.safe_load(example.read_text("utf-8"))["scrape_configs"]
    assert {job["job_name"]} == {
        found for rule in rules() for found in re.findall(r'job="(lineage-trails)"', rule["expr"])
    }


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "runbook"}
    assert len(rule["annotations"]["runbook"]) > 80


def test_every_figure_and_label_is_told_by_the_service(server: ServerProcess) -> None:
    with server.client() as client:
        client.post("/v1/agents", json={"agent_id": "a", "policy": None})
        text = client.get("/metrics").text
    told = set(re.findall(r"^([a-z_]+)(?:\{| )", text, re.MULTILINE))
    families = set(re.findall(r"^# TYPE ([a-z_]+) ", text, re.MULTILINE))
    used = {name for rule in rules() for name in _METRIC.findall(rule["expr"])}
    assert {name for name in used if name.startswith("trails_")}
    assert used - told - families - OF_OTHERS == set()
    assert used >= OF_OTHERS, "no longer used"
    for rule in rules():
        for metric, matchers in re.findall(r"\b(trails_\w+)\{([^}]*)\}", rule["expr"]):
            for label in set(re.findall(r"(\w+)\s*!?[=~]", matchers)) - {"job", "instance"}:
                assert re.search(rf"^{metric}\{{[^}}]*\b{label}=", text, re.MULTILINE), (metric, label)
