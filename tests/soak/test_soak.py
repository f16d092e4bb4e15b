"""The soak test in its short form: that it loads, samples and judges; what is flat needs longer."""

from __future__ import annotations

import pytest

import db.ledger
from db.pool import Pool
from tests.bench.steady import Latency
from tests.soak import plot, verdicts
from tests.soak.record import Record
from tests.soak.report import Sample
from tests.soak.run import soak
from tests.soak.traffic import RATES
from tests.support.postgres import Database
from tests.support.rows import register_tenant, started_chain

MINUTES = 0.12


def test_a_short_run_loses_nothing_and_verifies(database: Database) -> None:
    report = soak(database, MINUTES)
    assert report.good, report.verdicts
    assert [verdict.name for verdict in report.verdicts] == [
        "errors", "verification", "records", "memory of server 1", "memory of server 2",
        "memory of PostgreSQL", "latency",
    ]  # fmt: skip
    assert [verdict.judged for verdict in report.verdicts] == [True] * 3 + [False] * 4
    assert {kind.name for kind in report.kinds if kind.count} == set(RATES)
    assert len(report.samples) >= 5
    assert all(rss > 0 for sample in report.samples for rss in sample.rss_mib)
    assert any(line.startswith("ask, p99 ms") for line in plot.plots(report.samples))


async def test_marks_that_are_not_there_once_are_found(database: Database, pool: Pool) -> None:
    record = Record()
    lost, there, twice = (record.mark() for _ in range(3))
    maker = await started_chain(pool, await register_tenant(pool, "soaked"))
    for mark in (there, twice, twice, record.mark()):
        await db.ledger.append(pool, [maker.row(payload={"data": {"mark": mark}})])
    for mark in (there, twice, lost):
        record.acknowledge("event", mark)
    found = record.verdict(database.admin_url)
    assert not found.good
    assert found.told == "each there once: 3 acknowledged, 1 lost, 1 doubled, 1 that nobody was told of"


@pytest.mark.parametrize(("growth", "good"), [(0.4, True), (0.6, False)])
def test_memory_that_grows_in_the_second_half_is_not_flat(growth: float, good: bool) -> None:
    minutes = 10
    samples = [
        # The first half warms up, much faster than the bound.
        _sample(at, 100 + 20 * min(at, 300) / 60 + growth * max(at - 300, 0) / 60)
        for at in range(0, minutes * 60 + 1, 5)
    ]
    servers = verdicts.memory(samples, minutes)[0]
    assert servers.good is good, servers.told
    assert f"{growth:+.2f} MiB" in servers.told


@pytest.mark.parametrize(("last_ms", "good"), [(19.0, True), (21.0, False)])
def test_a_kind_that_slows_down_is_not_flat(last_ms: float, good: bool) -> None:
    measured = {
        "ask": [Latency(at, (10.0 if at < 400 else last_ms) / 1e3) for at in range(600)],
        "sql": [Latency(at, float(at)) for at in range(600)],
    }
    verdict = verdicts.latency(measured, 10)
    assert verdict.good is good, verdict.told
    assert "p99 of ask is 10.0 ms" in verdict.told


def _sample(at: float, rss: float) -> Sample:
    return Sample(at, (rss,), 10.0, 4, 1.0, 0, {})
