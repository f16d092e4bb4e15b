"""How a call went, in the words of the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from app.client.decisions import OutcomeStatus
from app.client.json_values import qualified_name, text

MAX_DETAIL_BYTES: Final = 4_096
"""Of an error's text in an outcome: enough to know what went wrong, and no dump of a page."""

Verdict: TypeAlias = tuple[OutcomeStatus, str]
"""Status and detail of an outcome."""

Judge: TypeAlias = Callable[[Any], Verdict]
"""Tells how a call went from what it returned, for frameworks that return errors instead of raising them."""

Blame: TypeAlias = Callable[[BaseException], Verdict]
"""Tells how a call went from what it raised, for frameworks that raise what is no failure."""


def success(_result: object) -> Verdict:
    """What returns has succeeded."""
    return "success", ""


def outcome_of_error(error: BaseException) -> Verdict:
    """An error is a failure. An interrupt says nothing of what was done before it: ``unknown``."""
    if isinstance(error, Exception):
        return "failure", described(error)
    return "unknown", f"interrupted: {type(error).__name__}"


def described(error: BaseException) -> str:
    """Class and text of an error."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  whatever is wrong with an error's text, its class is known
        said = ""
    name = qualified_name(type(error))
    return f"{name}: {said}" if said else name


def readable(detail: str) -> str:
    """The text as the service takes it: an outcome must not be refused because of an error's letters."""
    return text(detail, MAX_DETAIL_BYTES)
