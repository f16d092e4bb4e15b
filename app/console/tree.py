"""The trace tree as rows of a picture: which nodes, in which order, how nested, which path failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from app.chain.canonical import canonical
from app.chain.strict import JsonObject, JsonValue
from app.console.waterfall import Span, is_doubtful
from app.trace.figures import Figures, figures_of
from app.trace.node import is_uuid
from app.trace.tree import TreeNode

WRONG: Final = frozenset({"failed", "harmful"})
"""Ends of a node that a path is followed to."""

CORRECTION: Final = "SELF_CORRECTION"
TOOL_CALL: Final = "TOOL_CALL"

MAX_ROWS: Final = 2_000
"""Nodes in one page; the others are on the next."""

MAX_NESTED: Final = 12
"""Levels that are nested; what is deeper stands below each other and says its level."""

OPEN_AT_MOST: Final = 300
"""A picture of so many nodes is shown open as a whole."""

OPEN_LEVELS: Final = 2
"""Of a larger one these levels are open, and every path that failed."""

GIST_CHARS: Final = 160
_NAME_CHARS: Final = 200
_STATUS_CHARS: Final = 40
_SPACES: Final = re.compile(r"\s+")


class Chosen(msgspec.Struct, frozen=True):
    """Which nodes are asked for: all of these must hold; the nodes above them are shown as well.

    ``text`` is looked for in everything that a node says, in either case.
    """

    failed: bool = False
    node_type: str | None = None
    text: str | None = None

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return self == Chosen()


class Row(msgspec.Struct, frozen=True):
    """What the picture says of one node. Times in µs; what the sender said is the sender's word.

    Attributes:
        parent: its parent's place in the list of all rows; None at the top.
        level: 0 at the top; None in a cycle or below one.
        gist: why it failed, or what it thought, or what came out, cut.
        matches: whether type and text are those that are asked for.
    """

    node_id: str
    agent_id: str
    seq: int
    node_type: str
    name: str
    status: str | None
    figures: Figures
    recorded_us: int
    skewed: bool
    guarded: bool
    nested: bool
    gist: str
    matches: bool
    level: int | None
    orphan: bool
    sendings: int
    conflict: bool
    children: tuple[int, ...]

    @property
    def span(self) -> Span:
        """Its time."""
        return Span(self.figures.started_us, self.figures.duration_us, self.recorded_us)

    @property
    def is_wrong(self) -> bool:
        """Whether it failed or did harm."""
        return self.status in WRONG


class Line(msgspec.Struct, frozen=True):
    """A row in its place on a page.

    Attributes:
        number: its place among all rows, from 1.
        opens: whether lines that are nested in it follow.
        shown: whether these are shown, rather than closed.
        closes: how many nested lists end after it.
        below: nodes below it, at any level.
        path: whether a failed node is below it.
        fixes: number of the failed row that it comes after to put it right.
        aside: it is there for its place only, and not what is asked for.
        deep: its level where that is not shown by nesting.
    """

    row: Row
    number: int
    opens: bool
    shown: bool
    closes: int
    below: int
    path: bool
    fixes: int | None
    aside: bool
    deep: int | None


class Picture(msgspec.Struct, frozen=True):
    """A page of the tree.

    Attributes:
        lines: the tree.
        astray: nodes in cycles, which hang on no root.
        wrong: places of all failed rows among all rows.
        found: rows that are asked for, over all pages.
        first: number of the first row of this page among those that are shown, from 1.
        following: number of the first one of the next page; None at the end.
        total: of these, over all pages.
    """

    lines: list[Line]
    astray: list[Line]
    wrong: list[int]
    found: int
    first: int
    following: int | None
    total: int


def read_row(node: TreeNode, sent: JsonObject, chosen: Chosen) -> Row:
    """What the picture needs of a node, whatever was sent."""
    shown = node.shown
    figures = figures_of(sent.get("metadata"))
    span = Span(figures.started_us, figures.duration_us, shown.source.recorded_us)
    return Row(
        node_id=shown.node_id,
        agent_id=shown.source.agent_id,
        seq=shown.source.seq,
        node_type=shown.node_type[:_NAME_CHARS],
        name=cut(shown.name, _NAME_CHARS),
        status=None if shown.status is None else cut(shown.status, _STATUS_CHARS),
        figures=figures,
        recorded_us=shown.source.recorded_us,
        skewed=is_doubtful(span),
        guarded=shown.source.guarded,
        nested=outer_of(sent) is not None,
        gist=_gist(shown.status, sent),
        matches=_matches(node, sent, chosen),
        level=None if node.depth is None else node.depth - 1,
        orphan=node.orphan,
        sendings=node.sendings,
        conflict=node.conflict,
        children=node.children,
    )


def outer_of(sent: JsonObject) -> str | None:
    """The node that a node says it is the inner end of."""
    metadata = sent.get("metadata")
    outer = metadata.get("nested_in") if isinstance(metadata, dict) else None
    return outer.lower() if is_uuid(outer) else None


def error_of(outputs: JsonValue) -> str | None:
    """Why a call did not succeed, in words: the rule of the view (``trails.error_v1``)."""
    if not isinstance(outputs, dict) or outputs.get("status") == "success":
        return None
    error, reason = outputs.get("error"), outputs.get("reason")
    ways = (
        error.get("message") if isinstance(error, dict) else None,
        error,
        outputs.get("detail") or None,
        reason.get("code") if isinstance(reason, dict) else None,
        reason,
    )
    found = next((way for way in ways if way is not None), None)
    return found if found is None or isinstance(found, str) else canonical(found)


def draw(rows: Sequence[Row], chosen: Chosen, *, first: int = 1, everything: bool = False) -> Picture:
    """The page of the picture that begins at ``first`` of the rows that are shown.

    Args:
        rows: all nodes in the order of the tree: each parent before what is below it, cycles last.
        chosen: which are asked for.
        first: from 1.
        everything: all of it is open, for a printer.
    """
    parents = parents_of(rows)
    wrong = [place for place, row in enumerate(rows) if row.is_wrong]
    fixes = corrections(rows)
    paths = _with_ancestors(wrong, parents)
    asked = _asked(rows, chosen, set(wrong) | fixes.keys())
    kept = sorted(_with_ancestors(asked, parents))
    page = kept[first - 1 : first - 1 + MAX_ROWS]
    context = _above(page[0], parents)[: MAX_NESTED + 1] if page else []
    last = first - 1 + len(page)
    hung = [place for place in (*context, *page) if rows[place].level is not None]
    astray = [place for place in page if rows[place].level is None]
    opened = everything or len(page) <= OPEN_AT_MOST
    below = _below(rows, parents)

    def line(place: int, *, nest: int, after: int) -> Line:
        row = rows[place]
        level = row.level or 0
        return Line(
            row=row,
            number=place + 1,
            opens=after > nest,
            shown=opened or nest < OPEN_LEVELS or place in paths,
            closes=max(0, nest - after),
            below=below[place],
            path=place in paths and not row.is_wrong,
            fixes=None if place not in fixes else fixes[place] + 1,
            aside=not chosen.all and place not in asked,
            deep=level + 1 if level >= MAX_NESTED else None,
        )

    nests = [min(rows[place].level or 0, MAX_NESTED) for place in hung]
    return Picture(
        lines=[
            line(place, nest=nest, after=after)
            for place, nest, after in zip(hung, nests, [*nests[1:], 0], strict=True)
        ]
        if hung
        else [],
        astray=[line(place, nest=0, after=0) for place in astray],
        wrong=wrong,
        found=len(asked),
        first=first,
        following=last + 1 if last < len(kept) else None,
        total=len(kept),
    )


def parents_of(rows: Sequence[Row]) -> list[int | None]:
    """Of each row its parent's place; None at the top and in cycles."""
    parents: list[int | None] = [None] * len(rows)
    for place, row in enumerate(rows):
        for child in row.children:
            if row.level is not None:
                parents[child] = place
    return parents


