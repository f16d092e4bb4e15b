"""Values of a query's rows as text, as CSV and as JSON, safe to open in a spreadsheet (case H24).

A spreadsheet computes a cell that begins like a formula, also behind blanks, and takes full-width forms of
the same signs for them. Such a cell gets an apostrophe in front, in CSV alone: what was signed is never
changed, and JSON lines are what to verify.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec

_JSON_TYPES: Final = frozenset({"json", "jsonb"})
_FORMULA: Final = frozenset("=+-@")
_AT_ONCE: Final = frozenset("\t\r\n")
_SKIPPED: Final = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})
"""Categories of what may stand before a formula without being seen: blanks, control and format characters."""

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def cell_text(value: Any) -> str:  # noqa: ANN401  whatever a column holds
    """A value as text: empty for NULL, times as RFC 3339 in UTC, durations in seconds."""
    return _WRITERS.get(type(value), str)(value)


def guarded(value: Any, text: str) -> str:  # noqa: ANN401  as above
    """``text``, which is how ``value`` is written, so that no spreadsheet computes it."""
    return f"'{text}" if isinstance(value, str | list) and looks_like_a_formula(text) else text


def looks_like_a_formula(text: str) -> bool:
    """Whether a spreadsheet may compute it: by its first sign that shows, or a tab or line end in front."""
    if not text or text[0].isalnum() or text[0] == "{":
        return False
    if text[0] in _AT_ONCE:
        return True
    first = next((char for char in text if unicodedata.category(char) not in _SKIPPED), "")
    return unicodedata.normalize("NFKC", first)[:1] in _FORMULA


def json_row(columns: Any, row: Any) -> bytes:  # noqa: ANN401  pairs of name and type, and as many values
    """One row as a JSON object: numbers with all digits, times in UTC, JSON columns as they are."""
    members = {name: _json_value(value, type_) for (name, type_), value in zip(columns, row, strict=True)}
    return _ENCODER.encode(members)


def _json_value(value: Any, type_: str) -> Any:  # noqa: ANN401  as above
    if value is not None and type_ in _JSON_TYPES:
        return msgspec.Raw(value.encode())
    if isinstance(value, list):
        return [_json_value(one, type_.removesuffix("[]")) for one in value]
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _seconds(value)
    return value


def _instant(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _seconds(value: timedelta) -> Decimal:
    return Decimal(value // timedelta(microseconds=1)) / 1_000_000


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda _: "",
    bool: lambda value: "true" if value else "false",
    datetime: _instant,
    timedelta: lambda value: str(_seconds(value)),
    Decimal: lambda value: format(value, "f"),
    list: lambda value: ", ".join(map(cell_text, value)),
}
"""How a value of each type is written; all others by ``str``."""
