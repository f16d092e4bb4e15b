"""The README and the guides as tests read them: their text, their blocks of code, their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = ROOT / "README.md"
FOLDER: Final = ROOT / "app" / "guides"

NOTED: Final = {
    "sh make": "tests/acceptance/test_pages.py",
    "sh ours": "tests/acceptance/test_own_database.py",
    "python tracker": "tests/acceptance/test_guides.py",
    "python guard": "tests/acceptance/test_guides.py",
    "python webhook": "tests/acceptance/test_pages.py",
    "python verifier": "tests/acceptance/test_guides.py",
    "python feed": "tests/acceptance/test_guides.py",
    "sh backup": "tests/integration/backup/test_dump.py",
    "sh restore": "tests/integration/backup/test_dump.py",
    "sh data-only": "tests/integration/backup/test_dump.py",
    "sh data-only-disable-triggers": "tests/integration/backup/test_dump.py",
    "sh base-backup": "tests/integration/backup/test_copies.py",
    "sh point-in-time": "tests/integration/backup/test_copies.py",
    "sh embedded": "tests/integration/backup/test_copies.py",
    "sh heads": "tests/integration/backup/test_copies.py",
    "ini pgbouncer": "tests/support/pgbouncer.py",
    "json log": "tests/acceptance/test_pages.py",
}
"""Blocks with a note behind their language, and the file that runs or checks each: it names the note."""

RUN: Final = frozenset({"sh", "text", "sql"})
"""Languages of blocks without a note: ``tests/acceptance/test_guides.py`` runs them, page by page."""

_BLOCK: Final = re.compile(
    r"^```(?P<language>\w*)(?P<note>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
_CODE: Final = re.compile(r"`[^`]*`")


class Block(msgspec.Struct, frozen=True):
    """A block of code: ``kind`` is what stands behind the fence, the language and perhaps a note."""

    kind: str
    text: str


class Page(msgspec.Struct, frozen=True):
    """One Markdown page."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def blocks(self) -> list[Block]:
        """All blocks of code, in order."""
        found = _BLOCK.finditer(self.text)
        return [Block(f"{m['language']} {m['note'].strip()}".strip(), m["text"]) for m in found]

    def of_kind(self, kind: str) -> list[str]:
        """The texts of the blocks of one kind, in order."""
        return [block.text for block in self.blocks if block.kind == kind]

    @property
    def prose(self) -> str:
        """The text without its blocks of code."""
        return _BLOCK.sub("", self.text)

    @property
    def anchors(self) -> set[str]:
        """What a link may name behind ``#``, as a code host makes it from the headings."""
        return {anchor(heading) for heading in _HEADING.findall(self.prose)}

    @property
    def links(self) -> list[str]:
        """Where the page's links lead, as written."""
        return _LINK.findall(_CODE.sub("", self.prose))


def anchor(heading: str) -> str:
    """The anchor of a heading: lower case, hyphens for spaces, no other punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def page_at(path: Path) -> Page:
    """One page, as it is on disk."""
    return Page(path, path.read_text("utf-8"))


def readme() -> Page:
    """The README."""
    return page_at(README)


def guides() -> list[Page]:
    """The guides, by name."""
    return [page_at(path) for path in sorted(FOLDER.glob("*.md"))]


def pages() -> Iterator[Page]:
    """The README, then the guides."""
    yield readme()
    yield from guides()


def everything(kind: str) -> list[str]:
    """The texts of the blocks of one kind in all pages, in order."""
    return [text for page in pages() for text in page.of_kind(kind)]


def noted(kind: str) -> str:
    """The one block of a kind (``sh backup``) in all pages.

    Raises:
        ValueError: there is none, or there are several.
    """
    [found] = everything(kind)
    return found
