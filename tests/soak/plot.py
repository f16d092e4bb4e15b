"""Series of samples as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tests.soak.report import Sample

WIDTH = 60
_BARS = "▁▂▃▄▅▆▇█"


def plots(samples: Sequence[Sample]) -> list[str]:
    """A line for each series: its name, its course from left to right, its least and most."""
    series = {
        f"server {number + 1}, RSS MiB": [sample.rss_mib[number] for sample in samples]
        for number in range(len(samples[0].rss_mib))
    }
    series["PostgreSQL's own MiB"] = [sample.backends_mib for sample in samples]
    series["connections"] = [float(sample.connections) for sample in samples]
    series["table MiB"] = [sample.table_mib for sample in samples]
    for kind in samples[-1].latencies:
        series[f"{kind}, p99 ms"] = [
            sample.latencies[kind][2] for sample in samples if kind in sample.latencies
        ]
    return [
        f"{name:22} {line(values)} {min(values):,.1f} to {max(values):,.1f}"
        for name, values in series.items()
    ]


def line(values: Sequence[float], width: int = WIDTH) -> str:
    """The course of a series, the largest of what falls into one place, on a scale from 0 to its most."""
    places = min(width, len(values))
    bounds = [place * len(values) // places for place in range(places + 1)]
    highest = max(values) or 1.0
    tops = (max(values[first:end]) for first, end in pairwise(bounds))
    return "".join(_BARS[min(int(top / highest * len(_BARS)), len(_BARS) - 1)] for top in tops).ljust(width)
