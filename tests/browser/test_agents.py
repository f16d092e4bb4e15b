"""The pages on agents and their records as a person uses them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.watching import DESK, PHONE, fits, picture, sign_in, window
from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.support.ledgers import TABLE
from tests.support.postgres import Database

ATTACKS = (
    "<img src=http://127.0.0.1:9/x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "</pre><svg onload=alert(1)>",
    "javascript:alert(1)",
    "[a](javascript:alert(1)) ![b](http://127.0.0.1:9/y)",
    "{{ 7*7 }}${7*7}",
    "\u202egnp.exe\u2066",
)
PAGES = (
    "/",
    "/agents/scout",
    "/agents/scout/log",
    "/agents/scout/log/3",
    "/agents/scout/verify",
    "/agents/scout/terminate",
    "/administration",
    "/keys",
)


def fill(operator: Client, count: int, agent: str = "scout") -> None:
    """So many events on the record of an agent."""
    listed = [{"type": "tick", "data": {"number": number}} for number in range(count)]
    for first in range(0, count, 1_000):
        assert (
            operator.post(f"/v1/agents/{agent}/events", {"events": listed[first : first + 1_000]}).status
            == 200
        )


def attack(operator: Client) -> None:
    """Puts attacks in every field that agents and people can write."""
    tools = {name: {"cost": 1, "requires_approval": index == 1} for index, name in enumerate(ATTACKS)}
    scout = operator.create("scout", {"budget": 50, "scar_limit": 90, "tools": tools})
    for text in ATTACKS:
        body: dict[str, Any] = {"tool": text, "input": {text: [text]}, "thought_process": text}
        scout.post("/v1/agents/scout/actions", body)
        scout.post("/v1/agents/scout/events", {"type": text, "data": {text: text}})
        operator.post("/v1/agents/scout/scars", {"severity": "minor", "reason": text, "action_id": "act-1"})
    operator.post("/v1/agents/scout/token/revoke", {"reason": ATTACKS[0]})


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_h23_every_page_shows_attacks_as_text_and_fits_its_window(
    browser: Browser, service: Running, operator: Client, size: tuple[int, int], theme: Any
) -> None:
    attack(operator)
    folder = os.environ.get("TRAILS_TEST_PICTURES")
    async with window(browser, service.url, size=size, theme=theme) as page:
        await sign_in(page, service.operator_token)
        for place in PAGES:
            await page.goto(place)
            await page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
            assert await fits(page), place
            assert await page.locator("main img, main script, main [onload], main [onerror]").count() == 0
            addresses = await page.eval_on_selector_all(
                "main a", "links => links.map(one => one.getAttribute('href'))"
            )
            assert [one for one in addresses if not re.match(r"/(?!/)|#", one)] == []
            if folder:
                name = place.strip("/").replace("/", "-") or "agents"
                await picture(page, Path(folder) / f"{name}-{theme}-{size[0]}.png")
        await page.goto("/agents/scout/log")
        assert ATTACKS[0] in await page.inner_text("main")
        assert "\\u202e" in await page.inner_text("main")


async def test_ids_of_keys_are_read_in_one_line_on_a_phone(
    browser: Browser, service: Running, operator: Client
) -> None:
    assert operator.post("/v1/keys", {"role": "auditor", "name": "Ada"}).status == 200
    async with window(browser, service.url, size=PHONE) as page:
        await sign_in(page, service.operator_token)
        await page.goto("/keys")
        for place in ("td .tag >> nth=0", "td code >> nth=0", "th code >> nth=0"):
            box = await page.locator(place).first.bounding_box()
            assert box is not None
            assert box["height"] < 40, place
        assert await fits(page)


async def test_a_log_of_ten_thousand_records_stays_usable(page: Page, operator: Client) -> None:
    operator.create("scout")
    fill(operator, 10_000)
    await page.goto("/agents/scout/log")
    records = page.locator("ol.records > li")
    await expect(records).to_have_count(100)
    await page.get_by_role("link", name="Older").first.click()
    await expect(records).to_have_count(100)
    await page.get_by_label("Go to record").fill("5000")
    await page.keyboard.press("Enter")
    await expect(records.first.locator(".seq")).to_have_text("5000")
    await page.get_by_text("Filter", exact=True).click()
    await page.get_by_label("Kind").select_option("policy")
    await page.get_by_role("button", name="Show").click()
    await expect(records).to_have_count(1)  # of ten thousand, in one page
    await expect(records.first.locator(".seq")).to_have_text("1")


async def test_a_record_is_opened_and_followed_by_keyboard(page: Page, operator: Client) -> None:
    operator.create("scout")
    fill(operator, 3)
    await page.goto("/agents/scout/log")
    summary = page.locator("ol.records summary").first
    await summary.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Payload of record 4")).to_contain_text('"number": 2')
    await page.get_by_role("link", name="Permanent address of record 4").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Record 4")).to_be_visible()
    await page.get_by_role("link", name="Record 3", exact=True).click()
    await expect(page.get_by_role("heading", name="Record 3")).to_be_visible()


async def test_terminating_asks_for_the_agents_id(page: Page, operator: Client) -> None:
    operator.create("scout")
    await page.goto("/agents/scout")
    await page.get_by_role("link", name="Terminate").click()
    await page.get_by_label("Reason").fill("it ran <amok>")
    await page.get_by_label("Type the agent").fill("other")
    await page.get_by_role("button", name="Terminate for good").click()
    await expect(page.get_by_role("alert")).to_contain_text("nothing was done")
    assert operator.get("/v1/agents/scout").json["alive"] is True
    await page.get_by_label("Type the agent").fill("scout")
    await page.get_by_role("button", name="Terminate for good").click()
    await expect(page.get_by_text("Terminated: it ran <amok>")).to_be_visible()
    assert operator.get("/v1/agents/scout").json["alive"] is False
    await page.goto("/agents/scout/terminate")
    await expect(page.get_by_role("alert")).to_contain_text("already terminated")


async def test_an_export_line_is_shown_in_order_and_copied_as_it_was_signed(
    page: Page, operator: Client
) -> None:
    operator.create("scout", None)
    data = {"file": "\u202egnp.exe\u2066", "word": "\u200bfine"}
    assert operator.post("/v1/agents/scout/events", {"type": "t", "data": data}).status == 200
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto("/agents/scout/log/1")
    shown = await page.get_by_label("Export line").inner_text()
    assert "\\u202egnp.exe\\u2066" in shown
    await page.get_by_role("button", name="Copy the line").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied in operator.get("/v1/agents/scout/log").raw.decode()
    assert data["file"] in copied


async def test_the_head_is_copied_and_asked_for_later(page: Page, operator: Client) -> None:
    operator.create("scout")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto("/agents/scout")
    await page.get_by_role("button", name="Copy").first.click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    checkpoint = await page.evaluate("navigator.clipboard.readText()")
    head = operator.get("/v1/agents/scout").json["head"]
    assert checkpoint == f"{head['seq']}:{head['hash']}"
    await page.goto("/agents/scout/verify")
    await page.get_by_label("Checkpoint").fill(checkpoint)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("The chain still has this record")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
async def test_a_verification_tells_how_far_it_is_and_finds_a_changed_row(
    browser: Browser, service: Running, operator: Client, database: Database, scripts: bool
) -> None:
    operator.create("scout")
    fill(operator, 2_000)
    with psycopg.connect(database.admin_url) as admin:
        admin.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER ALL".encode())
        change = f"UPDATE {TABLE} SET actor = 'another', created_at = created_at WHERE seq = 777"
        admin.execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT trail_mirror".encode())
        admin.execute(change.encode())
    async with window(browser, service.url, scripts=scripts) as page:
        await sign_in(page, service.operator_token)
        await page.goto("/agents/scout/verify")
        await page.get_by_role("button", name="Verify").click()
        if not scripts:
            while await page.get_by_role("link", name="Look again").count():
                await page.get_by_role("link", name="Look again").click()
        await expect(page.get_by_role("alert")).to_contain_text("Does not verify")
        row = page.locator(".verdict tbody tr")
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text("mirror")
        await row.get_by_role("link", name="777").click()
        await expect(page.get_by_text("Does not verify (mirror)")).to_be_visible()
        if folder := os.environ.get("TRAILS_TEST_PICTURES"):
            await picture(page, Path(folder) / f"bad-record-{scripts}.png")
            await page.goto("/agents/scout/verify")
            await picture(page, Path(folder) / f"verdict-{scripts}.png")
