"""Traces in a real browser: a failed path by keyboard, large trees, hostile nodes (case H23), any width."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.watching import DESK, PHONE, Watch, fits, picture, sign_in, window
from tests.integration.http.client import Client
from tests.integration.http.posting import SESSION, fragment, node, node_id
from tests.integration.http.serving import Running
from tests.integration.http.test_sessions import TRAIL, tamper
from tests.support.postgres import Database

PLACE = f"/sessions/{SESSION}"
FAILED = {"status": "failed", "error": {"message": "index is down"}}

LEGIBLE_PX = 13
"""The height of a line of the smallest text that is read without effort: letters of about 12 pixels."""

ATTACKS = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    '"><svg onload=alert(1)><a href="https://evil.example/">x</a>',
    "javascript:alert(1)//' onfocus='alert(1)' autofocus='",
    "data:text/html,<script>alert(1)</script>",
    "![x](https://evil.example/x.png) [y](javascript:alert(1))",
    "{{ 7 * 7 }} {% raw %} ${7*7} <%= 7*7 %>",
    '" hx-get="https://evil.example/" hx-trigger="load" style="background:url(https://evil.example/)" x="',
    "\u202egnp.exe\u200b\u2028line",
)


def post(client: Client, *nodes: dict[str, Any], agent: str = "mailer", session: str = SESSION) -> None:
    reply = client.post(f"/v1/agents/{agent}/traces", fragment(*nodes, session_id=session))
    assert reply.status == 200, reply.raw


@pytest.fixture
def mailer(operator: Client) -> Client:
    """An observed agent."""
    return operator.create("mailer", None)


def story() -> list[dict[str, Any]]:
    """A plan with a failed call, what put it right, and an answer."""
    return [
        node(1, node_type="PLANNING", name="plan"),
        node(2, 1, name="look"),
        node(3, 2, name="search", outputs=FAILED),
        node(4, 3, node_type="SELF_CORRECTION", name="try a mirror"),
        node(5, 1, node_type="OUTPUT", name="answer"),
    ]


async def test_a_failed_path_is_followed_by_keyboard(page: Page, mailer: Client) -> None:
    post(mailer, *story())
    await page.goto(PLACE)
    await page.get_by_role("region", name="What failed").get_by_role("link", name="search").focus()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"#n3$"))
    await page.keyboard.press("Tab")
    at = page.locator("li:target").get_by_role("link", name="search").first
    await expect(at).to_be_focused()
    await page.keyboard.press("Enter")
    beside = page.get_by_label("Selected node")
    await expect(beside.get_by_role("heading", name="search")).to_be_visible()
    await expect(beside).to_contain_text("index is down")
    await expect(at).to_be_focused()
    await expect(page.locator("#said")).to_have_text("TOOL_CALL search, failed: shown beside the tree")
    await expect(page).to_have_url(re.compile(f"node={node_id(3)}"))
    # The next stop is what opens and closes what is below, the one after it the correction.
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    below = page.get_by_role("link", name="try a mirror")
    await expect(below).to_be_hidden()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(below).to_be_focused()
    await page.go_back()
    await expect(page).to_have_url(re.compile(r"#n3$"))


async def test_beside_the_tree_a_node_is_closed_again(page: Page, mailer: Client) -> None:
    post(mailer, *story())
    await page.goto(PLACE + "?failed=1")
    await expect(page.get_by_role("link", name="answer")).to_have_count(0)
    await page.get_by_role("link", name="try a mirror").click()
    beside = page.get_by_label("Selected node")
    await expect(beside.get_by_role("heading", name="try a mirror")).to_be_visible()
    await beside.get_by_role("link", name="plan").click()
    await expect(beside.get_by_role("heading", name="plan")).to_be_visible()
    await beside.get_by_role("link", name="close").click()
    await expect(beside.get_by_role("article")).to_have_count(0)
    await expect(page).to_have_url(re.compile(r"\?failed=1&?$"))
    await page.reload()
    await expect(page.get_by_role("link", name="try a mirror")).to_be_visible()


async def test_a_tree_of_two_thousand_nodes_can_be_read(page: Page, mailer: Client) -> None:
    nodes = [node(0, node_type="AGENT", name="root")]
    nodes += [node(n, (n - 1) // 3 if n % 2 else n - 1, name=f"call {n}") for n in range(1, 2_000)]
    nodes[1_500]["outputs"] = FAILED
    post(mailer, *nodes)
    await page.goto(PLACE)
    await expect(page.locator("li.node")).to_have_count(2_000)
    failed = page.locator("li.wrong > .line")
    await expect(failed).to_have_count(1)
    await expect(failed).to_be_visible()
    await failed.get_by_role("link").first.click()
    await expect(page.get_by_label("Selected node").get_by_role("heading", name="call 1500")).to_be_visible()
    assert await fits(page)


@pytest.mark.parametrize("size", [DESK, PHONE])
async def test_h23_whatever_a_node_holds_is_text_and_nothing_leaves(
    browser: Browser, service: Running, mailer: Client, size: tuple[int, int]
) -> None:
    nodes, calls = [], []
    for number, attack in enumerate(ATTACKS):
        hostile = {
            "name": attack,
            "inputs": {attack: [attack]},
            "thought_process": attack,
            "outputs": {"status": attack, "error": {"message": attack}},
            "metadata": {attack: attack, "model": attack, "timestamp": attack, "tokens": {attack: 1}},
        }
        nodes.append(node(number, number - 1 if number else None, **hostile))
        calls.append(node(100 + number, None, name=attack, outputs={"status": "failed", "error": attack}))
    post(mailer, *nodes, *calls)
    async with window(browser, service.url, size=size) as page:
        await sign_in(page, service.operator_token)
        for place in ("/sessions", PLACE, PLACE + "?failed=1", "/failures"):
            await page.goto(place)
            assert await fits(page), place
            assert await page.locator("img:not([src^='/static/'])").count() == 0
        for number, attack in enumerate(ATTACKS):
            await page.goto(f"{PLACE}?node={node_id(number)}")
            beside = page.get_by_label("Selected node")
            await expect(beside.get_by_role("heading", level=2)).to_have_text(_as_shown(attack))
            assert await fits(page), attack
            other = f"?node={node_id((number + 1) % len(ATTACKS))}"
            await page.locator(f"ol.nodes a[href*='{other}']").first.click()
            following = ATTACKS[(number + 1) % len(ATTACKS)]
            await expect(beside.get_by_role("heading", level=2)).to_have_text(_as_shown(following))


def _as_shown(text: str) -> str:
    for char in "\u202e\u200b\u2028":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return " ".join(text.split())


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize(
    "period", ["", "?since={hours}", "?since=2025-01-01"], ids=["days", "hours", "months"]
)
async def test_a_chart_is_legible_and_its_texts_stand_apart(
    browser: Browser, service: Running, mailer: Client, size: tuple[int, int], period: str
) -> None:
    post(mailer, *(node(number, None, outputs=FAILED) for number in range(1_200)))
    hours = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
    async with window(browser, service.url, size=size) as page:
        await sign_in(page, service.operator_token)
        await page.goto("/failures" + period.format(hours=hours))
        boxes = await page.locator(".chart text.axis").evaluate_all(
            "all => all.map(one => { const [box, around] ="
            " [one, one.ownerSVGElement].map(each => each.getBoundingClientRect());"
            " return [box.left, box.right, box.top, box.bottom, around.left, around.right] })"
        )
        assert len(boxes) > 6
        for left, right, top, bottom, edge, end in boxes:
            assert bottom - top >= LEGIBLE_PX
            assert edge - 0.5 <= left <= right <= end + 0.5
        for one, other in itertools.combinations(boxes, 2):
            assert one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2] + 2
        assert await fits(page)
        if folder := os.environ.get("TRAILS_TEST_PICTURES"):
            await picture(page, Path(folder) / f"failures-{size[0]}-{len(period)}.png")


FORGED = f"""UPDATE {TRAIL} SET signed_text = replace(signed_text, 'plan', 'forged')
 WHERE agent_id = 'mailer' AND seq = 1"""


async def test_a_node_that_cannot_be_shown_any_more_says_so(
    browser: Browser, service: Running, mailer: Client, database: Database
) -> None:
    post(mailer, *story())
    watch = Watch(service.url)
    async with window(browser, service.url, watch=watch) as page:
        await sign_in(page, service.operator_token, then=PLACE)
        await page.get_by_role("link", name="answer").click()
        beside = page.get_by_label("Selected node")
        await expect(beside.get_by_role("heading", name="answer")).to_be_visible()
        tamper(database, FORGED)
        await page.get_by_role("link", name="plan").first.click()
        await expect(page.get_by_role("heading", name="Not found")).to_be_visible()
        await expect(page.get_by_text("its record does not verify")).to_be_visible()
        await page.get_by_role("link", name="Sessions").click()
        await expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        assert [said for said in watch.trouble if "Response Status Error Code 404" not in said] == []
        watch.trouble.clear()


async def test_without_scripts_everything_is_there(
    browser: Browser, service: Running, mailer: Client
) -> None:
    post(mailer, *story())
    async with window(browser, service.url, size=PHONE, theme="dark", scripts=False) as page:
        await sign_in(page, service.operator_token)
        await page.goto("/sessions")
        await page.get_by_label("Tool").fill("search")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name=SESSION).click()
        assert await fits(page)
        await page.get_by_role("link", name="search", exact=True).last.click()
        await expect(page.get_by_label("Selected node")).to_contain_text("index is down")
        await page.goto("/failures")
        await page.get_by_text("The same as a table").click()
        await expect(page.get_by_role("row", name="search").first).to_be_visible()
        assert await fits(page)


async def test_a_deep_tree_fits_a_phone(browser: Browser, service: Running, mailer: Client) -> None:
    nodes = [node(n, n - 1 if n else None, name="x" * 300) for n in range(60)]
    post(mailer, *nodes, session=(session := str(uuid4())))
    async with window(browser, service.url, size=PHONE) as page:
        await sign_in(page, service.operator_token)
        await page.goto(f"/sessions/{session}")
        assert await fits(page)
        await expect(page.get_by_text("level 60")).to_be_visible()
