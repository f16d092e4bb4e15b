"""The server is killed while a real exporter delivers: what was reported as delivered is there, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from tests.integration.http.client import Client
from tests.support.otlp import nodes
from tests.support.server import ServerProcess

BATCH = 20
KILLS = 3


class Watched(SpanExporter):
    """The real exporter; keeps the names of the spans that it reported as delivered, and of the others."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self.delivered: list[str] = []
        self.in_doubt: list[ReadableSpan] = []
        self.changed = threading.Condition()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        with self.changed:
            if result is SpanExportResult.SUCCESS:
                self.delivered += [span.name for span in spans]
            else:
                self.in_doubt += spans
            self.changed.notify_all()
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def until_delivered(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.delivered) + len(self.in_doubt) >= count, 60)


def test_what_was_reported_as_delivered_is_there_once(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    exporter = Watched(
        OTLPSpanExporter(
            endpoint=f"{server.base_url}/v1/traces",
            headers={"authorization": f"Bearer {server.operator_token}"},
        )
    )
    provider = TracerProvider(resource=Resource.create({"service.name": "svc"}))
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter, max_export_batch_size=BATCH, max_queue_size=20_000, schedule_delay_millis=1
        )
    )
    tracer = provider.get_tracer("tests")
    made = 0
    for _ in range(KILLS):
        expected = made + 10 * BATCH
        while made < expected:
            with tracer.start_as_current_span(f"s{made}"):
                made += 1
        exporter.until_delivered(expected - 5 * BATCH)
        server.kill()  # in the middle of what is still being delivered
        server.start()
    provider.force_flush(60_000)
    # What is in doubt is what a sender delivers again: some of it is on record, some is not.
    if exporter.in_doubt:
        assert exporter._inner.export(exporter.in_doubt) is SpanExportResult.SUCCESS
        exporter.delivered += [span.name for span in exporter.in_doubt]
    provider.shutdown()

    stored = [node["name"] for node in nodes(Client(server.base_url, server.operator_token), "svc")]
    assert len(exporter.delivered) == made
    assert sorted(stored) == sorted(exporter.delivered)
