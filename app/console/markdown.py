"""Our Markdown pages as HTML: headings that links can name, links that lead to the served pages.

The pages are the program's own files, and all the same nothing in them is taken as HTML.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

_REPOSITORY: Final = re.compile(r"(?:\.\./)*README\.md")
_PAGE: Final = re.compile(r"(?:app/guides/)?([a-z-]+)\.md")
_COMMENT: Final = re.compile(r"^<!--.*?-->\n", re.MULTILINE)
"""Marks for the programs that write parts of a page."""

README: Final = "readme"
"""The name by which the README is served."""

_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table")


class Heading(msgspec.Struct, frozen=True):
    """A heading of a page: what links name it by, what it says, how deep it stands."""

    anchor: str
    text: str
    level: int


class Rendered(msgspec.Struct, frozen=True):
    """A page: its title, what it says first, its headings, and the HTML of all of it."""

    title: str
    about: str
    headings: tuple[Heading, ...]
    html: str


def render_markdown(text: str) -> Rendered:
    """The page of a Markdown file."""
    tokens = _MARKDOWN.parse(_COMMENT.sub("", text))
    headings = tuple(_name_headings(tokens))
    for token in tokens:
        _lead_links(token.children or [])
        if token.type == "table_open":
            token.attrSet("class", "guide")
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    html = html.replace('<table class="guide">', '<div class="scroll"><table>')
    return Rendered(
        headings[0].text, _first_paragraph(tokens), headings, html.replace("</table>", "</table></div>")
    )


def anchor(heading: str) -> str:
    """The anchor of a heading, as code hosts make it: lower case, hyphens for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def served_address(link: str) -> str | None:
    """Where a link of a page leads when the page is served: pages have no ending, and the README a name.

    None for another file of the repository, which is not served.
    """
    path, mark, fragment = link.partition("#")
    if not path or ":" in path:
        return link
    if _REPOSITORY.fullmatch(path):
        return f"/guides/{README}{mark}{fragment}"
    named = _PAGE.fullmatch(path)
    return None if named is None else f"/guides/{named[1]}{mark}{fragment}"


def _lead_links(tokens: list[Token]) -> None:
    """Makes the links of a line lead to served pages; of one that leads to none only the words remain."""
    leads_nowhere = False
    for token in tokens:
        if token.type == "link_open":
            address = served_address(str(token.attrGet("href")))
            leads_nowhere = address is None
            token.attrSet("href", address or "")
        if leads_nowhere and token.type in {"link_open", "link_close"}:
            token.type, token.tag = "text", ""


def _name_headings(tokens: list[Token]) -> list[Heading]:
    found = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            text = _plain(inline)
            opening.attrSet("id", anchor(text))
            found.append(Heading(anchor(text), text, int(opening.tag[1:])))
    return found


def _first_paragraph(tokens: list[Token]) -> str:
    for opening, inline in pairwise(tokens):
        if opening.type == "paragraph_open":
            return _plain(inline)
    return ""


def _plain(inline: Token) -> str:
    """What a reader sees of a line, without its marks."""
    parts = [" " if child.type == "softbreak" else child.content for child in inline.children or ()]
    return "".join(parts)
