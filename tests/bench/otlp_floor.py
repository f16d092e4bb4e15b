"""The floor of the OTLP rows: same server, same framework, same driver, one plain JSON row a span.

It decodes the same protobuf and writes the spans of a request with one multi-row INSERT: no signature, no
chain, no trace tree, and a span that comes again is stored again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, post
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.bench.floor import plain_pool

TABLE = """
CREATE SCHEMA IF NOT EXISTS plain;
CREATE TABLE IF NOT EXISTS plain.spans (id bigserial PRIMARY KEY, data jsonb NOT NULL)
"""
INSERT = "INSERT INTO plain.spans (data) SELECT * FROM unnest($1::jsonb[])"


@post("/v1/traces", status_code=200)
async def store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Stores each span as JSON."""
    export = ExportTraceServiceRequest()
    export.ParseFromString(await request.body())
    rows = [
        msgspec.json.encode(_plain(span)).decode()
        for of_resource in export.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]
    await request.app.state.pool.execute(INSERT, rows)
    return Response(b"", media_type="application/x-protobuf")


def _plain(span: Any) -> dict[str, Any]:
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_span_id": span.parent_span_id.hex(),
        "name": span.name,
        "kind": span.kind,
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "status": {"code": span.status.code, "message": span.status.message},
        "attributes": {
            pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes
        },
    }


@asynccontextmanager
async def _lifespan(app: Litestar) -> AsyncIterator[None]:
    async with plain_pool(TABLE) as pool:
        app.state.pool = pool
        yield


def app() -> Litestar:
    """The floor's application."""
    return Litestar([store], lifespan=[_lifespan], openapi_config=None, logging_config=None)