def path_to(place: int, rows: Sequence[Row], parents: Sequence[int | None]) -> list[Row]:
    """The rows from the top down to one, that one included."""
    return [rows[above] for above in (*_above(place, parents), place)]


def corrections(rows: Sequence[Row]) -> dict[int, int]:
    """Of rows that come after a failed one to put it right: the failed row's place.

    A SELF_CORRECTION, or the same tool called again, below the failed node or later beside it under the same
    parent; of several failed ones the last before it. The rule of the view ``trails.corrections``.
    """
    found: dict[int, int] = {}
    for place, row in enumerate(rows):
        if row.level is None:
            continue
        last = place if _is_failed_call(row) else None
        last_of = {row.name: place} if last is not None else {}
        for child in row.children:
            other = rows[child]
            is_call = other.node_type == TOOL_CALL
            failed = last_of.get(other.name) if is_call else last if other.node_type == CORRECTION else None
            if failed is not None:
                found[child] = failed
            if _is_failed_call(other):
                last = last_of[other.name] = child
    return found


def _is_failed_call(row: Row) -> bool:
    return row.node_type == TOOL_CALL and row.status == "failed"


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _asked(rows: Sequence[Row], chosen: Chosen, failed: Iterable[int]) -> set[int]:
    wanted = set(failed) if chosen.failed else set(range(len(rows)))
    return {place for place in wanted if rows[place].matches}


