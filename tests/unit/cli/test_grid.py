"""Tables: cut to fit a terminal, whole in a pipe, nothing in a cell moves another one."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from app.cli.grid import Column, Grid, cut, fitted, isolated
from app.cli.listing import columns_of

COLUMNS = [Column("id"), Column("count", number=True), Column("text"), Column("at", least=20)]
LONG = ["long-" * 10, "12345678901234567890", "text " * 50, "2026-01-01T09:02:00.000000Z"]
SHORT = ["a", "1", "", "2026-01-01T09:02:00.000000Z"]


def shown(grid: Grid, width: int | None) -> list[str]:
    """The lines on a terminal of this width; None: in a pipe."""
    out = io.StringIO()
    terminal = width is not None
    console = Console(file=out, width=width or 200, force_terminal=terminal, color_system=None, no_color=True)
    console.print(grid, crop=False)
    return out.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


def test_on_a_terminal_a_row_is_one_line_and_what_is_cut_ends_in_an_ellipsis() -> None:
    title, long, short = shown(Grid(COLUMNS, [LONG, SHORT]), 80)
    assert [cell_len(line) <= 80 for line in (title, long, short)] == [True] * 3
    assert cell_len(long) == 80
    assert long.count("…") == 3
    assert LONG[1] in long, "a number is never cut"
    assert "2026-01-01T09:02:00" in long, "a time keeps its second"
    at = title.index("at")
    assert long[at:].startswith("2026")
    assert short[at:].startswith("2026")


def test_numbers_stand_on_the_right() -> None:
    title, long, short = shown(Grid(COLUMNS, [LONG, SHORT]), 80)
    end = title.index("count") + len("count")
    assert (long[end - 20 : end], short[end - 20 : end]) == (LONG[1], "1".rjust(20))


def test_an_id_that_is_copied_into_a_command_is_never_cut() -> None:
    login = "trails_auditor_1b2c3d4e5f60"
    grid = Grid(columns_of(["login", "name", "state"]), [[login, "a name " * 20, "active"]])
    for width in (60, 80):
        assert login in shown(grid, width)[1]
    assert f"login  {login}" in shown(grid, 40)


def test_in_a_pipe_every_cell_is_whole() -> None:
    lines = shown(Grid(COLUMNS, [LONG, SHORT]), None)
    assert all(cell.rstrip() in lines[1] for cell in LONG)
    assert "…" not in "".join(lines)


def test_in_a_pipe_one_document_pushes_its_own_row_only() -> None:
    rows = [["x" * 1_000_000, "1", "", ""], SHORT]
    _, long, short = shown(Grid(COLUMNS, rows), None)
    assert len(long) > 1_000_000
    assert len(short) < 100


def test_more_columns_than_a_terminal_has_room_for_stand_below_each_other() -> None:
    columns = [Column(f"column_number_{number}") for number in range(12)]
    lines = shown(Grid(columns, [["value " * 20] * 12, ["v"] * 12]), 80)
    assert len(lines) == 2 * 13
    assert lines[0].startswith("-[ 1 ]")
    assert lines[13].startswith("-[ 2 ]")
    assert lines[14] == "column_number_0   v"
    assert max(map(cell_len, lines)) == 80


def test_no_rows_are_the_titles_alone() -> None:
    assert shown(Grid(COLUMNS, []), 80) == ["id  count  text  at"]


@pytest.mark.parametrize("width", [None, 60])
def test_wide_and_combining_characters_keep_the_columns_straight(width: int | None) -> None:
    texts = ["日本語", "e\u0301a\u0308", "plain", "한국어"]
    lines = shown(Grid([Column("text"), Column("next")], [[text, "|"] for text in texts]), width)
    assert {cell_len(line.partition("|")[0]) for line in lines[1:]} == {8}


def test_a_wide_character_is_never_halved() -> None:
    assert cut("日本語テキスト", 6) == "日本…"
    assert cut("日本語", 6) == "日本語"


def test_a_combining_mark_stays_in_its_own_cell() -> None:
    assert cut("\u0301x", 10) == "\u25cc\u0301x"


def test_letters_from_right_to_left_are_isolated_on_a_terminal_alone() -> None:
    grid = Grid([Column("text"), Column("n", number=True)], [["שלמה", "5"], ["plain", "6"]])
    _, hebrew, plain = shown(grid, 60)
    assert hebrew == "\u2068שלמה\u2069   5"
    assert plain == "plain  6"
    assert shown(grid, None)[1] == "שלמה   5"
    assert isolated("plain é 日本") == "plain é 日本"


def test_no_cell_is_read_as_markup() -> None:
    assert shown(Grid([Column("a")], [["[red]x[/red] :smile:"]]), 80)[1] == "[red]x[/red] :smile:"


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 30)), min_size=1, max_size=12),
    st.integers(0, 400),
)
@settings(max_examples=100, deadline=None)
def test_widths_fill_the_room_and_no_more(columns: list[tuple[int, int]], room: int) -> None:
    natural = [width for width, _ in columns]
    floors = [min(pair) for pair in columns]
    widths = fitted(natural, floors, room)
    if widths is None:
        assert sum(floors) > room
        return
    assert all(floor <= width <= most for floor, width, most in zip(floors, widths, natural, strict=True))
    assert sum(widths) == min(room, sum(natural))


@given(st.text(max_size=40), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_what_is_cut_fits(text: str, width: int) -> None:
    text = "".join(char for char in text if char.isprintable())
    assert cell_len(cut(text, width)) <= width
