"""JSON for people: the signed text itself, indented. No number is read and written anew, so digits stay.

Whatever could hide or reorder text on a screen is written as an escape of JSON, which means the same.
"""

from __future__ import annotations

import re
from typing import Final

from app.chain.canonical import canonical
from app.chain.strict import JsonValue
from app.cli.text import printable

MOST_CHARS: Final = 200_000
"""Characters that one page shows of one document."""

_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\[\]{},:"\s]+')
_STEP: Final = "  "


def indented(value: JsonValue, most: int = MOST_CHARS) -> tuple[str, bool]:
    """A value as indented canonical JSON, and whether that is all of it."""
    return indent(canonical(value), most)


def indent(text: str, most: int = MOST_CHARS) -> tuple[str, bool]:
    """The same of a JSON text; one that is no JSON comes out in pieces, and does no harm."""
    pieces: list[str] = []
    size, depth, last = 0, 0, " "
    for match in _WORD.finditer(text):
        word = match[0]
        if word in {"}", "]"}:
            depth = max(depth - 1, 0)
            piece = word if last in {"{", "["} else "\n" + _STEP * depth + word
        elif last in {"{", "[", ","}:
            piece = "\n" + _STEP * depth + printable(word)
        else:
            piece = ": " if word == ":" else printable(word)
        if word in {"{", "["}:
            depth += 1
        last = word
        pieces.append(piece)
        size += len(piece)
        if size > most:
            return "".join(pieces)[:most], False
    return "".join(pieces), True