def _with_ancestors(places: Iterable[int], parents: Sequence[int | None]) -> set[int]:
    """The places and all above them; each is walked over once, however deep the tree is."""
    found: set[int] = set()
    for place in places:
        at: int | None = place
        while at is not None and at not in found:
            found.add(at)
            at = parents[at]
    return found


def _above(place: int, parents: Sequence[int | None]) -> list[int]:
    """What is above a place, from the top down."""
    above: list[int] = []
    at = parents[place]
    while at is not None:
        above.append(at)
        at = parents[at]
    return above[::-1]


def _below(rows: Sequence[Row], parents: Sequence[int | None]) -> list[int]:
    """How many nodes are below each; parents stand before their children."""
    below = [0] * len(rows)
    for place in range(len(rows) - 1, -1, -1):
        parent = parents[place]
        if parent is not None:
            below[parent] += below[place] + 1
    return below


def _matches(node: TreeNode, sent: JsonObject, chosen: Chosen) -> bool:
    if chosen.node_type is not None and node.shown.node_type != chosen.node_type:
        return False
    if chosen.text is None:
        return True
    wanted = chosen.text.casefold()
    texts = _texts(sent)
    return any(wanted in text.casefold() for text in (node.shown.source.agent_id, *texts))


def _texts(value: JsonValue) -> Iterable[str]:
    """All texts and numbers in a value, names of members too."""
    waiting: list[JsonValue] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            yield from found
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
        else:
            yield canonical(found)


def _gist(status: str | None, sent: JsonObject) -> str:
    outputs, thought = sent.get("outputs"), sent.get("thought_process")
    said: str | None = None if status == "success" else error_of(outputs)
    if said is None and isinstance(thought, str):
        said = thought
    if said is None and isinstance(outputs, dict):
        value = {name: found for name, found in outputs.items() if name != "status"}
        only = next(iter(value.values())) if len(value) == 1 else value
        said = only if isinstance(only, str) else None if only in (None, {}, []) else canonical(only)
    elif said is None and isinstance(outputs, str):
        said = outputs
    return "" if said is None else cut(_SPACES.sub(" ", said[: 4 * GIST_CHARS]).strip(), GIST_CHARS)
