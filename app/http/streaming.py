"""Answers that are made while they are sent, and of unknown length: exports.

The connection is cut when such an answer breaks off: the last chunk is never sent, so that no client takes
what it has for the whole. What is broken before its first byte is answered like any other error. How long a
client may take is ``app.http.taking``'s matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from app.errors import TrailsError
from app.http.exchange import exchange_in

if TYPE_CHECKING:
    from app.ledger.export.exporter import Exported

PARTIAL: Final = b"trails-partial"
"""Header of an export that leaves records of a chain out."""

_log: Final = logging.getLogger("trails.http")


class Download(ASGIResponse):
    """An export as a file to save."""

    __slots__ = ("_export", "media_type")

    def __init__(self, export: AbstractAsyncContextManager[Exported]) -> None:
        # As for Answer: the base class would build headers that nobody needs.
        self._export = export

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the file; ends without its last chunk when it breaks off."""
        sending = asyncio.create_task(self._send(scope, send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            _log.warning("an export is cut: the service stops")  # and this request ends with this call
        finally:
            leaving.cancel()
            if not sending.done():
                sending.cancel()  # nobody is there any more, or the service stops: the rest is not read
            await asyncio.wait({sending})  # until the connection is given back and the end is told
        if not sending.cancelled():
            sending.result()

    async def _send(self, scope: Scope, send: Send) -> None:
        begun = False
        try:
            async with self._export as exported:
                pieces = aiter(exported.pieces)
                first = await anext(pieces, b"")
                await send({"type": "http.response.start", "status": 200, "headers": _headers(exported)})
                begun = True
                await _pass_on(first, pieces, send)
        except TrailsError as error:
            if not begun:
                raise
            # The server cuts the connection of an answer that nobody ends.
            fields = {"request_id": exchange_in(scope).request_id, "reason": error.message}
            _log.warning("an export broke off", extra={"fields": fields})
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _pass_on(first: bytes, pieces: AsyncIterator[bytes], send: Send) -> None:
    if first:
        await send({"type": "http.response.body", "body": first, "more_body": True})
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _headers(exported: Exported) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", exported.media_type.encode()),
        (b"content-disposition", f'attachment; filename="{exported.file_name}"'.encode()),
    ]
    if exported.is_partial:
        headers.append((PARTIAL, b"a filtered export: no complete chain"))
    return headers
