"""What the address of a page asks for. An empty field asks nothing, one that is unknown is refused."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from app.console.page import TEMPLATES
from app.errors import BadRequestError
from app.http.exchange import Call
from app.http.query import MAX_SEQ, instant_of, known_fields
from app.http.target import Query, one_field, parse_query
from app.trace.node import read_uuid

MOST_CHARS: Final = 200
"""Characters of a field."""

_SEQ: Final = re.compile(r"[0-9]{1,19}")


def asked(request: Call, known: frozenset[str] | None = None) -> dict[str, str]:
    """The fields of the address that are not empty; with ``known`` there may be no others.

    Raises:
        BadRequestError: a field twice, too long, or not known.
    """
    raw = request.scope["query_string"]
    fields: Query = parse_query(raw) if known is None else known_fields(request, known)
    found = {name: (one_field(fields, name) or "").strip() for name, _ in fields}
    if any(len(value) > MOST_CHARS for value in found.values()):
        raise BadRequestError(f"a field of the address has more than {MOST_CHARS} characters")
    return {name: value for name, value in found.items() if value}


def seq_in(fields: dict[str, str], name: str) -> int | None:
    """A field that is the seq of a record.

    Raises:
        BadRequestError: it is none.
    """
    value = fields.get(name)
    if value is None:
        return None
    if _SEQ.fullmatch(value) is None or int(value) > MAX_SEQ:
        raise BadRequestError(f"{name}: must be the seq of a record, a whole number from 0")
    return int(value)


def instant_in(fields: dict[str, str], name: str) -> int | None:
    """A field that is a day or a time, as µs since the epoch. Raises as ``instant_of``."""
    return instant_of([*fields.items()], name)


def uuid_in(fields: dict[str, str], name: str) -> UUID | None:
    """A field that is a UUID.

    Raises:
        BadRequestError: it is none.
    """
    if name not in fields:
        return None
    found = read_uuid(fields[name])
    if found is None:
        raise BadRequestError(f"{name}: must be a UUID such as 123e4567-e89b-12d3-a456-426614174000")
    return found


def address(path: str, fields: dict[str, str], **changed: object) -> str:
    """The address of a page with other fields; None takes one away."""
    merged = {**fields, **{name: str(value) for name, value in changed.items() if value is not None}}
    kept = {name: value for name, value in merged.items() if changed.get(name, value) is not None}
    return f"{path}?{urlencode(kept)}" if kept else path


TEMPLATES.globals["address"] = address
