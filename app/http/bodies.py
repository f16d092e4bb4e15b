"""Request bodies: raw bytes, read once within the limit, then strict JSON (cases H01, H09).

Litestar's own decoding is lax about types, content types and duplicate keys, so it is not used. How many
large bodies there may be at a time is ``app.http.room``'s matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from litestar.types import Scope

from app.chain.canonical import canonical_parsed
from app.chain.strict import MAX_VALUES, JsonObject, Parsed, parse
from app.errors import (
    BadRequestError,
    PayloadTooLargeError,
    UnavailableError,
    UnsupportedMediaTypeError,
)
from app.http.exchange import WHOLE, Call, exchange_in, headers
from app.http.room import BUSY, LARGE_BYTES, Arrival, Place
from app.ledger.idempotency import Stamp, stamp
from app.principal import Grant

BODY_SECS = 30.0
"""A body must have arrived whole after this time (case H31)."""

_MADE_WAY = 0.0
"""The deadline of a body that has to make way: long past."""

_BESIDE = ThreadPoolExecutor(max_workers=1, thread_name_prefix="json")
"""One thread: several would only take turns with the event loop's, and more of them than its own."""

_JSON = re.compile(rb'application/json[ \t]*(?:;[ \t]*charset="?utf-8"?[ \t]*)?', re.IGNORECASE)
_LINES = re.compile(
    rb'application/(?:x-ndjson|ndjson|jsonl)[ \t]*(?:;[ \t]*charset="?utf-8"?[ \t]*)?', re.IGNORECASE
)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")

_R = TypeVar("_R")


class Received(msgspec.Struct, frozen=True):
    """A body as it came in, within the limit and not looked at, with the client's idempotency key."""

    raw: bytes
    idempotency_key: str | None
    is_lines: bool
    """Whether it was sent as one JSON document a line."""


class Body(msgspec.Struct, frozen=True):
    """A JSON object as it came in, with the client's idempotency key when it sent one."""

    parsed: Parsed
    text: str
    """The canonical text of it; empty without a key, which is all that needs it."""
    idempotency_key: str | None

    @property
    def value(self) -> JsonObject:
        """The object."""
        return self.parsed.value  # type: ignore[return-value]  # read_json makes no other

    def stamp(self, endpoint: str) -> Stamp | None:
        """The stamp of this request to ``endpoint`` (e.g. ``actions/act-3/outcome``); None without a key."""
        if self.idempotency_key is None:
            return None
        return stamp(endpoint, self.idempotency_key, self.text)


async def read_json(request: Call, grant: Grant) -> Body:
    """The request's body as a strict JSON object. Only for a caller who was let in: it takes the grant.

    Raises:
        InvalidJsonError: not strict JSON; names the place.
        BadRequestError: not an object, and as ``receive`` raises it and the rest.
    """
    received = await receive(request, grant)
    return await beside(received.raw, lambda: _parse(received.raw, received.idempotency_key))


async def read_json_if_any(request: Call, grant: Grant) -> Body:
    """As ``read_json``, for a route that needs to be told nothing: no body is an empty object.

    Raises:
        as ``read_json``.
    """
    if _announces_body(request.scope):
        return await read_json(request, grant)
    return _parse(b"{}", _idempotency_key(request.scope))


def _announces_body(scope: Scope) -> bool:
    """Whether a body follows the request's head."""
    lengths = headers(scope, b"content-length")
    return bool(headers(scope, b"transfer-encoding")) or any(length.strip(b"0") for length in lengths)


async def receive(request: Call, _: Grant, *, lines: bool = False) -> Received:
    """The request's body as it came, JSON or, with ``lines``, one JSON document a line.

    Raises:
        UnsupportedMediaTypeError: another type, or compressed.
        PayloadTooLargeError: announced or found to be larger than the limit.
        BadRequestError: a bad Idempotency-Key, a body that did not arrive.
        UnavailableError: there is no room for it now.
    """
    scope = request.scope
    is_lines = _check_type(scope, lines=lines)
    key = _idempotency_key(scope)
    limit = exchange_in(scope).services.settings.max_body_bytes
    return Received(await collect(request, limit), key, is_lines)


async def beside(raw: bytes, work: Callable[[], _R]) -> _R:
    """Does ``work`` on a body: at once when it is small, else beside the event loop."""
    return work() if len(raw) <= LARGE_BYTES else await in_thread(work)


async def in_thread(work: Callable[[], _R]) -> _R:
    """Does ``work`` beside the event loop, after what others have there."""
    return await asyncio.get_running_loop().run_in_executor(_BESIDE, _uncollected, work)


