"""What a page says, read from its HTML."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser


def text_of(markup: str) -> str:
    """The text of a piece of HTML, white space joined."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the body's rows of the first table behind a heading."""
    part = page[page.index(heading) :]
    body = part[part.index("<tbody>") : part.index("</tbody>")]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[text_of(cell) for cell in row] for row in cells]


class Shape(HTMLParser):
    """The elements of a page: each one's name and attributes; whether all are closed in order."""

    VOID = frozenset({"meta", "link", "input", "img", "br", "option", "rect", "line"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of a name that have these."""
        return [found for name, found in self.elements if name == tag and attributes.items() <= found.items()]
