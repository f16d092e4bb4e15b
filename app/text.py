"""Text of records as people see it: whatever an agent wrote, it can neither steer a screen nor hide.

Records keep the exact bytes; only what is shown is escaped (cases H21 and G19). The escapes of ``printable``
are those of JSON, so a JSON text stays the same JSON value.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_ALLOWED: Final = re.compile(r"[\x20-\x7e]*")
"""Plain ASCII: nothing to look at."""

_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control, format (bidi overrides, zero width), surrogate, private, unassigned, line and paragraph ends."""

_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that show as nothing."""

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}

# Scripts that one language writes together (UTS 39, "highly restrictive").
_TOGETHER: Final = (
    frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}),
    frozenset({"LATIN", "CJK", "BOPOMOFO"}),
    frozenset({"LATIN", "CJK", "HANGUL"}),
)


def printable(text: str) -> str:
    """``text`` on one line, with everything escaped that could move, colour, reorder or hide."""
    if _ALLOWED.fullmatch(text):
        return text
    return "".join(char if _harmless(char) else _escape(char) for char in text)


def look_alike(name: str) -> str | None:
    """Why a name may be mistaken for another one, or None: scripts mixed, invisible or combining parts."""
    if name.isascii():
        return "control characters" if not name.isprintable() else None
    if any(not _harmless(char) for char in name):
        return "invisible characters"
    if any(unicodedata.category(char) in {"Mn", "Me"} for char in name):
        return "combining marks"
    if unicodedata.normalize("NFKC", name) != name:
        return "compatibility characters"
    scripts = {_script(char) for char in name if char.isalpha()}
    if len(scripts) < 2 or any(scripts <= group for group in _TOGETHER):
        return None
    return f"mixes {' and '.join(script.capitalize() for script in sorted(scripts))}"


def _harmless(char: str) -> bool:
    if " " <= char <= "~":
        return True
    category = unicodedata.category(char)
    return category not in _HIDDEN_CATEGORIES and category != "Zs" and char not in _BLANK_LETTERS


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if code > 0xFFFF:
        high, low = divmod(code - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
    return f"\\u{code:04x}"


def _script(char: str) -> str:
    """The script of a letter, as the first word of its name says (LATIN, CYRILLIC, CJK…)."""
    return unicodedata.name(char, "UNKNOWN").partition(" ")[0]
