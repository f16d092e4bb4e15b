"""The console's own files, and those that others wrote."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import app.console.static_files as files
from tests.integration.console.browser import Visit

FOLDER = Path(files.__file__).parent / "static"


def test_vendored_files_are_those_that_the_table_names() -> None:
    table = (FOLDER / "VENDORED.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"\| `([^`]+)` \|.*`([0-9a-f]{64})`", table))
    assert named
    assert {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in named} == named


def test_a_file_is_sent_once(visit: Visit) -> None:
    first = visit.get("/static/console.css")
    assert first.status == 200
    assert first.headers["content-type"].startswith("text/css")
    assert visit.get("/static/console.css", If_None_Match=first.headers["etag"]).status == 304


def test_pages_load_files_that_are_there(visit: Visit) -> None:
    html = visit.get("/sign-in").text
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', html)
    assert len(addresses) >= 3
    assert {visit.get(address).status for address in addresses} == {200}


def test_there_is_nothing_else(visit: Visit) -> None:
    for name in ("VENDORED.md", "..%2fpage.py", "no.css"):
        assert visit.get(f"/static/{name}").status in {400, 404}
