"""What a route says about itself: permission, body, answer, errors. Access and description read it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from app.errors import (
    BadRequestError,
    ForbiddenError,
    InvalidJsonError,
    MisdirectedError,
    NotFoundError,
    PayloadTooLargeError,
    QuarantinedError,
    TooManyRequestsError,
    TrailsError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedMediaTypeError,
)
from app.http.access import PERMISSION, PUBLIC
from app.principal import Permission

OPERATION: Final = "operation"

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"

Errors = tuple[type[TrailsError], ...]

ON_AGENT: Final[Errors] = (NotFoundError, QuarantinedError)
"""What any route of one agent may meet."""

_ANY: Final[Errors] = (BadRequestError, MisdirectedError, TooManyRequestsError, UnavailableError)
"""What any route may answer: a target of several readings, another's host, too much, a database away."""

_WITH_TOKEN: Final[Errors] = (UnauthorizedError, ForbiddenError)
_WITH_BODY: Final[Errors] = (InvalidJsonError, PayloadTooLargeError, UnsupportedMediaTypeError)


TEXT: Final[dict[str, Any]] = {"type": "string", "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}
"""Text in a query: no control characters (``app.http.target``)."""

AGENT_ID: Final[dict[str, Any]] = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}


class Field(msgspec.Struct, frozen=True):
    """A query field: its JSON schema and what it does."""

    name: str
    schema: dict[str, Any]
    meaning: str


class Variant(msgspec.Struct, frozen=True):
    """Another form of a route's body, with its answer: several at once, or one document a line."""

    name: str
    media_type: str
    body: Any
    body_example: Any
    answer: Any
    example: Any


class Form(msgspec.Struct, frozen=True):
    """Another media type that an answer may have: no JSON, but text or bytes."""

    media_type: str
    example: str


class Operation(msgspec.Struct, frozen=True):
    """Body and answer as documentation structs with an example each, query fields, errors."""

    answer: Any
    example: Any
    body: Any = None
    body_example: dict[str, Any] | None = None
    query: tuple[Field, ...] = ()
    errors: Errors = ()
    variants: tuple[Variant, ...] = ()
    otlp: bool = False
    media_type: str = JSON
    forms: tuple[Form, ...] = ()
    needs_body: bool = True


def describe(
    permission: Permission | None,
    *,
    answer: Any,  # noqa: ANN401  a struct or a union of structs
    example: Any,  # noqa: ANN401  what the answer is
    body: tuple[Any, dict[str, Any]] | None = None,
    query: tuple[Field, ...] = (),
    errors: Errors = (),
    variants: tuple[Variant, ...] = (),
    otlp: bool = False,
    media_type: str = JSON,
    forms: tuple[Form, ...] = (),
    needs_body: bool = True,
) -> dict[str, Any]:
    """The ``opt`` of a route: ``@post(path, status_code=200, opt=describe(…))``.

    Args:
        permission: what the caller must be granted; None makes the route public.
        answer: documentation struct of the 200.
        example: an answer.
        body: documentation struct of the body, and an example.
        query: query fields.
        errors: what the route may raise beyond what follows from the rest.
        variants: other forms of the body and what they are answered with.
        media_type: the answer's.
        forms: other media types that the answer may have.
        needs_body: whether there has to be a body, where there may be one.
        otlp: errors are told as OTLP wants it, and spans themselves say what came before, not a key.
    """
    known: list[type[TrailsError]] = [*_ANY, *errors]
    known += _WITH_BODY if body else ()
    known += _WITH_TOKEN if permission else ()
    struct, body_example = body or (None, None)
    unique = tuple(dict.fromkeys(known))
    operation = Operation(
        answer, example, struct, body_example, query, unique, variants, otlp, media_type, forms, needs_body
    )
    access = {PERMISSION: permission} if permission else {PUBLIC: True}
    return {**access, OPERATION: operation}
