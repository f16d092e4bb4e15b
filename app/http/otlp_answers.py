"""How OTLP is answered: in the encoding of the request, errors as ``google.rpc.Status``.

Exporters retry 429, 502, 503 and 504 and nothing else, so that the status decides whether spans get lost.
"""

from __future__ import annotations

import json
from typing import Final

from litestar.response import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from app.http.exchange import Call, exchange_in
from app.http.otlp_body import JSON, PROTOBUF, media_type_in
from app.http.problems import problem_of, respond
from app.ledger.post import Receipt

MAX_RECEIPTS: Final = 50
"""Agents whose receipts stand in the answer's header, which every client can hold."""

RECEIPT_HEADER: Final = b"trails-receipt"

CODES: Final = {400: 3, 401: 16, 403: 7, 404: 5, 409: 10, 413: 8, 415: 3, 421: 9, 429: 8, 500: 13, 503: 14}
"""HTTP status to ``google.rpc.Code``."""

_UNKNOWN: Final = 2


class ExportAnswer(ASGIResponse):
    """A finished 200 in the request's encoding."""

    __slots__ = ("headers_", "payload")

    def __init__(self, media_type: bytes, payload: bytes, receipts: list[Receipt]) -> None:
        # As with app.http.responses.Answer, the base class is for Litestar's type checks only.
        self.payload = payload
        self.headers_ = [
            (b"content-type", media_type),
            (b"content-length", str(len(payload)).encode()),
        ]
        if receipts:
            self.headers_.append((RECEIPT_HEADER, _receipts(receipts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's form
        """Sends the answer."""
        await send({"type": "http.response.start", "status": 200, "headers": self.headers_})
        await send({"type": "http.response.body", "body": self.payload, "more_body": False})


def export_answer(media_type: bytes, rejected: int, message: str, receipts: list[Receipt]) -> ExportAnswer:
    """An ``ExportTraceServiceResponse``.

    Args:
        media_type: of the request.
        rejected: spans that were not stored.
        message: which and why; with ``rejected`` 0 it is a warning.
        receipts: the last record of each agent that the request reached.
    """
    return ExportAnswer(media_type, _response(media_type, rejected, message), receipts)


def respond_with_status(request: Call, error: Exception) -> Response[bytes]:
    """The route's handler of exceptions: a ``google.rpc.Status``; a problem when the encoding is unknown."""
    media_type = media_type_in(request.scope)
    if media_type is None:
        return respond(request, error)
    problem = problem_of(error, exchange_in(request.scope).request_id)
    message = json.loads(problem.body)["error"]
    return Response(
        status_of(media_type, CODES.get(problem.status, _UNKNOWN), message),
        status_code=problem.status,
        media_type=media_type.decode(),
        headers=dict(problem.headers),
    )


def status_of(media_type: bytes, code: int, message: str) -> bytes:
    """A ``google.rpc.Status``; its two fields are written by hand, which saves a package of messages."""
    if media_type == JSON:
        return json.dumps({"code": code, "message": message}).encode()
    text = message.encode()
    return b"\x08" + bytes([code]) + b"\x12" + _varint(len(text)) + text


def _response(media_type: bytes, rejected: int, message: str) -> bytes:
    """The specification wants ``partial_success`` unset when there is nothing to say."""
    if media_type == PROTOBUF:
        response = ExportTraceServiceResponse()
        if rejected or message:
            response.partial_success.rejected_spans = rejected
            response.partial_success.error_message = message
        return bytes(response.SerializeToString())
    if not rejected and not message:
        return b"{}"
    partial = {"rejectedSpans": str(rejected), "errorMessage": message}
    return json.dumps({"partialSuccess": partial}).encode()


def _receipts(receipts: list[Receipt]) -> bytes:
    told = [f"agent={item.agent_id};seq={item.seq};hash={item.hash}" for item in receipts[:MAX_RECEIPTS]]
    return ", ".join(told).encode()


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
