"""How long a process writes to one chain before it leaves it to others for a moment."""

from __future__ import annotations

from app.ledger.chain import LOCK_SECS
from app.ledger.pace import BREAK_SECS, LONGEST_BREAK_SECS, LONGEST_SECS, SHORTEST_SECS, Pace

ACT_SECS = 0.001


def breaks(pace: Pace, begin: float, secs: float, *, gap: float = 0.0, shared: bool = False) -> list[float]:
    """When breaks were made, by a process that writes for ``secs``; ``shared``: each time somebody came."""
    found, now = [], begin
    while now < begin + secs:
        pace.come(now)
        if pace.needs_break(now):
            found.append(now - begin)
            now += pace.pause
            pace.broken(now, shared=shared)
        now += ACT_SECS
        pace.leave(now)
        now += gap
    return found


def test_who_is_alone_makes_breaks_of_less_than_a_hundredth_of_the_time() -> None:
    found = breaks(Pace(), 100.0, 20.0)
    assert 0 < len(found) * BREAK_SECS < 20.0 / 100


def test_others_are_found_before_they_are_told_to_try_later() -> None:
    assert breaks(Pace(), 100.0, 20.0)[0] < LONGEST_SECS + 2 * ACT_SECS < LOCK_SECS


def test_where_others_write_breaks_are_made_often_and_become_seldom_again() -> None:
    pace = Pace()
    assert len(breaks(pace, 100.0, 5.0, shared=True)) > 2.0 / (SHORTEST_SECS + 3 * BREAK_SECS)
    later = breaks(pace, 105.0, 20.0)
    assert later[1] - later[0] < 3 * SHORTEST_SECS
    assert later[-1] - later[-2] > LONGEST_SECS


def test_whose_acts_are_far_apart_makes_no_breaks() -> None:
    assert breaks(Pace(), 100.0, 60.0, gap=BREAK_SECS + ACT_SECS) == []


def test_a_break_is_long_enough_for_others_whose_acts_take_long_too() -> None:
    pace = Pace()
    pace.come(100.0)
    pace.leave(100.2)
    assert pace.pause >= 0.4


def test_an_act_that_waited_for_a_silent_database_makes_no_long_break() -> None:
    pace = Pace()
    pace.come(100.0)
    pace.leave(130.0)
    assert pace.pause == LONGEST_BREAK_SECS
    pace.broken(140.0, shared=True)
    assert 2 * LONGEST_BREAK_SECS == pace.pause < LOCK_SECS - LONGEST_SECS
