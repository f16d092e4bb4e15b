"""Signing in and out as a person does."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.watching import DESK, PHONE, Watch, fits, sign_in, window
from tests.integration.console.conftest import key_of
from tests.integration.http.client import Client
from tests.integration.http.serving import Running

LINE_PX = 24
"""A line of text; what is twice as high has broken into two."""


async def test_a_visit_begins_with_a_key_and_ends_at_the_button(page: Page, operator: Client) -> None:
    operator.create("scout")
    await page.goto("/")
    await expect(page.get_by_role("link", name="scout", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.goto("/")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_h17_the_way_back_after_signing_out_shows_nothing(page: Page, operator: Client) -> None:
    operator.create("scout")
    for place in ("/", "/agents/scout", "/agents/scout/log"):
        await page.goto(place)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    for _ in range(3):
        await page.go_back()
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert "scout" not in await page.inner_text("body")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_the_head_of_a_page_breaks_no_word_in_two_lines(
    browser: Browser, service: Running, operator: Client, size: tuple[int, int]
) -> None:
    long_name = "n" * 64
    async with window(browser, service.url, size=size) as page:
        for key in (service.operator_token, key_of(operator, "operator", long_name)):
            await sign_in(page, key)
            assert await fits(page)
            for part in await page.locator(".top .brand, .top nav a, .who > *").all():
                box = await part.bounding_box()
                if box is not None:
                    assert box["height"] < 2 * LINE_PX, await part.inner_text()
                    assert box["x"] >= 0
                    assert box["x"] + box["width"] <= size[0]
            await page.get_by_role("button", name="Sign out").click()


async def test_an_ended_visit_leads_to_the_sign_in_and_back(page: Page, service: Running) -> None:
    await page.context.clear_cookies()
    await page.goto("/?of=today")
    await sign_in(page, service.operator_token, then="/?of=today")
    assert page.url == f"{service.url}/?of=today"


async def test_a_wrong_key_is_said_in_words(browser: Browser, service: Running) -> None:
    async with window(browser, service.url) as page:
        await page.goto("/sign-in")
        await page.get_by_label("Key of an operator or auditor").fill("trk_wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("This is no key")


async def test_h23_the_watch_sees_what_leaves_and_what_is_refused(browser: Browser, service: Running) -> None:
    watch = Watch(service.url)
    async with window(browser, service.url, watch=watch) as page:
        await page.goto("/sign-in")
        for element in ("img", "script"):
            await page.evaluate(
                "name => document.body.append(Object.assign(document.createElement(name),"
                " {src: 'http://127.0.0.1:9/x'}))",
                element,
            )
        async with page.expect_event("pageerror"):
            await page.evaluate("setTimeout(() => { throw new Error('broken') })")
        await page.wait_for_function("document.images.length > 1 && document.images[1].complete")
        assert len(watch.foreign()) == 2
        assert [said for said in watch.trouble if "Content Security Policy" in said]
        assert [said for said in watch.trouble if "broken" in said]
        watch.requests.clear()
        watch.trouble.clear()
