"""The guides and the API's description, as the service shows them to everybody."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from app.console import guides
from app.console.guides import FOLDER, pages
from app.console.markdown import README
from app.console.pages import PAGES
from app.http.access import PUBLIC
from app.http.openapi import ROLES
from app.http.routes import ROUTES
from tests.integration.console.browser import Shown, Visit
from tests.integration.http.client import Client
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

NAMES: Final = sorted(path.stem for path in FOLDER.glob("*.md"))


def show(visit: Visit, path: str) -> Shown:
    shown = visit.get(path)
    assert shown.status == 200, path
    return shown


def test_everybody_may_read_them(visit: Visit) -> None:
    listed = show(visit, "/guides").text
    assert set(re.findall(r'href="/guides/([\w-]+)"', listed)) == {"readme", "api", *NAMES}
    for name in NAMES:
        page = show(visit, f"/guides/{name}").text
        assert "<h1 id=" in page
        assert 'aria-current="page"' in page
    assert visit.cookies == {}


def test_whoever_has_no_key_yet_is_led_to_them(visit: Visit) -> None:
    assert '<a href="/guides">' in visit.get("/sign-in").text


def test_their_head_says_how_many_wait(signed_in: Visit, operator: Client) -> None:
    operator.create("scout").post("/v1/agents/scout/actions", {"tool": "send_email"})
    counts = [
        re.findall(r'id="waiting"[^>]*>(\d+)<', show(signed_in, place).text) for place in ("/", "/guides")
    ]
    assert counts == [["1"], ["1"]]


def test_whoever_is_signed_in_stays_so(signed_in: Visit) -> None:
    assert "Sign out" in show(signed_in, "/guides/operators").text


@pytest.mark.parametrize("name", ["nothing", "..%2FREADME", "README.md", "operators.md", "x.svg", "%00"])
def test_what_is_no_guide_is_not_found(visit: Visit, name: str) -> None:
    assert visit.get(f"/guides/{name}").status in {400, 404}


def test_every_link_leads_to_a_page_and_a_place_in_it(visit: Visit) -> None:
    texts = {f"/guides/{name}": show(visit, f"/guides/{name}").text for name in ("readme", "api", *NAMES)}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    for path, text in texts.items():
        for link in re.findall(r'<a href="([^"]+)"', text):
            address = urlsplit(link)
            if address.scheme:
                assert address.scheme == "https", link
            elif address.fragment:
                assert address.fragment in anchors[address.path or path], f"{path}: {link}"
            elif address.path not in texts:
                assert visit.get(address.path).status in {200, 303}, f"{path}: {link}"


def test_the_operators_guide_names_every_part_of_the_console() -> None:
    table = re.findall(r"^\| `(/\w*)` \|", (FOLDER / "operators.md").read_text("utf-8"), re.MULTILINE)
    shown = {
        "/" if path.startswith("/agents") else re.match(r"/\w*", path)[0]  # type: ignore[index]
        for handler in PAGES
        for path in handler.paths
        if not handler.opt.get(PUBLIC)
    }
    assert shown <= set(table)


def test_pictures_come_from_the_service(visit: Visit) -> None:
    pictures = re.findall(r'<img src="([\w.-]+)"', "".join(page.html for page in pages().values()))
    assert pictures
    for picture in pictures:
        assert show(visit, f"/guides/{picture}").headers["content-type"] == "image/svg+xml"


@pytest.mark.parametrize("name", ["developers", "api", "architecture"])
def test_h23_pages_load_nothing_from_elsewhere_and_have_no_script_or_style_of_their_own(
    visit: Visit, name: str
) -> None:
    shown = show(visit, f"/guides/{name}")
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    assert not re.search(r"<style|\sstyle=|<script(?! src=\"/static/)|\son\w+=", shown.text)
    assert not re.search(r'(?:src|<link[^>]+href)="(?:https?:)?//', shown.text)


def test_nothing_in_a_page_is_taken_as_html() -> None:
    from app.console.markdown import render_markdown

    page = render_markdown("# A <b>title</b>\n\n<script>x</script> [x](javascript:alert) <!-- y -->\n")
    assert "<script" not in page.html
    assert "<b>" not in page.html
    assert 'href="javascript' not in page.html


def test_where_the_program_is_installed_the_readme_comes_from_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guides, "FOLDER", tmp_path / "app" / "guides")
    page = guides.pages.__wrapped__()[README]
    assert page.title == "What it is, and a tour"
    assert "make run" in page.html


def test_the_api_page_has_every_route_with_who_may_and_its_errors(visit: Visit, operator: Client) -> None:
    text = show(visit, "/guides/api").text
    document = operator.get("/schema/openapi.json").json
    sections = {
        (found[1], found[2]): found[3]
        for found in re.finditer(
            r"<h2 id=\"[\w-]+\">(\w+) <code>([^<]+)</code></h2>(.*?)</section>", text, re.DOTALL
        )
    }
    assert len(sections) == len([method for handler in ROUTES for method in handler.http_methods])
    for path, item in document["paths"].items():
        for method, operation in item.items():
            section = sections[method.upper(), path]
            assert operation["summary"] in html.unescape(section)
            check_command(html.unescape(section), path, method, operation)
            for role in operation.get(ROLES, ["everybody"]):
                assert role in section
            for status, response in operation["responses"].items():
                problems = response["content"].get("application/problem+json", {"examples": {}})["examples"]
                for problem in problems.values():
                    assert f"<li>{status} " in section
                    assert f"<code>{problem['value']['code']}</code>" in section


def check_command(section: str, path: str, method: str, operation: dict[str, Any]) -> None:
    """The example is a command that a shell understands, with the body that the description shows."""
    [command] = re.findall(r"<code>(curl .*?)</code>", section, re.DOTALL)
    words = shlex.split(command)
    address = re.compile(r"\$url" + re.sub(r"\{\w+\}", "[^/{}]+", path))
    assert any(address.fullmatch(word) for word in words)
    assert ("-X" in words) is (method not in {"get", "post"})
    assert ("Authorization: Bearer $token" in words) is (ROLES in operation)
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        examples = content["application/json"]["examples"].values()
        assert json.loads(words[words.index("-d") + 1]) in [example["value"] for example in examples]
