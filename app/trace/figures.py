"""What a node says in figures: when it began, how long it took, which model, how many tokens, what it cost.

All of it is the sender's word (case T13). The rules are those of the views (``trails.started_at_v1``,
``ended_at_v1``, ``input_tokens_v1`` and their neighbours), so that a page and a query say the same.
"""

from __future__ import annotations

from typing import Final

import msgspec

from app.chain.canonical import canonical
from app.chain.strict import JsonObject, JsonValue
from app.trace.tree import started_us, unix_us

MAX_COUNT: Final = 2**63 - 1
MAX_DURATION_MS: Final = 10**12
"""About thirty years: what says that it took longer is not believed."""

_MAX_NUMBER: Final = 10**309
_INPUT: Final = ("input", "prompt", "input_tokens", "prompt_tokens")
_OUTPUT: Final = ("output", "completion", "output_tokens", "completion_tokens")
_TOTAL: Final = ("total", "total_tokens")


class Figures(msgspec.Struct, frozen=True):
    """Figures of one node; None where it says nothing, or nothing that can be meant.

    Attributes:
        started_us: when it began, in µs since 1970.
        duration_us: how long it took, in µs; never negative, at most thirty years.
        odd_time: it says how long it took, or when it ended, and that cannot be.
        cost: as it was sent, in the sender's unit.
    """

    started_us: int | None = None
    duration_us: int | None = None
    odd_time: bool = False
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cost: int | float | None = None


NOTHING: Final = Figures()


def figures_of(metadata: JsonValue) -> Figures:
    """Reads the ``metadata`` of a node; whatever they are, nothing is raised."""
    if not isinstance(metadata, dict):
        return NOTHING
    began = started_us(metadata)
    duration, odd = _duration(metadata, began)
    model = metadata.get("model")
    tokens = metadata.get("tokens")
    read, written, total = _tokens(tokens)
    return Figures(
        started_us=began,
        duration_us=duration,
        odd_time=odd,
        model=model if model is None or isinstance(model, str) else canonical(model),
        input_tokens=read,
        output_tokens=written,
        total_tokens=total,
        cost=_number(metadata.get("cost")),
    )


def _duration(metadata: JsonObject, began: int | None) -> tuple[int | None, bool]:
    """How long, in µs, and whether something is said that cannot be: ``duration_ms`` first, else the end."""
    millis = _number(metadata.get("duration_ms"))
    if millis is not None:
        possible = 0 <= millis <= MAX_DURATION_MS
        return (round(millis * 1000), False) if possible else (None, True)
    ended = unix_us(metadata.get("end_time_unix_nano"))
    if ended is None or began is None:
        return None, False
    possible = 0 <= ended - began <= MAX_DURATION_MS * 1000
    return (ended - began, False) if possible else (None, True)


def _tokens(tokens: JsonValue) -> tuple[int | None, int | None, int | None]:
    """Read, written, and all of them: one number, a stated total, or the sum of both."""
    if not isinstance(tokens, dict):
        return None, None, _count(tokens)
    read, written = _count(_first(tokens, _INPUT)), _count(_first(tokens, _OUTPUT))
    stated = _count(_first(tokens, _TOTAL))
    if stated is None and not (read is None and written is None):
        stated = _count((read or 0) + (written or 0))
    return read, written, stated


def _first(tokens: JsonObject, names: tuple[str, ...]) -> JsonValue:
    return next((tokens[name] for name in names if name in tokens), None)


def _count(value: JsonValue) -> int | None:
    number = _number(value)
    if number is None or not 0 <= number <= MAX_COUNT or number != int(number):
        return None
    return int(number)


def _number(value: JsonValue) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_MAX_NUMBER < value < _MAX_NUMBER else None
