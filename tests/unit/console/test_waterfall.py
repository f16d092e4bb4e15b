"""The common axis: bars stay within it and no time that a sender can write breaks or hides it (case T13)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.console.waterfall import FULL, MIN_WIDTH, Form, Span, in_words, is_doubtful, lay_out

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOW = 1_796_000_000 * SECOND
YEAR_10000 = 253_402_300_800 * SECOND

TIMES = st.one_of(
    st.none(),
    st.integers(NOW - 100 * SECOND, NOW),
    st.integers(0, YEAR_10000),
    st.sampled_from([0, 1, NOW, NOW + DAY, YEAR_10000 - 1]),
)
LENGTHS = st.one_of(st.none(), st.integers(0, 100 * SECOND), st.integers(0, 10**15))
SPANS = st.builds(Span, TIMES, LENGTHS, st.integers(NOW - 10 * SECOND, NOW + 10 * SECOND))


@settings(max_examples=100, deadline=None)
@given(st.lists(SPANS, max_size=40))
def test_every_node_that_says_a_time_has_a_bar_within_the_axis(spans: list[Span]) -> None:
    found = lay_out(spans)
    says = [span.started_us is not None or span.duration_us is not None for span in spans]
    assert (found is not None) is any(says)
    if found is None:
        return
    assert len(found.bars) == len(spans)
    for span, said, bar in zip(spans, says, found.bars, strict=True):
        if not said or (span.started_us is None and span.duration_us is None):
            assert bar is None
        else:
            assert bar is not None
            assert 0 <= bar.x <= bar.x + bar.width <= FULL + 0.02
            assert bar.width >= MIN_WIDTH
    assert found.length_us >= 1
    assert 1 <= len(found.ticks) <= 7
    assert [tick.x for tick in found.ticks] == sorted(tick.x for tick in found.ticks)
    assert all(0 <= tick.x <= FULL for tick in found.ticks)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=2, max_size=20),
    st.sampled_from([1_577_836_800 * SECOND, NOW + 3_600 * SECOND, 4_102_444_800 * SECOND]),
)
def test_t13_a_time_that_the_record_contradicts_moves_no_bar(honest: list[tuple[int, int]], lie: int) -> None:
    spans = [Span(NOW - 100 * SECOND + start * SECOND, length * SECOND, NOW) for start, length in honest]
    alone = lay_out(spans)
    beside = lay_out([*spans, Span(lie, SECOND, NOW)])
    assert alone is not None
    assert beside is not None
    assert (beside.begin_us, beside.length_us) == (alone.begin_us, alone.length_us)
    assert beside.bars[:-1] == alone.bars
    liar = beside.bars[-1]
    assert liar is not None
    assert liar.form is Form.EDGE


def test_a_run_that_was_sent_in_later_has_its_own_axis() -> None:
    old = NOW - 400 * DAY
    spans = [Span(old, 2 * SECOND, NOW), Span(old + SECOND, SECOND, NOW)]
    assert all(is_doubtful(span) for span in spans)
    found = lay_out(spans)
    assert found is not None
    assert (found.begin_us, found.length_us) == (old, 2 * SECOND)
    assert [(bar.x, bar.width, bar.form) for bar in found.bars if bar] == [
        (0.0, 1_000.0, Form.SPAN),
        (500.0, 500.0, Form.SPAN),
    ]


def test_an_end_that_had_not_come_yet_is_doubted() -> None:
    thirty_years = 10**15
    spans = [Span(NOW - SECOND, thirty_years, NOW), Span(NOW - 2 * SECOND, SECOND, NOW)]
    assert [is_doubtful(span) for span in spans] == [True, False]
    found = lay_out(spans)
    assert found is not None
    assert found.length_us == SECOND
    long = found.bars[0]
    assert long is not None
    assert long.form is Form.EDGE


def test_lengths_alone_are_compared() -> None:
    found = lay_out([Span(None, 4 * SECOND, NOW), Span(None, SECOND, NOW), Span(None, None, NOW)])
    assert found is not None
    assert found.begin_us is None
    assert [bar and (bar.x, bar.width, bar.form) for bar in found.bars] == [
        (0.0, 1_000.0, Form.LENGTH),
        (0.0, 250.0, Form.LENGTH),
        None,
    ]


def test_lengths_in_words() -> None:
    told = {
        0: "0 µs",
        999: "999 µs",
        1_500: "1.5 ms",
        250_000: "250 ms",
        999_999: "999 ms",
        1_234_567: "1.23 s",
        59_999_999: "60 s",
        184 * SECOND: "3 min 4 s",
        3_600 * SECOND: "1 h",
        90_000 * SECOND: "1 d 1 h",
    }
    assert {us: in_words(us) for us in told} == told