def _uncollected(work: Callable[[], _R]) -> _R:
    """Does ``work`` without looking for garbage cycles, and has nobody look at what it made.

    A large body makes a million objects and no cycle; each look at them stops all threads for up to half a
    second, a dozen times until it is answered. ``take_leave`` thaws what is frozen here.
    """
    gc.disable()
    try:
        return work()
    finally:
        gc.freeze()
        gc.enable()


def take_leave(place: Place) -> None:
    """The request of a large body is answered: its place is free, and its objects are as any others."""
    place.leave()
    gc.unfreeze()


def parse_object(raw: bytes, max_values: int) -> Parsed:
    """A body as a strict JSON object of at most so many values.

    Raises:
        InvalidJsonError: not strict JSON; names the place.
        BadRequestError: not an object.
    """
    parsed = parse(raw, max_values=max_values)
    if type(parsed.value) is not dict:
        raise BadRequestError("the body must be a JSON object")
    return parsed


def _parse(raw: bytes, key: str | None) -> Body:
    parsed = parse_object(raw, MAX_VALUES)
    return Body(parsed, canonical_parsed(parsed) if key is not None else "", key)


def _check_type(scope: Scope, *, lines: bool) -> bool:
    """Whether the body is said to be lines."""
    types = headers(scope, b"content-type")
    is_json = len(types) == 1 and _JSON.fullmatch(types[0]) is not None
    is_lines = lines and len(types) == 1 and _LINES.fullmatch(types[0]) is not None
    if not is_json and not is_lines:
        also = " (or application/x-ndjson, one document a line)" if lines else ""
        raise UnsupportedMediaTypeError(f"the body must be sent as Content-Type: application/json{also}")
    for encoding in headers(scope, b"content-encoding"):
        if encoding.strip().lower() != b"identity":
            raise UnsupportedMediaTypeError("the body must not be compressed")
    return is_lines


def _idempotency_key(scope: Scope) -> str | None:
    keys = headers(scope, b"idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or _KEY.fullmatch(keys[0]) is None:
        raise BadRequestError("Idempotency-Key: must be one header of 1 to 255 visible ASCII characters")
    return keys[0].decode("ascii")


async def own_size(body: bytes) -> int:
    """Bytes of work that a body which is not compressed needs a place for; small ones need none."""
    return len(body) if len(body) > LARGE_BYTES else 0


async def collect(request: Call, limit: int, needs: Callable[[bytes], Awaitable[int]] = own_size) -> bytes:
    """All of the request's body as it came; a large one has its place in work then, until it is answered.

    Args:
        request: whose body it is.
        limit: bytes at most.
        needs: bytes of work that the whole body needs a place for.

    Raises:
        PayloadTooLargeError: announced or found to be larger than the limit.
        BadRequestError: it did not arrive, or not in time.
        UnavailableError: there is no room for it now.
    """
    for length in headers(request.scope, b"content-length"):
        if _LENGTH.fullmatch(length) is None or int(length) > limit:
            raise PayloadTooLargeError(limit)
    exchange = exchange_in(request.scope)
    room = exchange.services.room
    deadline = asyncio.timeout(BODY_SECS)
    arrival = room.arrival(lambda: _expire(deadline))
    try:
        body = await _arrived(request, limit, arrival, deadline)
        exchange.body_read = True
        size = await needs(body)
        if size:
            exchange.place = await room.work.place(size)
        return body
    finally:
        arrival.leave()


def _expire(deadline: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is just passing by itself
        deadline.reschedule(_MADE_WAY)


async def _arrived(request: Call, limit: int, arrival: Arrival, deadline: asyncio.Timeout) -> bytes:
    if WHOLE in request.scope:  # as most are: a timer would cost more than taking it
        return await _take_all(request, limit, arrival)
    try:
        async with deadline:
            return await _take_all(request, limit, arrival)
    except TimeoutError:
        if deadline.when() == _MADE_WAY:
            raise UnavailableError(BUSY) from None
        raise BadRequestError(f"the body did not arrive within {BODY_SECS:.0f} seconds") from None


async def _take_all(request: Call, limit: int, arrival: Arrival) -> bytes:
    exchange = exchange_in(request.scope)
    exchange.body_begun = True
    body = bytearray()  # not a list: a body may come in pieces of one byte
    while not exchange.body_over:
        message = await request.receive()
        if message["type"] != "http.request":
            raise BadRequestError("the connection ended before the body did")
        exchange.body_over = not message.get("more_body", False)
        body += message.get("body", b"")
        if len(body) > limit:
            raise PayloadTooLargeError(limit)
        arrival.has(len(body))
    arrival.is_whole = True
    return bytes(body)
