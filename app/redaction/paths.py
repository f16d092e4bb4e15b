"""Paths: which members a rule names, in a subset of JSONPath (RFC 9535) that is followed in one walk.

``$`` is the value that a tool was given or gave back, a node's metadata, or an event's data. There are
``.name`` and ``['name']``, ``[0]``, ``[*]`` and ``.*``, and ``..`` before any of them for every depth.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CHARS: Final = 256
MAX_STEPS: Final = 16

_STEP: Final = re.compile(
    r"(?P<deep>\.\.)?(?:(?P<dot>\.)?(?P<name>[^\W\d][\w-]*|\*)|\[(?P<index>\d{1,6}|\*)\]"
    r"|\[(?:'(?P<single>(?:[^'\\]|\\['\\]){0,200})'|\"(?P<double>(?:[^\"\\]|\\[\"\\]){0,200})\")\])"
)

_Step = tuple[bool, str | int | None]
"""Whether at every depth, and which: a member, an element, or None for all of them."""

MAX_PLACES: Final = 1_000
"""Places of one list that are remembered; then they are found again."""


class Places:
    """Where in which paths a walk stands: (path, step) pairs; the step is the next one to be taken.

    ``moves`` remembers where a member leads, so that following a hundred paths costs what following one does.
    """

    __slots__ = ("at", "moves")

    def __init__(self, at: tuple[tuple[int, int], ...]) -> None:
        self.at = at
        self.moves: dict[str | int | type, tuple[Places | None, bool]] = {}


class Paths:
    """Paths of one list, compiled."""

    def __init__(self, steps: tuple[tuple[_Step, ...], ...]) -> None:
        self._steps = steps
        self._wanted = {wanted for path in steps for _, wanted in path if wanted is not None}
        self._known: dict[tuple[tuple[int, int], ...], Places] = {}
        self.start: Places | None = None
        self.start = self._places(tuple((path, 0) for path in range(len(steps))))
        """Where a walk begins: at ``$`` of every path; None when there is none."""

    def into(self, places: Places, at: str | int) -> tuple[Places | None, bool]:
        """Follows the paths into a member or element: where they stand there, and whether one ends."""
        key = at if at in self._wanted else type(at)  # all that no path names lead to the same place
        move = places.moves.get(key)
        if move is None:
            move = places.moves[key] = self._move(places, at)
        return move

    def _move(self, places: Places, at: str | int) -> tuple[Places | None, bool]:
        after: list[tuple[int, int]] = []
        ends = False
        for path, step in places.at:
            deep, wanted = self._steps[path][step]
            if deep:
                after.append((path, step))
            if wanted is None or (wanted == at and type(wanted) is type(at)):
                if step + 1 == len(self._steps[path]):
                    ends = True
                else:
                    after.append((path, step + 1))
        return self._places(tuple(dict.fromkeys(after))), ends

    def _places(self, at: tuple[tuple[int, int], ...]) -> Places | None:
        if not at:
            return None
        if len(self._known) >= MAX_PLACES:
            self._known = {}
            if self.start is not None:
                self.start.moves.clear()  # whoever still stands at a forgotten place goes on from there
        return self._known.setdefault(at, Places(at))


def compile_paths(paths: tuple[str, ...]) -> Paths:
    """Compiles paths.

    Raises:
        ValueError: what is wrong with one of them.
    """
    return Paths(tuple(_steps(path) for path in paths))


def _steps(path: str) -> tuple[_Step, ...]:
    if len(path) > MAX_CHARS:
        raise ValueError(f"a path has at most {MAX_CHARS} characters")
    if not path.startswith("$"):
        raise ValueError("a path begins with $, such as $.customer.ssn or $..ssn")
    steps: list[_Step] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or not _is_whole(match):
            raise ValueError(
                f"at character {at + 1}: must be .name, ['name'], [0], [*] or .*, or one of these behind .."
            )
        steps.append((match["deep"] is not None, _wanted(match)))
        at = match.end()
    if not 0 < len(steps) <= MAX_STEPS:
        raise ValueError(f"a path names 1 to {MAX_STEPS} members behind $")
    return tuple(steps)


def _is_whole(match: re.Match[str]) -> bool:
    """A name stands behind one dot or two: not behind three, and not behind none."""
    return match["name"] is None or (match["dot"] is None) is (match["deep"] is not None)


def _wanted(match: re.Match[str]) -> str | int | None:
    if match["name"] is not None:
        return None if match["name"] == "*" else match["name"]
    if match["index"] is not None:
        return None if match["index"] == "*" else int(match["index"])
    quoted = match["single"] if match["single"] is not None else match["double"]
    return re.sub(r"\\(.)", r"\1", quoted)
