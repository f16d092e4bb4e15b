"""A common time axis for the nodes of a session, and the bar of each: pure, from the senders' own times.

Senders choose these times (case T13). So what a record's own time contradicts, such as a start long before or
after it or an end that had not come yet, moves no axis: its bar stands at the edge, marked. Where all of them
contradict, as in runs that were imported later, their own times make the axis after all.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from app.trace.instant import MAX_AHEAD_US, is_skewed

FULL: Final = 1_000.0
"""Width of the axis, in its own units."""

MIN_WIDTH: Final = 3.0
"""What is shorter is shown as wide as this."""

_MOST_TICKS: Final = 6
_SECOND: Final = 1_000_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_STEPS: Final = (
    *(factor * 10**power for power in range(7) for factor in (1, 2, 5)),
    *(factor * _SECOND for factor in (10, 15, 30)),
    *(factor * _MINUTE for factor in (1, 2, 5, 10, 15, 30)),
    *(factor * _HOUR for factor in (1, 2, 3, 6, 12)),
    *(factor * _DAY for factor in (1, 2, 5, 10, 20, 50, 100, 200, 365)),
)


class Span(msgspec.Struct, frozen=True):
    """What a node says of its time, and when it was recorded; all in µs."""

    started_us: int | None
    duration_us: int | None
    recorded_us: int


class Form(enum.StrEnum):
    """How a bar is to be read."""

    SPAN = "span"
    MOMENT = "moment"
    """It began then; how long it took is not said."""
    LENGTH = "length"
    """It took so long; when is not said, so the bar begins at the left."""
    EDGE = "edge"
    """Some of it lies outside of the axis."""


class Bar(msgspec.Struct, frozen=True):
    """A bar, in units of the axis: ``0 <= x``, ``x + width <= FULL``."""

    x: float
    width: float
    form: Form


class Tick(msgspec.Struct, frozen=True):
    """A mark on the axis and the time since its beginning."""

    x: float
    label: str


class Waterfall(msgspec.Struct, frozen=True):
    """The axis and one bar a node, None for a node that says nothing of its time.

    ``begin_us`` is None where nobody said when anything began, so that only lengths can be compared.
    """

    begin_us: int | None
    length_us: int
    ticks: tuple[Tick, ...]
    bars: tuple[Bar | None, ...]


def lay_out(spans: Sequence[Span]) -> Waterfall | None:
    """Places all spans on one axis; None when none of them says anything of its time."""
    begin, length = _axis(spans)
    if length is None:
        return None
    bars = tuple(_bar(span, begin, length) for span in spans)
    return Waterfall(begin, length, _ticks(length), bars)


def in_words(us: int) -> str:
    """A length of time in at most two units: ``80 ms``, ``1.2 s``, ``3 min 4 s``."""
    if us < 1_000:
        return f"{us} µs"
    if us < 100_000:
        return f"{us / 1_000:.3g} ms"
    if us < _SECOND:
        return f"{us // 1_000} ms"
    if us < _MINUTE:
        return f"{us // 10_000 / 100:.3g} s"
    for size, unit, smaller, small in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min")):
        if us >= size:
            rest = us % size // smaller
            return f"{us // size} {unit}" + (f" {rest} {small}" if rest else "")
    rest = us % _MINUTE // _SECOND
    return f"{us // _MINUTE} min" + (f" {rest} s" if rest else "")


def is_doubtful(span: Span) -> bool:
    """Whether the record's own time contradicts what is said of the time."""
    if span.started_us is None:
        return False
    ended = span.started_us + (span.duration_us or 0)
    return is_skewed(span.started_us, span.recorded_us) or ended > span.recorded_us + MAX_AHEAD_US


def _axis(spans: Sequence[Span]) -> tuple[int | None, int | None]:
    """Beginning and length; a length alone where nothing says when it began."""
    believed = [span for span in spans if span.started_us is not None and not is_doubtful(span)]
    ends = [(span.started_us or 0, (span.started_us or 0) + (span.duration_us or 0)) for span in believed]
    if not ends:
        ends = [
            (span.started_us, _end_at_most(span, span.recorded_us))
            for span in spans
            if span.started_us is not None
        ]
    if ends:
        begin = min(start for start, _ in ends)
        return begin, max(1, max(end for _, end in ends) - begin)
    longest = max((span.duration_us for span in spans if span.duration_us is not None), default=None)
    return None, None if longest is None else max(1, longest)


def _end_at_most(span: Span, us: int) -> int:
    """When it ended; an end that had not come yet when it was recorded is left out."""
    started = span.started_us or 0
    return max(started, min(started + (span.duration_us or 0), us))


def _bar(span: Span, begin: int | None, length: int) -> Bar | None:
    if span.started_us is None or begin is None:
        return None if span.duration_us is None else _placed(0, span.duration_us, length, Form.LENGTH)
    start = span.started_us - begin
    form = Form.MOMENT if span.duration_us is None else Form.SPAN
    return _placed(start, start + (span.duration_us or 0), length, form)


def _placed(start: int, end: int, length: int, form: Form) -> Bar:
    """A bar from ``start`` to ``end``, cut to the axis; integers until the last step, however large."""
    if start < 0 or end > length:
        form = Form.EDGE
    left, right = (FULL * min(max(at, 0), length) / length for at in (start, end))
    width = max(MIN_WIDTH, right - left)
    return Bar(round(min(left, FULL - width), 2), round(width, 2), form)


def _ticks(length: int) -> tuple[Tick, ...]:
    step = next((step for step in _STEPS if length // step < _MOST_TICKS), length)
    places = range(0, length, step)
    return tuple(Tick(round(FULL * at / length, 2), in_words(at) if at else "0") for at in places)
