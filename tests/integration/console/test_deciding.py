"""Decisions at the same moment, from pages and from the API: one counts, whoever is faster (case G10)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.integration.console.browser import Visit
from tests.integration.console.conftest import key_of
from tests.integration.console.reading import text_of
from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.support.cli import run_trails

POLICY: dict[str, Any] = {
    "budget": 50,
    "scar_limit": 10,
    "tools": {"send_email": {"cost": 5, "requires_approval": True}},
}
AT_ONCE = 20

FORMS: list[dict[str, str]] = [
    {"decision": "approve", "note": "fine"},
    {"decision": "reject", "reason": "no"},
    {"decision": "reject", "reason": "never", "scar": "moderate"},
]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("approve", {"approver": "Bob", "note": "fine"}),
    ("reject", {"approver": "Bob", "reason": "no"}),
    ("reject", {"approver": "Bob", "reason": "never", "scar": "moderate"}),
]
Answer = tuple[int, str, str]
"""What was decided (``approve``, ``reject``, ``reject and scar``), the status, and what was told."""


def form_of(visit: Visit, place: str) -> dict[str, str]:
    """What the forms of an action's page carry."""
    page = visit.get(place).text
    return {name: _field(page, name) for name in ("csrf", "seen")}


def _field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert found is not None, name
    return unescape(found[1])


def _called(decision: str, scar: str | None) -> str:
    return f"{decision} and scar" if scar else decision


def from_page(visit: Visit, place: str, form: dict[str, str]) -> Callable[[], Answer]:
    other = Visit(f"http://{visit.address}")
    other.cookies = dict(visit.cookies)

    def send() -> Answer:
        shown = other.post(place, form)
        return _called(form["decision"], form.get("scar")), shown.status, text_of(shown.text)

    return send


def from_api(client: Client, path: str, decision: str, body: dict[str, Any]) -> Callable[[], Answer]:
    def send() -> Answer:
        reply = client.post(f"{path}/{decision}", body)
        return _called(decision, body.get("scar")), reply.status, reply.raw.decode()

    return send


def at_once(calls: list[Callable[[], Answer]]) -> list[Answer]:
    """All of them, none before the last is ready."""
    ready = Barrier(len(calls))

    def call(one: Callable[[], Answer]) -> Answer:
        ready.wait(20)
        return one()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, calls))


@pytest.mark.parametrize("shift", range(3))
def test_g10_of_twenty_decisions_from_pages_and_the_api_one_counts(
    service: Running, operator: Client, tmp_path: Path, shift: int
) -> None:
    scout = operator.create("scout", POLICY)
    assert scout.post("/v1/agents/scout/actions", {"tool": "send_email"}).json["action_id"] == "act-1"
    place, path = "/approvals/scout/act-1", "/v1/agents/scout/actions/act-1"
    people = [Visit(service.url).sign_in(key_of(operator, "operator", name)) for name in ("Ada", "Grace")]
    clients = [operator.as_(key_of(operator, "operator", name)) for name in ("Alan", "Edsger")]
    calls: list[Callable[[], Answer]] = []
    for number in range(AT_ONCE // 2):
        visit, client = people[number % 2], clients[number % 2]
        calls.append(from_page(visit, place, form_of(visit, place) | FORMS[(number + shift) % 3]))
        calls.append(from_api(client, path, *BODIES[(number + shift) % 3]))
    answers = at_once(calls)

    won = [called for called, status, _ in answers if status in {200, 303}]
    assert len(won) == 1, [(called, status) for called, status, _ in answers]
    state = "allowed" if won == ["approve"] else "denied"
    lost = [(status, said) for _, status, said in answers if status not in {200, 303}]
    assert {status for status, _ in lost} == {409}
    assert all(f"action act-1 is {state}" in said for _, said in lost), lost

    told = operator.get("/v1/agents/scout").json
    assert told["spent"] == (5 if won == ["approve"] else 0)
    assert told["scar_score"] == (3 if won == ["reject and scar"] else 0)
    assert (told["actions_allowed"], told["actions_denied"]) == ((1, 0) if state == "allowed" else (0, 1))
    assert told["actions_pending"] == 0
    kinds = [record["kind"] for record in operator.get("/v1/agents/scout/log").json["records"]]
    decided = [kind for kind in kinds if kind in {"action_allowed", "action_rejected", "action_denied"}]
    assert len(decided) == 1
    assert kinds.count("scar") == (1 if won == ["reject and scar"] else 0)
    assert operator.get("/v1/agents/scout/verify").json["ok"] is True
    exported = tmp_path / "scout.jsonl"
    exported.write_bytes(operator.get("/v1/agents/scout/export").raw)
    verified = run_trails("verify", exported, "--public-key", told["public_key"])
    assert verified.code == 0, verified.err + verified.out
    assert "Nothing waits for a person." in people[0].get("/approvals").text


def test_g10_a_late_form_is_answered_with_what_was_decided_and_by_whom(
    service: Running, operator: Client
) -> None:
    scout = operator.create("scout", POLICY)
    scout.post("/v1/agents/scout/actions", {"tool": "send_email"})
    place = "/approvals/scout/act-1"
    first, second = (
        Visit(service.url).sign_in(key_of(operator, "operator", name)) for name in ("Ada", "Grace")
    )
    late = form_of(second, place)
    assert first.post(place, form_of(first, place) | FORMS[1]).status == 303
    for form in itertools.chain(FORMS, FORMS):
        shown = second.post(place, late | form)
        assert shown.status == 409
        assert "action act-1 is denied" in shown.text
        assert "by Ada: no" in text_of(shown.text)
    assert operator.get("/v1/agents/scout").json["scar_score"] == 0
