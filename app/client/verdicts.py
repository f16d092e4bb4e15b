"""How a call went, in the words of the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from app.client.decisions import OutcomeStatus

MAX_DETAIL_CHARS: Final = 2_000
"""Of an error's text in an outcome: enough to know what went wrong, and no dump of a page."""

Verdict: TypeAlias = tuple[OutcomeStatus, str]
"""Status and detail of an outcome."""

Judge: TypeAlias = Callable[[Any], Verdict]
"""Tells how a call went from what it returned, for frameworks that return errors instead of raising them."""


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
        text = str(error)
    except Exception:  # noqa: BLE001  whatever is wrong with an error's text, its class is known
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def readable(detail: str) -> str:
    """The text as the service takes it: bounded, without U+0000 and lone surrogates, which are shown escaped.

    An outcome must not be refused because of the letters in an error's text.
    """
    cut = detail if len(detail) <= MAX_DETAIL_CHARS else f"{detail[: MAX_DETAIL_CHARS - 1]}…"
    return cut.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
