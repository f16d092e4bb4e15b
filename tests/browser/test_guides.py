"""The guides in a real browser: nothing breaks the policy, pictures are seen, and they fit a phone."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.async_api import Browser, expect

from app.console.guides import pages
from tests.browser.watching import DESK, PHONE, fits, window
from tests.integration.http.serving import Running


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_h23_pictures_are_seen_and_links_lead_to_their_place(
    browser: Browser, service: Running, theme: Literal["light", "dark"]
) -> None:
    async with window(browser, service.url, size=DESK, theme=theme) as page:
        await page.goto("/guides")
        await page.get_by_role("link", name="The SQL schema", exact=True).click()
        shown = page.locator("article img")
        assert await shown.evaluate("image => image.decode().then(() => image.naturalWidth)") > 500
        await page.goto("/guides/operators")
        await page.get_by_role("link", name="claim", exact=True).first.click()
        await expect(page.get_by_role("heading", name="Claiming")).to_be_in_viewport()
        await page.get_by_role("link", name="HTTP API", exact=True).click()
        await page.locator("#post-v1-agents-agent_id-actions").scroll_into_view_if_needed()
        await expect(page.get_by_text("Ask to act.")).to_be_visible()


async def test_they_fit_a_phone(browser: Browser, service: Running) -> None:
    async with window(browser, service.url, size=PHONE) as page:
        for name in ["api", *pages()]:
            await page.goto(f"/guides/{name}")
            assert await fits(page), name
