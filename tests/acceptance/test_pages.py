"""What the README and the guides claim without being run: settings, metrics, links, tests, targets."""

from __future__ import annotations

import json
import re
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from hatchling.builders.wheel import WheelBuilder

from app.client.settings import AGENT_VARIABLE, DEFAULT_URL, TOKEN_VARIABLE, URL_VARIABLE
from app.guard.policy import Policy, ToolRule
from app.ledger.webhooks.signing import headers_of, secret_text
from app.settings import SETTINGS
from db.cookbook import recipes
from tests.support.pages import FOLDER, NOTED, ROOT, RUN, Page, anchor, noted, page_at, pages

ALL = list(pages())
EVERYTHING = "\n".join(page.text for page in ALL)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        address = urlsplit(link)
        if address.scheme:
            assert address.scheme == "https", link
            continue
        target = (page.path.parent / address.path).resolve() if address.path else page.path
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        if address.fragment:
            assert address.fragment in page_at(target).anchors, link


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_every_block_is_run_or_checked_by_a_test(page: Page) -> None:
    for block in page.blocks:
        assert block.kind in RUN or block.kind in NOTED, block.kind


def test_each_note_is_read_by_the_test_that_is_named_for_it() -> None:
    used = {block.kind for page in ALL for block in page.blocks}
    assert used - RUN == NOTED.keys()
    for kind, reader in NOTED.items():
        source = (ROOT / reader).read_text("utf-8")
        assert f'"{kind}"' in source or f'block("{kind.removeprefix("sh ")}")' in source, kind


def test_the_readme_names_every_guide() -> None:
    named = {link.partition("#")[0] for link in ALL[0].links}
    assert {str(page.path.relative_to(ROOT)) for page in ALL[1:]} <= named


def test_the_wheel_has_every_guide() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    files = [*(page.path for page in ALL[1:]), *FOLDER.glob("*.svg")]
    assert {f"app/guides/{path.name}" for path in files} <= packed


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_a_page_with_a_list_of_its_parts_names_all_of_them(page: Page) -> None:
    if " · [" in page.text:
        parts = re.findall(r"^## (.*)$", page.prose, re.MULTILINE)
        assert [part for part in parts if f"#{anchor(part)}" not in page.links] == []


def test_every_room_of_the_code_is_named() -> None:
    """A package or folder that is new wants its line in contributing.md."""
    [table] = re.findall(r"^\| room \|.*?\n\n", EVERYTHING, re.MULTILINE | re.DOTALL)
    named = re.findall(r"^\| `([\w/]+)` \|", table, re.MULTILINE)
    rooms = {
        str(path.parent.relative_to(ROOT))
        for top in ("app", "db")
        for path in (ROOT / top).rglob("*")
        if path.suffix in {".py", ".sql", ".md", ".html"} and path.parent.parent.name != "templates"
    }
    assert len(named) == len(set(named))
    assert set(named) == rooms | {"alembic", "deploy"}


def test_every_folder_of_tests_is_named() -> None:
    [table] = re.findall(r"^\| folder \|.*?\n\n", EVERYTHING, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`tests/(\w+)`", table))
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "_."}
    assert named == folders


def test_pages_begin_with_their_title() -> None:
    for page in ALL:
        assert re.match(r"# [^\n]+\n\n\S", page.text), page.name
        assert re.findall(r"^# .*$", page.prose, re.MULTILINE) == [page.text.split("\n", 1)[0]], page.name


def test_variables_of_the_client_are_those_it_reads() -> None:
    rows = re.findall(r"^\| `(LINEAGE_TRAILS_\w+)` \| (.*?) ?\|", EVERYTHING, re.MULTILINE)
    assert [name for name, _ in rows] == [URL_VARIABLE, TOKEN_VARIABLE, AGENT_VARIABLE]
    assert rows[0][1].strip("`") == DEFAULT_URL


@pytest.mark.parametrize(("heading", "shape"), [("policy", Policy), ("rule", ToolRule)])
def test_members_of_a_policy_are_those_it_has(heading: str, shape: type[msgspec.Struct]) -> None:
    [table] = re.findall(
        rf"^\| member of (?:the|a) {heading} \|.*?\n\n", EVERYTHING, re.MULTILINE | re.DOTALL
    )
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE))
    words = {msgspec.NODEFAULT: "to be given", None: "none", False: "false", 1: "1"}
    assert rows == {field.name: words[field.default] for field in msgspec.structs.fields(shape)}


def test_the_cookbook_is_as_large_as_told() -> None:
    [count] = re.findall(r"`trails query` has (\d+) such questions", EVERYTHING)
    assert int(count) == len(recipes())
    commands = "\n".join(text for page in ALL for text in page.of_kind("sh"))
    for command in re.findall(r"^trails query .*$", commands, re.MULTILINE):
        assert command.split()[2] in recipes(), command


def test_settings_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| `(TRAILS_\w+)` \| (.*?) \| (.*?) \|$", EVERYTHING, re.MULTILINE)
    assert [(name, meaning) for name, _, meaning in rows] == [(s.name, s.meaning) for s in SETTINGS]
    for setting, (_, default, _) in zip(SETTINGS, rows, strict=True):
        assert default.strip("`") == setting.default or not setting.default


def test_claims_name_tests_that_exist() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for claim in re.findall(r"`(tests/[^`{]+)`", EVERYTHING):
        assert (ROOT / claim).exists(), claim
    for prefix in re.findall(r"`(test_\w+_)\*`", EVERYTHING):
        assert f"def {prefix}" in sources, prefix


def test_the_two_commands_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^make (\w+)", noted("sh make"), re.MULTILINE)
    assert targets == ["run", "test"]
    for target in targets:
        assert f"\n{target}:" in makefile


def test_lines_of_the_log_are_json_of_one_form() -> None:
    events = [json.loads(text) for page in ALL for text in page.of_kind("json log")]
    assert len(events) == 2
    for event in events:
        assert list(event)[:4] == ["time", "level", "logger", "message"]


def test_a_receiver_of_webhooks_knows_genuine_ones_by_the_code_of_the_page() -> None:
    names: dict[str, Any] = {}
    exec(noted("python webhook"), names)  # noqa: S102  our own page
    secret, body = b"s" * 32, b'{"id": "1/2"}'
    headers = headers_of(secret, "1/2", int(time.time()), body)
    assert names["is_genuine"](secret_text(secret), headers, body)
    assert not names["is_genuine"](secret_text(secret), headers, body + b" ")
    assert not names["is_genuine"](secret_text(b"t" * 32), headers, body)
    old = headers_of(secret, "1/2", int(time.time()) - 3_600, body)
    assert not names["is_genuine"](secret_text(secret), old, body)
