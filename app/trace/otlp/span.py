"""A span as both encodings say it, and the rules that decide whether it can be kept.

Rules of the format (OTLP 1.11): ids of 16 and 8 bytes, not all zero; a name; attribute keys that stand once.
Rules of the record: no U+0000 and no lone surrogate in a string, no string above 1 MiB, attributes nested at
most ``MAX_NESTING`` levels. A span that breaks one is rejected by itself, with a reason; the others are kept.
"""

from __future__ import annotations

import base64
import math
from typing import Final

import msgspec

from app.chain.strict import MAX_STRING, JsonObject, JsonValue

MAX_NESTING: Final = 24
"""Levels of arrays and key/value lists in one attribute: what both encodings can carry with room to spare."""

MAX_ATTRIBUTES: Final = 10_000
"""Attributes (or events, or links) of one span."""

MAX_SPANS: Final = 100_000
"""Spans of one export; its resources and its scopes are so many at most, too. 16 MiB of real spans of 250
bytes are 65,536."""

MAX_MESSAGES: Final = 1_000_000
"""Values of one export, all levels together: attributes, their values, events, links. A body of 16 MiB can
say eight million, which would keep the others waiting; of real ones each takes 20 bytes and more."""

NO_ID: Final = ""
"""The parent of a root."""

_EXACT: Final = 2.0**53
"""Below it every whole double is an integer of the same digits."""

_ZEROS: Final = frozenset({"0" * 32, "0" * 16})


class SpanError(Exception):
    """Why one span cannot be kept; ``str(error)`` names the field and the reason."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """One span, the same whichever encoding it came in.

    Ids are lower-case hex, times nanoseconds since 1970. Attribute values are JSON; what JSON cannot say
    keeps its OTLP/JSON form: ``{"bytesValue": "<base64>"}``, ``{"doubleValue": "NaN"}``.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: JsonObject
    events: list[JsonValue]
    links: list[JsonValue]
    status_code: int
    status_message: str
    trace_state: str
    flags: int
    dropped: JsonObject
    resource: JsonObject
    scope: JsonObject


class Rejected(msgspec.Struct, frozen=True):
    """A span that is not kept: its ids as far as they can be read, why, and the resource's own attributes."""

    trace_id: str
    span_id: str
    name: str
    reason: str
    resource: JsonObject


class Export(msgspec.Struct, frozen=True):
    """All spans of one request."""

    spans: list[Span]
    rejected: list[Rejected]


class Place(msgspec.Struct, frozen=True):
    """Where something stands in an export, each a position from 0 on; None for what it is not within."""

    resource: int
    scope: int | None = None
    span: int | None = None

    def __str__(self) -> str:
        steps = (("scopeSpans", self.scope), ("spans", self.span))
        return f"resourceSpans[{self.resource}]" + "".join(
            f".{name}[{at}]" for name, at in steps if at is not None
        )


def rejection(
    place: Place, ids: tuple[str, str], name: str, reason: object, resource: JsonObject
) -> Rejected:
    """What is told of a span that is not kept: also its place, where its ids cannot tell which one it is.

    Args:
        place: of the span, or of the resource or scope that cannot be read.
        ids: of trace and span, as they came; empty where they cannot be read.
        name: as it came.
        reason: a sentence.
        resource: as far as it was read.
    """
    trace_id, span_id = map(shown, ids)
    told = str(reason) if trace_id and span_id else f"{place}: {reason}"
    return Rejected(trace_id, span_id, shown(name), told, resource)


def check_text(text: str, what: str) -> str:
    """``text`` when a record can hold it.

    Raises:
        SpanError: it holds U+0000 or a lone surrogate, or is longer than 1 MiB in UTF-8.
    """
    if "\0" in text:
        raise SpanError(f"{what}: holds the character U+0000, which cannot be stored")
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise SpanError(f"{what}: holds a lone surrogate") from None
    else:
        size = len(text)
    if size > MAX_STRING:
        raise SpanError(f"{what}: a string of more than {MAX_STRING} bytes")
    return text


def check_id(hex_id: str, length: int, what: str) -> str:
    """A hex id of ``length`` digits that is not all zero.

    Raises:
        SpanError: it is another.
    """
    if len(hex_id) != length:
        raise SpanError(f"{what}: must be {length // 2} bytes, is {len(hex_id) // 2}")
    if hex_id in _ZEROS:
        raise SpanError(f"{what}: must not be all zero")
    return hex_id


def base64_text(value: bytes, what: str) -> str:
    """Bytes in base64.

    Raises:
        SpanError: they are longer than a string may be.
    """
    return check_text(base64.b64encode(value).decode(), what)


def shown(key: str) -> str:
    """A key for a message: short, and without anything that cannot be stored."""
    return key[:64].encode("ascii", "replace").decode().replace("\0", "?")


def double(value: float) -> JsonValue:
    """A double as JSON; what JSON has no number for keeps the form of OTLP/JSON.

    A whole number becomes an integer, whose canonical spelling is the same and costs less to write.
    """
    if not math.isfinite(value):
        return {"doubleValue": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return int(value) if value.is_integer() and abs(value) < _EXACT else value
