"""The request target, checked as raw bytes before anything routes on it (cases G21, H11, H19).

Servers decode a path before the application sees it, and replace what is not UTF-8. So the raw bytes are
looked at first: what is not one plain reading is refused, and no path is ever decoded twice.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote_to_bytes

from app.errors import BadRequestError

MAX_QUERY_FIELDS = 20
TOKEN_FIELDS = frozenset({"token", "access_token", "api_key", "apikey", "authorization"})
"""Query fields that look like credentials: a URL ends up in logs and histories, so they are refused."""

Query = list[tuple[str, str]]

_PLAIN_PATH = re.compile(rb"(?:/[A-Za-z0-9_.~!$&'()*+,;=:@-]+)+|/")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_path(raw: bytes) -> None:
    """Refuses a path that has more than one reading.

    Args:
        raw: the path as sent, percent-encoding and all, without the query.

    Raises:
        BadRequestError: broken or double percent-encoding, not UTF-8, control characters, an encoded slash or
            backslash, an empty segment.
    """
    if _PLAIN_PATH.fullmatch(raw):
        return
    text = _decoded(raw, "path")
    if "%" in text:
        raise BadRequestError("the path is percent-encoded twice")
    if "\\" in text or text.count("/") != raw.count(b"/"):
        raise BadRequestError("the path holds an encoded slash or a backslash")
    if "//" in text or (text.startswith("/v1/") and text.endswith("/")):
        raise BadRequestError("the path has an empty segment")


def parse_query(raw: bytes) -> Query:
    """The query's fields in their order.

    Raises:
        BadRequestError: not valid percent-encoded UTF-8, control characters, too many fields, or a field that
            looks like a credential.
    """
    _decoded(raw, "query")
    try:
        fields = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS
        )
    except ValueError:
        raise BadRequestError(f"the query must be at most {MAX_QUERY_FIELDS} fields of ASCII") from None
    for name, _ in fields:
        if name.lower() in TOKEN_FIELDS:
            raise BadRequestError(
                "credentials in the URL are refused; use the header Authorization: Bearer …"
            )
    return fields


def one_field(fields: Query, name: str) -> str | None:
    """The value of a query field, None when absent.

    Raises:
        BadRequestError: the field is given twice.
    """
    values = [value for key, value in fields if key == name]
    if len(values) > 1:
        raise BadRequestError(f"{name}: is given more than once")
    return values[0] if values else None


def _decoded(raw: bytes, part: str) -> str:
    if _BROKEN_ESCAPE.search(raw):
        raise BadRequestError(f"the {part} has a broken percent-encoding")
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise BadRequestError(f"the {part} is not UTF-8") from None
    if _CONTROL.search(text):
        raise BadRequestError(f"the {part} holds control characters")
    return text
