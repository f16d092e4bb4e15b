"""The reason that is given for an act of administration."""

from __future__ import annotations

from typing import Final

from app.chain.strict import JsonValue
from app.errors import BadRequestError
from app.guard.fields import FieldError, body_of, text

MAX_REASON_CHARS: Final = 1_000


def reason_of(value: JsonValue) -> str:
    """The reason of a body ``{reason}``.

    Raises:
        BadRequestError: what is wrong with it.
    """
    try:
        return text(body_of(value, "reason"), "reason", low=1, high=MAX_REASON_CHARS)
    except FieldError as error:
        raise BadRequestError(str(error)) from error
