"""OTLP/HTTP: any OpenTelemetry exporter posts its spans here, and each becomes a node on the record."""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from litestar import post

from app.errors import NotFoundError, QuarantinedError, TooManyRequestsError
from app.http import documents, examples
from app.http.auth import authenticate
from app.http.exchange import Call, services_of
from app.http.operation import Variant, describe
from app.http.otlp_answers import ExportAnswer, export_answer, respond_with_status
from app.http.otlp_body import JSON, PROTOBUF, read_export
from app.ledger.spans.otlp import message_of, record_spans
from app.principal import Permission, grant
from app.trace.otlp.fragments import AgentSpans, arrange
from app.trace.otlp.json_form import decode_json
from app.trace.otlp.protobuf import decode_protobuf

_log: Final = logging.getLogger("trails.otlp")


@post(
    "/v1/traces",
    status_code=200,
    summary="Post spans (OTLP)",
    exception_handlers={Exception: respond_with_status},
    opt=describe(
        Permission.POST,
        body=(documents.SpanExport, examples.SPAN_EXPORT),
        answer=documents.SpanExportAnswer,
        example=examples.SPAN_EXPORT_ANSWER,
        errors=(NotFoundError, QuarantinedError, TooManyRequestsError),
        variants=(
            Variant(
                name="protobuf",
                media_type=PROTOBUF.decode(),
                body=documents.ProtobufExport,
                body_example="(an ExportTraceServiceRequest)",
                answer=documents.ProtobufExportAnswer,
                example="(an ExportTraceServiceResponse)",
            ),
        ),
        otlp=True,
    ),
)
async def post_spans(request: Call) -> ExportAnswer:
    """Records the spans of an OpenTelemetry exporter; 200 means that they are committed, each of them once.

    Protobuf or JSON, plain or gzip. With an agent's token all of it goes to that agent; with an operator's, a
    span's agent is ``gen_ai.agent.id``, ``gen_ai.agent.name`` or ``service.name``. A span that comes again is
    known and not stored again; other content under its id is recorded as a conflict. Spans that cannot be
    kept are named in ``partial_success``, and in an event on the record. The header ``trails-receipt`` tells
    agent, seq and hash of the last record of each agent.
    """
    principal = authenticate(request.scope)
    grant(principal, Permission.POST, principal.agent_id)  # refused before anything is read
    media_type, (arranged, digest) = await read_export(
        request, lambda encoding, raw: _arranged(encoding, raw, principal.agent_id)
    )
    recorded = await record_spans(services_of(request).ledger, principal, arranged, digest)
    rejected = sum(len(result.rejected) for result in recorded)
    if rejected:
        _log.warning("spans rejected", extra={"fields": {"rejected_spans": rejected}})
    receipts = [result.receipt for result in recorded if result.receipt is not None]
    return export_answer(media_type, rejected, message_of(recorded), receipts)


def _arranged(media_type: bytes, raw: bytes, agent_id: str | None) -> tuple[dict[str, AgentSpans], str]:
    export = decode_json(raw) if media_type == JSON else decode_protobuf(raw)
    return arrange(export, agent_id), hashlib.sha256(raw).hexdigest()
