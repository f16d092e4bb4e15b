"""Deciding in the browser: what is shown is what is decided, live, by keyboard, on a phone, as text alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from app.client import Guard
from tests.browser.watching import PHONE, Watch, fits, sign_in, window
from tests.integration.console.conftest import key_of
from tests.integration.console.outage import away
from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.support.postgres import Database

POLICY: dict[str, Any] = {
    "budget": 50,
    "scar_limit": 10,
    "tools": {},
    "default_rule": {"cost": 5, "requires_approval": True},
}

ATTACKS = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "'\"><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7*7 }}",
    "![x](http://127.0.0.1:9/x)",
    "</pre></textarea><script src=//127.0.0.1:9/x></script>",
]


def ask(client: Client, agent_id: str, tool: str = "send_email", value: Any = None) -> None:
    reply = client.post(f"/v1/agents/{agent_id}/actions", {"tool": tool, "input": value})
    assert reply.json["decision"] == "pending_approval", reply.raw


def status(operator: Client, action: str = "act-1", agent_id: str = "scout") -> str:
    return str(operator.get(f"/v1/agents/{agent_id}/actions/{action}").json["status"])


@pytest.fixture
def scout(operator: Client) -> Client:
    return operator.create("scout", POLICY)


async def test_an_agent_waits_until_a_person_approves_what_is_shown(
    page: Page, service: Running, operator: Client, scout: Client, tmp_path: Path
) -> None:
    with Guard(service.url, scout.token, spool=tmp_path, approval_timeout=30) as guard:

        @guard.tool
        def send_email(digits: int) -> str:
            return f"sent {digits}"

        waiting = asyncio.create_task(asyncio.to_thread(send_email, 12345678901234567890123))
        await page.goto("/approvals")
        await page.get_by_role("link", name="Decide").click()
        await expect(page.get_by_label("Input")).to_contain_text("12345678901234567890123")
        await page.get_by_label("Note").fill("checked <b>twice</b>")
        await page.get_by_role("button", name="Approve send_email for 5").click()
        await expect(page.get_by_role("status")).to_contain_text("allowed approved by operator")
        assert await asyncio.wait_for(waiting, 20) == "sent 12345678901234567890123"
    record = operator.get("/v1/agents/scout/log").json["records"][4]
    assert record["payload"]["note"] == "checked <b>twice</b>"


async def test_a_rejection_with_a_scar_is_told_to_the_agent(
    page: Page, operator: Client, scout: Client
) -> None:
    ask(scout, "scout")
    await page.goto("/approvals/scout/act-1")
    await page.get_by_label("Reason").fill("wrong address")
    await page.get_by_label("Scar for having asked").select_option("moderate")
    await page.get_by_role("button", name="Reject send_email").click()
    await expect(page.get_by_role("status")).to_contain_text("denied by operator: wrong address")
    told = operator.get("/v1/agents/scout").json
    assert [scar["severity"] for scar in told["scars"]] == ["moderate"]
    await expect(page.get_by_role("link", name="Nothing more waits")).to_be_visible()


async def test_the_queue_renews_itself_and_the_title_counts(page: Page, scout: Client) -> None:
    await page.goto("/approvals")
    await expect(page.get_by_text("Nothing waits for a person.")).to_be_visible()
    assert await page.title() == "Approvals · Lineage Trails"
    ask(scout, "scout", value={"to": "first"})
    await expect(page.get_by_text('"first"')).to_be_visible()
    await expect(page).to_have_title("(1) Approvals · Lineage Trails")
    await page.locator("#open-scout-act-1").focus()
    await page.get_by_text("Input").click()
    await page.locator("#open-scout-act-1").focus()
    ask(scout, "scout", value={"to": "second"})
    await expect(page.get_by_text('"second"')).to_be_visible()
    await expect(page.locator("#waiting")).to_have_text("2 waiting")
    await expect(page.locator("#open-scout-act-1")).to_be_focused()


async def test_a_queue_that_renews_itself_no_more_says_so(
    browser: Browser, service: Running, scout: Client, database: Database
) -> None:
    ask(scout, "scout")
    watch = Watch(service.url)
    async with window(browser, service.url, watch=watch) as page:
        await sign_in(page, service.operator_token, then="/approvals")
        note = page.get_by_text("The connection is lost")
        await expect(page.locator("#open-scout-act-1")).to_be_visible()
        await expect(note).to_be_hidden()
        with away(database):
            await expect(note).to_be_visible()
        await expect(note).to_be_hidden()
        ask(scout, "scout", value={"to": "second"})
        await expect(page.get_by_text('"second"')).to_be_visible()
        watch.trouble.clear()


async def test_g10_who_comes_too_late_sees_what_was_decided(
    page: Page, operator: Client, scout: Client
) -> None:
    ask(scout, "scout")
    await page.goto("/approvals/scout/act-1")
    body = {"approver": "Bob", "reason": "no"}
    assert operator.post("/v1/agents/scout/actions/act-1/reject", body).status == 200
    async with page.expect_response("**/approvals/scout/act-1") as answered:
        await page.get_by_role("button", name="Approve send_email").click()
    assert (await answered.value).status == 409
    await expect(page.get_by_role("alert")).to_contain_text(
        "came too late and was not taken: action act-1 is denied"
    )
    await expect(page.get_by_role("status")).to_contain_text("denied by operator: no")
    await page.get_by_role("link", name="What is on record of it").click()
    await expect(page.get_by_role("heading", name="Log of scout")).to_be_visible()


async def test_what_can_be_approved_no_more_says_so(page: Page, operator: Client) -> None:
    rule = {"cost": 5, "requires_approval": True, "approval_ttl_secs": 1}
    hasty = operator.create("hasty", POLICY | {"default_rule": rule})
    ask(hasty, "hasty")
    for _ in range(100):
        if "expired" in operator.get("/v1/approvals").json["approvals"][0]:
            break
        await asyncio.sleep(0.1)
    await page.goto("/approvals/hasty/act-1")
    await expect(page.get_by_text("goes on record as denied")).to_be_visible()
    await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    await page.get_by_role("button", name="Put it on record as too late").click()
    await expect(page.get_by_role("status")).to_contain_text("denied approval_expired")


async def test_the_record_of_the_request_is_a_step_away(page: Page, scout: Client) -> None:
    why = {"tool": "send_email", "thought_process": "the customer asked for it"}
    assert scout.post("/v1/agents/scout/actions", why).status == 200
    await page.goto("/approvals/scout/act-1")
    await page.get_by_role("link", name="record 2").click()
    await expect(page.get_by_text("the customer asked for it").first).to_be_visible()


async def test_words_of_a_link_stay_whole_in_the_table_of_keys(page: Page, operator: Client) -> None:
    key_of(operator, "operator", "Ann Auditor", expires_at="2100-01-01T00:00:00Z")
    await page.set_viewport_size({"width": 1000, "height": 900})
    await page.goto("/keys")
    lines = "e => e.getClientRects().length"
    assert await page.get_by_role("link", name="Revoke Ann Auditor").evaluate(lines) == 1


@pytest.mark.usefixtures("scout")
async def test_who_asked_is_told_why_it_cannot_approve(page: Page, operator: Client) -> None:
    ask(operator, "scout")
    await page.goto("/approvals/scout/act-1")
    await expect(page.get_by_role("button", name="Approve")).to_be_disabled()
    await expect(page.get_by_text("was asked for with this key")).to_be_visible()
    await expect(page.get_by_role("button", name="Reject")).to_be_enabled()


async def test_an_auditor_sees_and_does_not_decide(
    browser: Browser, service: Running, operator: Client, scout: Client
) -> None:
    ask(scout, "scout")
    async with window(browser, service.url) as page:
        await sign_in(page, key_of(operator, "auditor"), then="/approvals")
        await page.get_by_role("link", name="Look at it").click()
        await expect(page.get_by_text("decides nothing")).to_be_visible()
        await expect(page.get_by_role("button", name="Approve")).to_have_count(0)


async def test_h23_whatever_is_written_is_shown_as_text(page: Page, scout: Client) -> None:
    for number, attack in enumerate(ATTACKS, 1):
        ask(scout, "scout", attack[:128], {attack: [attack], "order": "\u202egnp.exe\u2066"})
        await page.goto("/approvals")
        await expect(page.get_by_role("heading", name=attack[:40])).to_be_visible()
        await page.goto(f"/approvals/scout/act-{number}")
        shown = await page.get_by_label("Input").text_content()
        assert json.loads(shown or "") == {attack: [attack], "order": "\u202egnp.exe\u2066"}
        assert "\\u202e" in (shown or "")
        await page.get_by_label("Reason").fill(attack)
        await page.get_by_role("button", name="Reject").click()
        await expect(page.get_by_role("status")).to_contain_text(attack)


async def test_an_ended_visit_leads_back_to_the_decision(page: Page, service: Running, scout: Client) -> None:
    ask(scout, "scout")
    await page.goto("/approvals/scout/act-1")
    await page.context.clear_cookies()
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await sign_in(page, service.operator_token, then="/approvals/scout/act-1")
    await expect(page.get_by_role("button", name="Approve")).to_be_enabled()


async def test_the_keyboard_is_enough(page: Page, operator: Client, scout: Client) -> None:
    ask(scout, "scout")
    await page.goto("/approvals")
    await _tab_to(page, "send_email")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/approvals/scout/act-1")
    await _tab_to(page, "", tag="TEXTAREA")
    await page.keyboard.type("fine")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("allowed")
    assert status(operator) == "allowed"


async def _tab_to(page: Page, text: str, tag: str = "A", most: int = 40) -> None:
    for _ in range(most):
        await page.keyboard.press("Tab")
        found = await page.evaluate("[document.activeElement.tagName, document.activeElement.textContent]")
        if found[0] == tag and found[1].strip() == text:
            return
    raise AssertionError(f"the keyboard does not reach {text or tag}")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_it_fits_a_phone_and_needs_no_scripts(
    browser: Browser, service: Running, scout: Client, theme: Any
) -> None:
    ask(scout, "scout", "a" * 128, {"long": "x" * 5_000, "list": list(range(100))})
    async with window(browser, service.url, size=PHONE, theme=theme, scripts=False) as page:
        await sign_in(page, service.operator_token, then="/approvals")
        assert await fits(page)
        await page.get_by_role("link", name="Decide").click()
        assert await fits(page)
        await page.get_by_label("Note").fill("seen")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("status")).to_contain_text("allowed")
