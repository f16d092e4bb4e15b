"""How the figures of a row are written, in the table of the terminal and in that of the guides alike."""

from __future__ import annotations

from tests.bench.machine import Machine, Versions
from tests.bench.rows import Kind, Row, Side

_SMALL, _MIDDLE = 10, 100


def figure(value: float) -> str:
    """A figure with three digits or more, and no more than it can mean."""
    if abs(value) >= _MIDDLE:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < _SMALL else f"{value:.1f}"


def median(side: Side | None) -> str:
    """The run in the middle."""
    return "" if side is None else figure(side.median)


def result(row: Row) -> str:
    """A multiple of the floor, a difference with its sign, or the figure itself."""
    if row.kind is Kind.RATIO:
        return f"{figure(row.result)}x"
    return f"{row.result:+,.1f}" if row.kind is Kind.DIFFERENCE else figure(row.result)


def goal(row: Row, value: float | None) -> str:
    """What the result has to reach, or may not exceed."""
    if value is None:
        return ""
    return f"≥ {value:g}x" if row.kind is Kind.RATIO else f"≤ {value:g}"


def spread(row: Row) -> str:
    """How far our runs and the floor's lie apart, in percent of their median."""
    sides = [side for side in (row.ours, row.floor) if side is not None]
    return "/".join(f"{side.spread:.0%}".rstrip("%") if len(side.runs) > 1 else "-" for side in sides)


def cost(side: Side | None) -> str:
    """CPU microseconds of a unit, of the server and of PostgreSQL."""
    if side is None or side.spent is None:
        return ""
    return f"{side.spent.server:.0f}+{side.spent.postgres:.0f}"


def generator(row: Row) -> str:
    """The share of one core that the load generator took, in percent: in our runs, and the floor's."""
    shares = [side.generator for side in (row.ours, row.floor) if side is not None]
    told = ["-" if share is None else f"{share * 100:.0f}" for share in shares]
    return "/".join(told) if set(told) - {"-"} else ""


def origin(machine: Machine, versions: Versions, date: str) -> str:
    """On what, and when."""
    postgresql = f", PostgreSQL {versions.postgresql}" if versions.postgresql else ""
    revision = f", revision {versions.revision}" if versions.revision else ""
    return (
        f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:.0f} GiB, {machine.system}; "
        f"Python {versions.python}{postgresql}{revision}; {date[:10]}"
    )
