"""The tables and views as a picture (SVG), made of what a migrated database says of itself.

The same schema gives the same bytes. Tables stand on the left with all their columns, views on the right with
what they read; no arrow is drawn, since nearly all would lead to one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from tests.support.schema_words import Relation

WIDTH: Final = 1180
COLUMN: Final = 370
GAP: Final = 25
LEFT: Final = 10
TITLE: Final = 30
LINE: Final = 18
PAD: Final = 8
SPACE: Final = 18
TOP: Final = 60

STYLE: Final = """
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
  .name { font-weight: 700 }
  .head { font: 600 16px system-ui, sans-serif }
  .soft { fill: #59636e }
  .paper { fill: #ffffff }
  .box { fill: #f6f8fa; stroke: #8c959f }
  .title { fill: #ddf4ff; stroke: #8c959f }
  .seen { fill: #dafbe1; stroke: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .soft { fill: #b1bac4 }
    .paper { fill: #0d1117 }
    .box { fill: #161b22; stroke: #6e7681 }
    .title { fill: #0c2d6b; stroke: #6e7681 }
    .seen { fill: #04461a; stroke: #6e7681 }
  }
"""


def picture(relations: Sequence[Relation]) -> str:
    """The SVG of these tables and views."""
    tables = [relation for relation in relations if not relation.is_view]
    views = [relation for relation in relations if relation.is_view]
    columns = [*_spread(tables, 2), views]
    heights = [TOP + sum(_height(relation) + SPACE for relation in column) for column in columns]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{max(heights)}"',
        f' viewBox="0 0 {WIDTH} {max(heights)}" role="img">',
        "<title>The tables and views of the schema trails</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{max(heights)}"/>',
    ]
    heads = ("Tables: # is the key, * may be NULL", "", "Views, and what each reads")
    for place, (head, column) in enumerate(zip(heads, columns, strict=True)):
        x, y = LEFT + place * (COLUMN + GAP), TOP
        parts.append(f'<text class="head" x="{x}" y="36">{escape(head)}</text>')
        for relation in column:
            parts += _box(relation, x, y)
            y += _height(relation) + SPACE
    return "\n".join([*parts, "</svg>", ""])


def _spread(tables: Sequence[Relation], count: int) -> list[list[Relation]]:
    """The tables in columns: each goes to the one that is the shortest, the largest first."""
    columns: list[list[Relation]] = [[] for _ in range(count)]
    for table in sorted(tables, key=lambda table: (-len(table.columns), table.name)):
        min(columns, key=lambda column: sum(map(_height, column))).append(table)
    return columns


def _lines(relation: Relation) -> list[tuple[str, str]]:
    """Text and class of the lines in a box."""
    if relation.is_view:
        return [(f"reads {name}", "soft") for name in relation.reads]
    return [
        (f"{'#' if column.is_key else ' '} {column.name} {column.kind}{'' if column.required else ' *'}", "")
        for column in relation.columns
    ]


def _height(relation: Relation) -> int:
    return TITLE + LINE * len(_lines(relation)) + (PAD if relation.columns else 0)


def _box(relation: Relation, x: int, y: int) -> Iterator[str]:
    height, title = _height(relation), "seen" if relation.is_view else "title"
    yield f'<rect class="box" x="{x}" y="{y}" width="{COLUMN}" height="{height}" rx="5"/>'
    yield f'<rect class="{title}" x="{x}" y="{y}" width="{COLUMN}" height="{TITLE - 4}" rx="5"/>'
    yield f'<text class="name" x="{x + PAD}" y="{y + 18}">{escape(relation.name)}</text>'
    for number, (text, kind) in enumerate(_lines(relation)):
        place = f'x="{x + PAD}" y="{y + TITLE + LINE * number + 12}" xml:space="preserve"'
        yield (
            f'<text class="{kind}" {place}>{escape(text)}</text>'
            if kind
            else f"<text {place}>{escape(text)}</text>"
        )
