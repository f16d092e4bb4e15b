"""The columns of a chart: every count is drawn once, within the picture, whatever the period."""

from __future__ import annotations

import datetime as dt

from hypothesis import given, settings
from hypothesis import strategies as st

from app.console.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, stack, steps_between

START = dt.datetime(2026, 1, 31, 23, 30, tzinfo=dt.UTC)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 400),
    st.dictionaries(st.tuples(st.integers(0, 399), st.integers(0, 6)), st.integers(0, 10**9), max_size=40),
    st.sampled_from(["hour", "day", "month"]),
)
def test_every_count_has_its_block(length: int, given_: dict[tuple[int, int], int], unit: str) -> None:
    steps = steps_between(START, START + dt.timedelta(hours=length), unit)
    counts = {(steps[at % len(steps)], one): count for (at, one), count in given_.items()}
    chart = stack(steps, counts, 7, unit)
    assert {(block.at, block.series): block.count for block in chart.blocks} == {
        place: count for place, count in counts.items() if count
    }
    for block in chart.blocks:
        assert LEFT <= block.x <= block.x + block.width <= WIDTH + 0.01
        assert TOP - 0.01 <= block.y <= block.y + block.height <= HEIGHT - BOTTOM + 0.01
    assert len(chart.times) <= 8
    assert all(LEFT <= time.place <= WIDTH - RIGHT for time in chart.times), "with room for their texts"


def test_steps_meet_the_whole_period() -> None:
    hours = steps_between(START, START + dt.timedelta(hours=1), "hour")
    assert [at.isoformat() for at in hours] == ["2026-01-31T23:00:00+00:00", "2026-02-01T00:00:00+00:00"]
    months = steps_between(START, START + dt.timedelta(days=335), "month")
    assert [at.month for at in months] == [*range(1, 13), 1]
    assert steps_between(START, START, "day") == [START.replace(hour=0, minute=0)]
