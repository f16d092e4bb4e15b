"""Rows as columns of text: cut to fit a terminal, whole where nobody looks.

On a terminal a row is one line; what does not fit is cut and ends in an ellipsis, numbers never. Where even
the titles do not fit side by side, each row is written below the other, a column a line. In a pipe or a file
every cell stands as it is, for grep.

Widths are cells of a terminal (wide characters take two, combining ones none). Letters that are written from
right to left are isolated (UAX 9), so that a terminal which reorders them keeps the columns apart.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

_GAP: Final = "  "
_CUT: Final = "…"
_ALIGNED_UP_TO: Final = 120
"""In a pipe a longer cell pushes its own row only, or one document would widen all rows by a megabyte."""

_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
_ISOLATE, _END_ISOLATE = "\u2068", "\u2069"
_DOTTED_CIRCLE: Final = "\u25cc"
"""What Unicode shows a combining mark on that has no letter before it."""


class Column(msgspec.Struct, frozen=True):
    """A column: its title; whether it holds numbers; the cells that it keeps, where it has as many."""

    title: str
    number: bool = False
    least: int = 12


class Grid(msgspec.Struct, frozen=True):
    """A table for ``Console.print(grid, crop=False)``; every cell is one line that steers nothing.

    ``styles`` are those of whole rows, by their number.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    styles: Mapping[int, str] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lays it out for a terminal of this width, or for a pipe."""
        if not console.is_terminal:
            yield from self._lines(self._natural(_ALIGNED_UP_TO), isolate=False)
            return
        natural = self._natural(None)
        floors = list(map(_floor, self.columns, natural))
        widths = fitted(natural, floors, options.max_width - len(_GAP) * (len(self.columns) - 1))
        if widths is None:
            yield from self._records(options.max_width)
        else:
            yield from self._lines(widths, isolate=True)

    def _natural(self, at_most: int | None) -> list[int]:
        """What each column needs; cells of more than ``at_most`` are not counted."""
        return [
            max(
                width
                for width in (cell_len(column.title), *(cell_len(row[at]) for row in self.rows))
                if at_most is None or width <= at_most or width == cell_len(column.title)
            )
            for at, column in enumerate(self.columns)
        ]

    def _lines(self, widths: Sequence[int], *, isolate: bool) -> Iterator[Segment]:
        titles = [column.title for column in self.columns]
        yield from self._line(titles, widths, "bold", isolate=isolate)
        for number, row in enumerate(self.rows):
            yield from self._line(row, widths, self.styles.get(number, ""), isolate=isolate)

    def _line(
        self, cells: Sequence[str], widths: Sequence[int], style: str, *, isolate: bool
    ) -> Iterator[Segment]:
        parts = []
        for column, text, width in zip(self.columns, cells, widths, strict=True):
            shown = cut(text, width) if isolate else text
            blank = " " * (width - cell_len(shown))
            shown = isolated(shown) if isolate else shown
            parts.append(blank + shown if column.number else shown + blank)
        yield Segment(_GAP.join(parts).rstrip(" "), Style.parse(style))
        yield Segment.line()

    def _records(self, width: int) -> Iterator[Segment]:
        """Each row below the other: too many columns for this terminal."""
        titles = max(cell_len(column.title) for column in self.columns)
        room = max(width - titles - len(_GAP), 1)
        for number, row in enumerate(self.rows):
            yield Segment(f"-[ {number + 1} ]".ljust(min(width, 40), "-"), Style.parse("bold"))
            yield Segment.line()
            for column, text in zip(self.columns, row, strict=True):
                shown = text if column.number else isolated(cut(text, room))
                line = column.title.ljust(titles) + _GAP + shown
                yield Segment(line.rstrip(" "), Style.parse(self.styles.get(number, "")))
                yield Segment.line()


def fitted(natural: Sequence[int], floors: Sequence[int], room: int) -> list[int] | None:
    """Widths that fill at most ``room`` cells, the widest columns cut first, none below its floor.

    Returns:
        None: the floors alone are wider.
    """

    def capped(cap: int) -> list[int]:
        return [max(floor, min(width, cap)) for width, floor in zip(natural, floors, strict=True)]

    if sum(floors) > room:
        return None
    low, high = 0, max(natural, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(capped(middle)) <= room:
            low = middle
        else:
            high = middle - 1
    widths = capped(low)
    for at, width in enumerate(natural):
        if widths[at] == low < width and sum(widths) < room:
            widths[at] += 1
    return widths


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells (one at least); what was cut ends in an ellipsis."""
    if text and unicodedata.combining(text[0]):
        text = _DOTTED_CIRCLE + text
    if cell_len(text) <= width:
        return text
    return (chop_cells(text, width - 1)[0] if width > 1 else "") + _CUT


def isolated(text: str) -> str:
    """``text`` so that its letters from right to left move nothing outside it."""
    if text.isascii() or not any(unicodedata.bidirectional(char) in _RIGHT_TO_LEFT for char in text):
        return text
    return f"{_ISOLATE}{text}{_END_ISOLATE}"


def _floor(column: Column, natural: int) -> int:
    """The cells that a column keeps however narrow the terminal: a number all, others their title."""
    return natural if column.number else min(natural, max(column.least, cell_len(column.title)))
