"""The console in a real browser: Chromium of the system, started once a session of tests.

Tests are coroutines. They all run in one event loop, the browser's (others have one each), so a fixture with
``await`` that they use is made with ``pytest_asyncio.fixture(loop_scope="session")``; ``pool``, ``admin`` and
``app`` of tests/conftest.py belong to other loops and are not for here. What blocks for a moment, such as the
API's ``Client``, may be called as it is: the service runs in a thread of its own, and the browser does, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from tests.browser.watching import sign_in, window
from tests.integration.http.conftest import operator, service
from tests.integration.http.serving import Running

__all__ = ["operator", "service"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of this folder into the browser's loop."""
    for item in items:
        if item.path.is_relative_to(_HERE) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def _program() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium without a screen."""
    program = _program()
    # As root, which may not use it, Chromium starts without its sandbox alone; it shows our own pages only.
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=program, args=[*root, "--disable-dev-shm-usage"]
        )
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, service: Running) -> AsyncIterator[Page]:
    """A page that is signed in with the operator's token; at the end its window is judged."""
    async with window(browser, service.url) as opened:
        await sign_in(opened, service.operator_token)
        yield opened
