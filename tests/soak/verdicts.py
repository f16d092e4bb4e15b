"""How a run is judged. Each verdict says what it saw and what bound it held that against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.bench.steady import Latency, percentile
from tests.soak.report import Kind, Sample, Verdict

SHORTEST_MINUTES = 5.0
"""A process still warms up in the first minutes; in less than this nobody can tell growth from that."""

SERVER_MIB_A_MINUTE = 0.5
BACKENDS_MIB_A_MINUTE = 1.0
SLOWER, SLOWER_MS = 1.5, 5.0
"""The last third's p99 may be so many times the first third's, and so many milliseconds more."""

GROWING = frozenset({"sql"})
"""Kinds whose work grows with the table: auditors' questions over all of it. They are shown, not judged."""


def memory(samples: Sequence[Sample], minutes: float) -> list[Verdict]:
    """Whether the memory of the servers and of PostgreSQL's processes stays as it is in the second half."""
    servers = [
        (
            f"memory of server {number + 1}",
            [sample.rss_mib[number] for sample in samples],
            SERVER_MIB_A_MINUTE,
        )
        for number in range(len(samples[0].rss_mib))
    ]
    backends = ("memory of PostgreSQL", [sample.backends_mib for sample in samples], BACKENDS_MIB_A_MINUTE)
    return [
        _flat(name, [sample.at for sample in samples], values, bound, minutes)
        for name, values, bound in (*servers, backends)
    ]


def _flat(name: str, at: Sequence[float], values: Sequence[float], bound: float, minutes: float) -> Verdict:
    ends = f"{values[0]:.0f} MiB at first, {values[-1]:.0f} at last"
    if minutes < SHORTEST_MINUTES:
        return Verdict(
            name, True, f"not judged in less than {SHORTEST_MINUTES:g} minutes ({ends})", judged=False
        )
    half = len(values) // 2
    slope = slope_of(at[half:], values[half:]) * 60
    told = f"flat: {slope:+.2f} MiB a minute in the second half (bound {bound:g}; {ends})"
    return Verdict(name, slope <= bound, told)


def slope_of(at: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the line of least squares."""
    middle, level = sum(at) / len(at), sum(values) / len(values)
    over = sum((x - middle) ** 2 for x in at)
    return sum((x - middle) * (y - level) for x, y in zip(at, values, strict=True)) / over if over else 0.0


def latency(measured: Mapping[str, Sequence[Latency]], minutes: float) -> Verdict:
    """Whether every kind's p99 of the last third is like that of the first."""
    if minutes < SHORTEST_MINUTES:
        return Verdict("latency", True, f"not judged in less than {SHORTEST_MINUTES:g} minutes", judged=False)
    third = minutes * 60 / 3
    worst: tuple[float, str] = (0.0, "nothing was measured")
    for kind, found in measured.items():
        first = percentile([each.seconds for each in found if each.due < third], 0.99) * 1e3
        last = percentile([each.seconds for each in found if each.due >= 2 * third], 0.99) * 1e3
        if kind not in GROWING:
            told = f"p99 of {kind} is {first:.1f} ms in the first third and {last:.1f} ms in the last"
            worst = max(worst, (last / (first * SLOWER + SLOWER_MS), told))
    bound = f"bound {SLOWER:g} times the first and {SLOWER_MS:g} ms"
    return Verdict("latency", worst[0] <= 1, f"flat: {worst[1]} ({bound}; the worst of all kinds)")


def errors(kinds: Sequence[Kind], faults: Sequence[str]) -> Verdict:
    """Whether every request was answered as it should be."""
    count = sum(kind.errors for kind in kinds)
    if not count:
        return Verdict("errors", True, f"none in {sum(kind.count for kind in kinds):,} requests")
    return Verdict("errors", False, f"none: {count:,} requests failed, the first with {faults[0]}")
