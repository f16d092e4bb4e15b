"""The body of an OTLP request: its encoding, read within the limit, inflated as it comes."""

from __future__ import annotations

import re
from typing import Final

from litestar.types import Scope

from app.errors import UnsupportedMediaTypeError
from app.http.bodies import collect
from app.http.exchange import Call, exchange_in, headers
from app.http.inflate import Collected, Inflated

PROTOBUF: Final = b"application/x-protobuf"
JSON: Final = b"application/json"

_PARAMETERS: Final = re.compile(rb"[ \t]*(?:;[ \t]*charset=[A-Za-z0-9\"_-]{1,32}[ \t]*)?", re.IGNORECASE)


def media_type_in(scope: Scope) -> bytes | None:
    """The encoding that the request says it has; None for any but the two. A charset is tolerated."""
    types = headers(scope, b"content-type")
    if len(types) != 1:
        return None
    for media_type in (PROTOBUF, JSON):
        length = len(media_type)
        if types[0][:length].lower() == media_type and _PARAMETERS.fullmatch(types[0][length:]) is not None:
            return media_type
    return None


async def read_export(request: Call) -> tuple[bytes, bytes]:
    """``(encoding, body)``, not compressed any more. For a caller who was let in.

    Raises:
        UnsupportedMediaTypeError: neither protobuf nor JSON, or compressed otherwise than by gzip.
        PayloadTooLargeError: it is larger than the limit, as it came or inflated.
        BadRequestError: damaged, or it did not arrive.
    """
    scope = request.scope
    media_type = media_type_in(scope)
    if media_type is None:
        raise UnsupportedMediaTypeError(
            "spans must be sent as Content-Type: application/x-protobuf or application/json"
        )
    exchange = exchange_in(scope)
    limit = exchange.services.settings.max_otlp_bytes
    body = Inflated(limit) if _is_gzip(scope) else Collected(limit)
    await collect(scope, request.receive, body)
    exchange.body_read = True
    return media_type, body.finish()


def _is_gzip(scope: Scope) -> bool:
    encodings = [value.strip().lower() for value in headers(scope, b"content-encoding")]
    if encodings in ([], [b"identity"]):
        return False
    if encodings == [b"gzip"]:
        return True
    raise UnsupportedMediaTypeError("the body may be compressed by gzip alone")
