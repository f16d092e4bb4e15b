"""Files that the console offers: a tenant's evidence, the failed calls of a period; who may have them."""

from __future__ import annotations

import csv
import io
import re
from html import unescape

from tests.integration.console.browser import Visit
from tests.integration.console.conftest import key_of
from tests.integration.console.test_agent_pages import administrative
from tests.integration.http.client import Client

FILE = re.compile(r'href="(/export/failures\.csv\?[^"]+)" download')


def fail(operator: Client, name: str, tool: str = "search") -> None:
    """An agent whose call of a tool failed."""
    agent = operator.create(name, {"budget": 50, "scar_limit": 10, "tools": {tool: {"cost": 1}}})
    asked = agent.post(f"/v1/agents/{name}/actions", {"tool": tool}).json
    path = f"/v1/agents/{name}/actions/{asked['action_id']}/outcome"
    assert agent.post(path, {"status": "failure", "detail": "index is down"}).status == 200


def rows(visit: Visit, place: str) -> list[list[str]]:
    """The agents and tools of the file that a page leads to."""
    found = FILE.search(visit.get(place).text)
    assert found is not None
    shown = visit.get(unescape(found[1]))
    assert shown.status == 200, shown.text
    assert shown.headers["content-disposition"].endswith('.csv"')
    read = csv.DictReader(io.StringIO(shown.text))
    return sorted([row["agent_id"], row["tool"]] for row in read if row["agent_id"])


def test_what_failed_in_the_period_shown_is_a_file(signed_in: Visit, operator: Client) -> None:
    fail(operator, "scout")
    fail(operator, "other", "rm")
    assert rows(signed_in, "/failures") == [["other", "rm"], ["scout", "search"]]
    assert rows(signed_in, "/failures?agent=scout") == [["scout", "search"]]
    assert "Of every tool." in signed_in.get("/failures?tool=rm").text
    assert rows(signed_in, "/failures?tool=rm") == [["other", "rm"], ["scout", "search"]]
    [*_, last] = administrative(operator, "export_begun")
    assert last["format"] == "csv"
    assert "failed_tool_calls" in str(last)


def test_the_file_keeps_to_the_period(signed_in: Visit, operator: Client) -> None:
    fail(operator, "scout")
    shown = signed_in.get("/export/failures.csv?since=2020-01-01&until=2020-02-01")
    assert shown.status == 200
    assert "index is down" not in shown.text
    assert signed_in.get("/export/failures.csv?since=someday").status == 400
    assert signed_in.get("/export/failures.csv?agent=a/b").status == 400


def test_the_evidence_of_a_tenant_is_a_file_for_whoever_may_export(
    signed_in: Visit, visit: Visit, operator: Client
) -> None:
    operator.create("scout", None)
    assert 'href="/export.zip" download' in signed_in.get("/administration").text
    auditor = visit.sign_in(key_of(operator, "auditor"))
    assert 'href="/export.zip" download' in auditor.get("/administration").text
    shown = auditor.get("/export.zip")
    assert shown.status == 200
    assert shown.headers["content-type"] == "application/zip"
    assert shown.text.startswith("PK")
    assert administrative(operator, "exported")[-1]["actor"] == "alice"


def test_files_want_somebody_who_is_signed_in(visit: Visit) -> None:
    for place in ("/export.zip", "/export/failures.csv"):
        assert visit.get(place).status == 303
