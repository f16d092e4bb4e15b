"""Figures of one process for Prometheus: ``GET /metrics``.

Nothing is counted here: what the edge and the ledger count for themselves is put into words when it is asked
for. Labels hold routes, codes and tenants' slugs, and nothing else of a tenant's.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final

from litestar import get
from litestar.types import Scope
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from app.errors import NotFoundError, UnauthorizedError
from app.http import examples
from app.http.exchange import Call, Services, headers, services_of
from app.http.operation import describe
from app.http.problems import no_such_path
from app.http.responses import Answer
from app.http.streams import Streams
from app.http.traffic import CLASSES, Traffic
from app.ledger.export.wanted import Format
from app.ledger.feed.poller import Pollers
from app.ledger.meter import Distribution, Load, Meter
from app.ledger.webhooks.delivery import Counts
from app.tokens import bearer_of

_OPENMETRICS: Final = b"application/openmetrics-text"
_OF_PROXIES: Final = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")
"""Headers that say that a request was handed on: its peer is not who asks."""


@get(
    "/metrics",
    summary="Figures for Prometheus",
    opt=describe(
        None, answer=str, example=examples.METRICS, media_type="text/plain", errors=(NotFoundError,)
    ),
)
async def metrics(request: Call) -> Answer:
    """Figures of the process that answers, in Prometheus' text format, or OpenMetrics for who accepts that.

    For callers on the service's own machine; with ``TRAILS_METRICS_TOKEN`` for who sends that as a bearer
    token. To everybody else there is no such path (404).
    """
    services = services_of(request)
    if not _may_read(request.scope, services.settings.metrics_token):
        raise NotFoundError(no_such_path(request.method, request.scope["path"]))
    registry = services.registry
    if any(_OPENMETRICS in accepted for accepted in headers(request.scope, b"accept")):
        text = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # theirs has no types
        return Answer(text, media_type=openmetrics.CONTENT_TYPE_LATEST.encode())
    return Answer(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4.encode())


def _may_read(scope: Scope, token: str | None) -> bool:
    return is_local(scope) if token is None else _presents(scope, token)


def _presents(scope: Scope, token: str) -> bool:
    given = headers(scope, b"authorization")
    try:
        presented = bearer_of(given[0] if len(given) == 1 else None)
    except UnauthorizedError:
        return False
    digests = [hashlib.sha256(secret).digest() for secret in (presented, token.encode())]
    return hmac.compare_digest(*digests)


def is_local(scope: Scope) -> bool:
    """Whether the socket's peer is this machine, and says of nobody that it asks for them."""
    client = scope["client"]
    if client is None or any(name in _OF_PROXIES for name, _ in scope["headers"]):
        return False
    try:
        address = ip_address(client[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


# --- what is told ---------------------------------------------------------------------------------------


def registry_of(services: Services) -> CollectorRegistry:
    """What a process tells: its own registry, so that two applications in one process do not mix."""
    # One of several processes on one socket: who asks gets any of them, and has to know which.
    label = {} if multiprocessing.parent_process() is None else {"worker": str(os.getpid())}
    registry = CollectorRegistry()
    registry.register(_Labelled(_ServiceCollector(services), label))
    registry.register(_Labelled(ProcessCollector(registry=None), label))
    return registry


class _Labelled(Collector):
    """Another collector's figures with one label more."""

    def __init__(self, collector: Collector, label: Mapping[str, str]) -> None:
        self._collector = collector
        self._label = label

    def collect(self) -> Iterator[Metric]:
        """The figures."""
        for metric in self._collector.collect():
            metric.samples = [
                sample._replace(labels={**sample.labels, **self._label}) for sample in metric.samples
            ]
            yield metric


class _ServiceCollector(Collector):
    """Puts what a process has counted into families of Prometheus."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        """The figures of this moment."""
        services = self._services
        version = {"version": importlib.metadata.version("lineage-trails")}
        yield InfoMetricFamily("trails_build", "The program.", value=version)
        yield from _traffic(services.traffic)
        yield from _ledger(services.ledger.meter)
        yield from _patrol(services.ledger.meter)
        yield from _load(services.ledger.load())
        yield from _streams(services.streams)
        yield from _feed(services.ledger.feed.pollers)
        yield from _webhooks(services.ledger.deliveries)
        yield _exports(services.ledger.exports)
        room = services.room
        held = [(("arriving",), room.held), (("work",), room.work.taken)]
        yield _gauges("trails_large_body_bytes", "Bytes of large bodies.", held, "room")
        most = [(("arriving",), room.arriving), (("work",), room.work.capacity)]
        yield _gauges("trails_large_body_limit_bytes", "How many there may be.", most, "room")


def _traffic(traffic: Traffic) -> Iterator[Metric]:
    by_class = [
        ((method, route, CLASSES[number]), count)
        for (method, route), answered in traffic.answered.items()
        for number, count in enumerate(answered.by_class)
        if count
    ]
    yield _counter("trails_requests", "Requests answered.", by_class, "method", "route", "status")
    durations = HistogramMetricFamily(
        "trails_request_duration_seconds", "From a request's head to its answer.", labels=("method", "route")
    )
    for place, answered in traffic.answered.items():
        _add(durations, answered.seconds, *place)
    yield durations
    yield _gauge("trails_requests_in_flight", "Requests not answered yet.", traffic.in_flight)
    limited = [((limit,), count) for limit, count in traffic.limited.items()]
    yield _counter("trails_rate_limited", "Requests refused for coming too fast.", limited, "limit")


def _streams(streams: Streams) -> Iterator[Metric]:
    among = [((route,), count) for route, count in streams.open.items()]
    yield _gauges("trails_event_streams", "Open event streams.", among, "route")
    ended = [((reason,), count) for reason, count in streams.ended.items()]
    yield _counter("trails_event_streams_ended", "Event streams that ended.", ended, "reason")
    yield _counter("trails_events_streamed", "Events sent on streams.", [((), streams.sent)])


def _feed(pollers: Pollers) -> Iterator[Metric]:
    yield _gauge("trails_feed_pollers", "Tenants whose feed somebody listens to.", len(pollers))
    about = "Times that the database was asked for new records."
    yield _counter("trails_feed_polls", about, [((), pollers.polls)])
    about = "How long these took in all."
    yield _counter("trails_feed_poll_seconds", about, [((), pollers.seconds)])


def _webhooks(counts: Counts) -> Iterator[Metric]:
    attempts = [(("taken",), counts.delivered), (("failed",), counts.failed)]
    yield _counter("trails_webhook_attempts", "Events sent to webhooks.", attempts, "result")
    about = "Webhooks that were switched off, since nothing was taken."
    yield _counter("trails_webhooks_disabled", about, [((), counts.disabled)])
    about = "Webhooks that began again, since their place was not in this database."
    yield _counter("trails_webhooks_restarted", about, [((), counts.restarted)])


def _exports(ended: Mapping[tuple[Format, bool], int]) -> Metric:
    results = [
        ((form.value, result), ended.get((form, is_whole), 0))
        for form in Format
        for result, is_whole in (("whole", True), ("broken", False))
    ]
    return _counter(
        "trails_exports", "Exports that ended, as they are on record.", results, "format", "result"
    )


def _ledger(meter: Meter) -> Iterator[Metric]:
    decisions = list(meter.decisions.items())
    labels = ("tenant", "verdict", "code")
    yield _counter("trails_decisions", "What the guard put on record.", decisions, *labels)
    about = "Records on disk, but for those of administration."
    yield _counter("trails_records_appended", about, [((), meter.records)])
    about = "Appends that another process overtook, so that they were decided again."
    yield _counter("trails_stale_retries", about, [((), meter.stale)])
    appends = HistogramMetricFamily("trails_append_duration_seconds", "From an append to its being on disk.")
    _add(appends, meter.appends)
    yield appends
    groups = HistogramMetricFamily("trails_commit_appends", "Appends in one statement.")
    _add(groups, meter.groups)
    yield groups

    about = "When the file of heads was last known to be up to date; 0: none is kept."
    yield _gauge("trails_heads_timestamp_seconds", about, meter.heads.at)
    about = "Rounds in which it could not be read or written."
    yield _counter("trails_heads_failures", about, [((), meter.heads.failures)])
    about = "Chains of which more was seen than the table holds."
    yield _gauge("trails_chains_behind", about, meter.heads.behind)


def _patrol(meter: Meter) -> Iterator[Metric]:
    about = "Chains that did not verify and were quarantined, whoever found it."
    yield _counter("trails_broken_chains", about, [((), meter.broken)])
    yield _counter("trails_verified_records", "Records verified in the background.", [((), meter.verified)])
    about = "Times that every chain was verified in the background."
    yield _counter("trails_verify_rounds", about, [((), meter.rounds)])
    if meter.covered_since is not None:
        yield _gauge("trails_verify_round_seconds", "How long the last of them took.", meter.round_secs)
        about = "How long ago at most any chain was verified in the background, or since when it tries."
        yield _gauge("trails_verify_age_seconds", about, time.monotonic() - meter.covered_since)


def _load(load: Load) -> Iterator[Metric]:
    yield _gauge("trails_appends_waiting", "Appends that wait for their statement.", load.waiting)
    yield _gauge("trails_chains_in_memory", "Chains that this process has read.", load.chains)
    about = "Those of them that do not verify."
    yield _gauge("trails_quarantined_chains", about, load.quarantined)
    used = load.connections - load.idle_connections
    states = [(("used",), used), (("idle",), load.idle_connections)]
    yield _gauges("trails_pool_connections", "Open database connections.", states, "state")
    yield _gauge("trails_pool_size", "How many there may be.", load.most_connections)


_Values = Iterable[tuple[tuple[str, ...], float]]


def _counter(name: str, about: str, values: _Values, *labels: str) -> Metric:
    family = CounterMetricFamily(name, about, labels=labels)
    for place, value in values:
        family.add_metric(place, value)
    return family


def _gauges(name: str, about: str, values: _Values, *labels: str) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for place, value in values:
        family.add_metric(place, value)
    return family


def _gauge(name: str, about: str, value: float) -> Metric:
    return _gauges(name, about, [((), value)])


def _add(family: HistogramMetricFamily, spread: Distribution, *labels: str) -> None:
    """A distribution as Prometheus has it: each bucket holds those before it."""
    buckets, sofar = [], 0
    for bound, count in zip([*map(str, spread.bounds), "+Inf"], spread.counts, strict=True):
        sofar += count
        buckets.append((bound, sofar))
    family.add_metric(labels, buckets, spread.total)
