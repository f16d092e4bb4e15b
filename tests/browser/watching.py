"""A window of a real browser that is watched: what it asks for, and whatever goes wrong in it.

``window`` is what tests open; at its end everything that the pages did is judged (``Watch.check``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, Response

PATIENCE_MS: Final = 15_000
"""How long a test waits for what must come; none waits for this to pass."""

DESK: Final = (1280, 900)
PHONE: Final = (390, 844)
"""Widths and heights of windows, in CSS pixels."""

_STATUS: Final = "Failed to load resource: the server responded with a status of 4"
"""What Chromium says of an answer that a test may well expect; its own kind of error is judged by status."""


class Watch:
    """Everything that the pages of one window asked for, and what went wrong in them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.requests: list[str] = []
        self.trouble: list[str] = []

    def context(self, context: BrowserContext) -> None:
        """Watches every page that the window opens, also those that a page opens itself."""
        context.on("request", self._request)
        context.on("response", self._response)
        context.on("page", self._page)

    def foreign(self) -> list[str]:
        """Requests to elsewhere, also those that the policy stopped: no page of ours has cause for one."""
        return [asked for asked in self.requests if not asked.startswith(self._url + "/")]

    def check(self) -> None:
        """Fails when a request left the service, the policy was violated, or a script or a page failed."""
        assert self.foreign() == []
        assert self.trouble == []

    def _page(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.trouble.append(f"script failed: {error}"))
        page.on("dialog", self._dialog)
        page.on("websocket", lambda socket: self.trouble.append(f"socket to {socket.url}"))

    def _request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _response(self, response: Response) -> None:
        if response.status >= 500:
            self.trouble.append(f"{response.status} from {response.url}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(_STATUS):
            self.trouble.append(f"{message.text} ({message.location.get('url')})")

    async def _dialog(self, dialog: Dialog) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        await dialog.dismiss()


@asynccontextmanager
async def window(
    browser: Browser,
    url: str,
    *,
    size: tuple[int, int] = DESK,
    theme: Literal["light", "dark"] = "light",
    scripts: bool = True,
    watch: Watch | None = None,
) -> AsyncIterator[Page]:
    """A window of its own (no cookies yet) with one page, whose addresses are relative to ``url``.

    Args:
        browser: the running browser.
        url: the service.
        size: width and height in CSS pixels.
        theme: what the visitor's system prefers.
        scripts: whether the browser runs any.
        watch: what happens is noted here, for tests that look at it themselves; it is judged in any case.
    """
    watch = watch or Watch(url)
    context = await browser.new_context(
        base_url=url,
        viewport={"width": size[0], "height": size[1]},
        color_scheme=theme,
        java_script_enabled=scripts,
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    watch.context(context)
    try:
        yield await context.new_page()
        watch.check()
    finally:
        await context.close()


async def sign_in(page: Page, key: str, then: str = "/") -> None:
    """Signs in by the form, as a person does, and goes on to a page."""
    await page.goto("/sign-in" if then == "/" else then)
    await page.get_by_label("Key of an operator or auditor").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("button", name="Sign out").wait_for()


async def fits(page: Page) -> bool:
    """Whether the page is no wider than its window; wide tables scroll within it."""
    return bool(await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


async def picture(page: Page, path: Path) -> None:
    """A picture of the whole page, for people to look at."""
    await page.screenshot(path=path, full_page=True)
