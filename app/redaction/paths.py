"""Paths: which members a rule names, in a subset of JSONPath (RFC 9535) that is followed in one walk.

``$`` is the value that a tool was given or gave back, a node's metadata, or an event's data. There are
``.name`` and ``['name']``, ``[0]``, ``[*]`` and ``.*``, and ``..`` before any of them for every depth.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

MAX_CHARS: Final = 256
MAX_STEPS: Final = 16

_STEP: Final = re.compile(
    r"(?P<deep>\.\.)?(?:(?P<dot>\.)?(?P<name>[^\W\d][\w-]*|\*)|\[(?P<index>\d{1,6}|\*)\]"
    r"|\[(?:'(?P<single>(?:[^'\\]|\\['\\]){0,200})'|\"(?P<double>(?:[^\"\\]|\\[\"\\]){0,200})\")\])"
)

_Step = tuple[bool, str | int | None]
"""Whether at every depth, and which: a member, an element, or None for all of them."""

Places = tuple[tuple[int, int], ...]
"""Where in which paths a walk stands: (path, step) pairs; the step is the next one to be taken."""


class Paths(msgspec.Struct, frozen=True):
    """Paths of one list, compiled."""

    steps: tuple[tuple[_Step, ...], ...]

    @property
    def start(self) -> Places:
        """Where a walk begins: at ``$`` of every path."""
        return tuple((path, 0) for path in range(len(self.steps)))

    def into(self, places: Places, at: str | int) -> tuple[Places, bool]:
        """Follows the paths into a member or element: where they stand there, and whether one ends."""
        after: list[tuple[int, int]] = []
        ends = False
        for path, step in places:
            deep, wanted = self.steps[path][step]
            if deep:
                after.append((path, step))
            if wanted is None or (wanted == at and type(wanted) is type(at)):
                if step + 1 == len(self.steps[path]):
                    ends = True
                else:
                    after.append((path, step + 1))
        return tuple(dict.fromkeys(after)), ends


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
