"""JSON as it was signed, set in lines for people: the same values, number by number.

Only white space is put in, and what could reorder or hide text on the screen (bidirectional overrides, zero
width) is written as the escape that JSON has for it. So a copied text is still the same JSON value.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import msgspec

from app.chain.canonical import canonical
from app.chain.strict import JsonValue

SHOWN_CHARS: Final = 200_000
"""Of one text; the whole of it is in the record."""

FOLDED_CHARS: Final = 2_000
"""Longer texts are folded, and say how long they are."""

_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^"{}\[\],:]+', re.DOTALL)
_INDENT: Final = "  "
_MAX_INDENT: Final = 40
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that show as nothing."""

_PLAIN: Final = re.compile(r"[\t\n\x20-\x7e]*")


class Shown(msgspec.Struct, frozen=True):
    """A text to show: maybe cut, with its whole length in characters."""

    text: str
    chars: int

    @property
    def folded(self) -> bool:
        """Whether it is too long to be shown at once."""
        return self.chars > FOLDED_CHARS

    @property
    def is_cut(self) -> bool:
        """Whether some of it is left out."""
        return self.chars > SHOWN_CHARS


def shown_json(value: JsonValue) -> Shown:
    """A JSON value in lines."""
    written = canonical(value)
    text = written if len(written) > SHOWN_CHARS else in_lines(written)
    return Shown(visible(text[:SHOWN_CHARS]), len(written))


def shown_text(text: str) -> Shown:
    """A text as it is."""
    return Shown(visible(text[:SHOWN_CHARS]), len(text))


def in_lines(written: str) -> str:
    """Canonical JSON with line breaks and indents."""
    parts: list[str] = []
    depth = 0
    words = _WORD.findall(written)
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        if word in {"{", "["}:
            depth += 1
            parts.append(word if after in {"}", "]"} else word + _line(depth))
        elif word in {"}", "]"}:
            depth -= 1
            before = words[place - 1]
            parts.append(word if before in {"{", "["} else _line(depth) + word)
        elif word == ",":
            parts.append(word + _line(depth))
        else:
            parts.append(": " if word == ":" else word)
    return "".join(parts)


def visible(text: str) -> str:
    """The text with what steers or hides text written as escapes of JSON; line breaks and tabs stay."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(char if _is_harmless(char) else _escape(char) for char in text)


def _line(depth: int) -> str:
    return "\n" + _INDENT * min(depth, _MAX_INDENT)


def _is_harmless(char: str) -> bool:
    return char in "\n\t" or (unicodedata.category(char) not in _HIDDEN and char not in _BLANK)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
