"""The body of an OTLP request: its encoding, read within the limit, inflated beside the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from litestar.types import Scope

from app.errors import PayloadTooLargeError, UnsupportedMediaTypeError
from app.http.bodies import beside, collect, in_thread
from app.http.exchange import Call, exchange_in, headers
from app.http.inflate import inflate, inflated_size
from app.http.room import LARGE_BYTES, Room

PROTOBUF: Final = b"application/x-protobuf"
JSON: Final = b"application/json"

_PARAMETERS: Final = re.compile(rb"[ \t]*(?:;[ \t]*charset=[A-Za-z0-9\"_-]{1,32}[ \t]*)?", re.IGNORECASE)

_MEASURING: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inflate")
"""Not the thread of the parser: it would wait there for others' bodies, and needs no turn of Python's."""

_R = TypeVar("_R")


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


async def read_export(request: Call, work: Callable[[bytes, bytes], _R]) -> tuple[bytes, _R]:
    """The encoding, and what ``work`` makes of encoding and body. For a caller who was let in.

    A body that is small, and inflated is small, is worked on at once. Any other is inflated twice beside the
    event loop: to see how large it is, and, when it has its place, where it is worked on. So at most one of a
    process is inflated and not yet worked on; inflating takes a small part of the time of the work.

    Raises:
        UnsupportedMediaTypeError: neither protobuf nor JSON, or compressed otherwise than by gzip.
        PayloadTooLargeError: it is larger than the limit, as it came or inflated.
        BadRequestError: damaged, or it did not arrive.
        UnavailableError: there is no room for it now.
    """
    media_type = media_type_in(request.scope)
    if media_type is None:
        raise UnsupportedMediaTypeError(
            "spans must be sent as Content-Type: application/x-protobuf or application/json"
        )
    limit = exchange_in(request.scope).services.settings.max_otlp_bytes
    if _is_gzip(request.scope):
        return media_type, await _zipped(request, limit, lambda raw: work(media_type, raw))
    body = await collect(request, limit)
    return media_type, await beside(body, lambda: work(media_type, body))


async def _zipped(request: Call, limit: int, work: Callable[[bytes], _R]) -> _R:
    plain: bytes | None = None

    async def needs(body: bytes) -> int:
        nonlocal plain
        plain = _small(body, limit)
        return 0 if plain is not None else await _size(exchange_in(request.scope).services.room, body, limit)

    body = await collect(request, limit, needs)
    if plain is not None:
        return work(plain)
    return await in_thread(lambda: work(inflate(body, limit)))


async def _size(room: Room, body: bytes, limit: int) -> int:
    """Bytes of a body inflated, found beside the event loop: what it keeps place for must be known before."""
    place = await room.inflating.place(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(_MEASURING, inflated_size, body, limit)
    finally:
        place.leave()


def _small(body: bytes, limit: int) -> bytes | None:
    """The body inflated when it comes out small; None when it does not, and is to be inflated elsewhere."""
    if len(body) > LARGE_BYTES:
        return None
    try:
        return inflate(body, min(limit, LARGE_BYTES))
    except PayloadTooLargeError:
        if limit <= LARGE_BYTES:
            raise
        return None


def _is_gzip(scope: Scope) -> bool:
    encodings = [value.strip().lower() for value in headers(scope, b"content-encoding")]
    if encodings in ([], [b"identity"]):
        return False
    if encodings == [b"gzip"]:
        return True
    raise UnsupportedMediaTypeError("the body may be compressed by gzip alone")
