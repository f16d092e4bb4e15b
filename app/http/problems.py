"""Errors as problem documents (RFC 9457): the one table from our errors to HTTP.

Beside the members of the RFC each document carries ``code`` and ``error`` (which Lineage's clients read) and
``request_id``; a fault in a body also its ``place`` or ``field``.
"""

from __future__ import annotations

import json
import logging
import re
from http import HTTPStatus

import msgspec
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.response import Response

from app import errors
from app.chain.strict import JsonValue
from app.errors import TrailsError
from app.http.exchange import Call, exchange_in

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:lineage-trails:problem:"

SOON = 1
"""Seconds of Retry-After for trouble that usually passes at once."""

LATER = 60
"""Seconds of Retry-After for what waits for a person: a quarantined chain."""

_OTLP_PATH = re.compile(r"/v1/(traces|logs|metrics)$")

_log = logging.getLogger("trails.http")


class Row(msgspec.Struct, frozen=True):
    """How an error is told: status, title, seconds of Retry-After, and code and detail where they differ."""

    status: int
    title: str
    retry_after: int | None = None
    code: str | None = None
    detail: str | None = None


_QUARANTINED = Row(503, "The agent's log does not verify", LATER)
INTERNAL = Row(500, "Internal error", code="internal", detail="an internal error; see the log by request_id")
"""Everything that was not raised on purpose."""

TABLE: dict[type[TrailsError], Row] = {
    errors.BadRequestError: Row(400, "Bad request"),
    errors.InvalidJsonError: Row(400, "Not strict JSON"),
    errors.InvalidPolicyError: Row(400, "Invalid policy"),
    errors.InvalidMemberError: Row(400, "Invalid member"),
    errors.UnauthorizedError: Row(401, "Unauthorized"),
    errors.EndedKeyError: Row(401, "Unauthorized"),
    errors.ForbiddenError: Row(403, "Forbidden"),
    errors.NotFoundError: Row(404, "Not found"),
    errors.UnknownActionError: Row(404, "Unknown action"),
    errors.ConflictError: Row(409, "Conflict"),
    errors.AgentExistsError: Row(409, "Agent exists"),
    errors.NameInUseError: Row(409, "Name in use"),
    errors.InvalidStateError: Row(409, "Invalid state"),
    errors.ClaimRefusedError: Row(409, "Claim refused"),
    errors.AlreadyTerminatedError: Row(409, "Already terminated"),
    errors.IdempotencyConflictError: Row(409, "Idempotency conflict"),
    errors.CursorGoneError: Row(410, "Gone"),
    errors.PayloadTooLargeError: Row(413, "Payload too large"),
    errors.AnswerTooLargeError: Row(413, "Answer too large"),
    errors.UnsupportedMediaTypeError: Row(415, "Unsupported media type"),
    errors.MisdirectedError: Row(421, "Misdirected request"),
    errors.TooManyRequestsError: Row(429, "Too many requests", SOON),
    errors.QuarantinedError: _QUARANTINED,
    errors.TenantQuarantinedError: Row(503, "The tenant's administration does not verify", LATER),
    errors.UnavailableError: Row(503, "Unavailable", SOON),
    errors.StaleChainError: Row(503, "Unavailable", SOON),
    errors.FormatError: _QUARANTINED,
    errors.OrderError: _QUARANTINED,
    errors.ForkError: _QUARANTINED,
    errors.LinkError: _QUARANTINED,
    errors.ContentError: _QUARANTINED,
    errors.SignatureError: _QUARANTINED,
    errors.MirrorError: _QUARANTINED,
    errors.FoldError: _QUARANTINED,
    errors.UnknownKindError: _QUARANTINED,
    # Nothing is allowed while a key cannot be used (case G27); which key and why is for the log only.
    errors.KeyMaterialError: Row(
        503, "Unavailable", LATER, code="unavailable", detail="a key of the service cannot be used"
    ),
    errors.StartupError: INTERNAL,
}
"""Each leaf of ``app.errors`` and how it is told."""

_STATUS_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    413: "payload_too_large",
    429: "too_many_requests",
}


class Problem(msgspec.Struct, frozen=True):
    """A problem document ready to be sent."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def problem_of(error: Exception, request_id: str) -> Problem:
    """The document for any error; what was not raised on purpose says nothing of its insides."""
    if isinstance(error, TrailsError):
        return _ours(error, request_id)
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _litestars(error, request_id)
    _log.error("unexpected error", exc_info=error)
    return _document(INTERNAL, "internal", "", request_id)


def respond(request: Call, error: Exception) -> Response[bytes]:
    """Litestar's handler for every exception of a route, and for paths that are none."""
    if isinstance(error, NotFoundException) or _is_astray(request, error):
        error = errors.NotFoundError(no_such_path(request.method, request.scope["path"]))
    problem = problem_of(error, exchange_in(request.scope).request_id)
    return Response(
        problem.body, status_code=problem.status, media_type=MEDIA_TYPE, headers=dict(problem.headers)
    )


def _is_astray(request: Call, error: Exception) -> bool:
    """Whether spans were posted to where the console's first page is read."""
    return isinstance(error, MethodNotAllowedException) and request.scope["path"] == "/"


def no_such_path(method: str, path: str) -> str:
    """What to tell of a path that no route knows; an exporter of OpenTelemetry that went astray is told why.

    Exporters append ``/v1/traces`` to ``OTEL_EXPORTER_OTLP_ENDPOINT``, and nothing to the variable of one
    signal (the specification of OTLP exporters, "Endpoint URLs for OTLP/HTTP").
    """
    otlp = _OTLP_PATH.search(path)
    if otlp is not None and otlp[1] != "traces":
        signal = otlp[1]
        return (
            f"no such path: this service takes traces, no {signal}; switch their exporter off with "
            f"OTEL_{signal.upper()}_EXPORTER=none"
        )
    if otlp is not None or (method, path) == ("POST", "/"):
        return (
            "no such path: spans are posted to /v1/traces; set OTEL_EXPORTER_OTLP_ENDPOINT to the service's "
            "URL without a path, since exporters append /v1/traces to it, or set "
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, to which they append nothing, to the URL with /v1/traces"
        )
    return "no such path; /schema lists those that there are"


def line_of(error: TrailsError) -> dict[str, JsonValue]:
    """An error as one line of a batch's answer tells it: status, code and the sentence, field and place."""
    row = _row_of(error)
    told: dict[str, JsonValue] = {
        "status": row.status,
        "code": row.code or error.code,
        "error": row.detail or error.message,
    }
    field, place = _where(error)
    told.update({name: value for name, value in (("field", field), ("place", place)) if value})
    return told


def _ours(error: TrailsError, request_id: str) -> Problem:
    row = _row_of(error)
    field, place = _where(error)
    return _document(row, error.code, error.message, request_id, field=field, place=place)


def _row_of(error: TrailsError) -> Row:
    """How an error is told; what is the service's own trouble is logged, too."""
    row = next((TABLE[cls] for cls in type(error).__mro__ if cls in TABLE), INTERNAL)
    if row.status >= 500:
        _log.error("%s: %s", type(error).__name__, error, exc_info=error if row.status == 500 else None)
    return row


def _where(error: TrailsError) -> tuple[str | None, str | None]:
    """The field and the place of a fault in what was sent."""
    fault = error if isinstance(error, errors.BadRequestError) else None
    # A reader of single members raises its own error; ours is raised from it.
    field = getattr(fault, "field", None) or getattr(fault and fault.__cause__, "field", None)
    return field, getattr(fault, "place", None)


def _litestars(error: HTTPException, request_id: str) -> Problem:
    status = error.status_code
    title = HTTPStatus(status).phrase
    detail = title.lower() if status == 405 else error.detail
    allow = tuple((name, value) for name, value in (error.headers or {}).items())
    problem = _document(Row(status, title), _STATUS_CODES.get(status, "bad_request"), detail, request_id)
    return msgspec.structs.replace(problem, headers=problem.headers + allow)


def _document(
    row: Row, code: str, message: str, request_id: str, *, field: str | None = None, place: str | None = None
) -> Problem:
    code, message = row.code or code, row.detail or message
    document: dict[str, object] = {
        "type": TYPE_PREFIX + code,
        "title": row.title,
        "status": row.status,
        "detail": message,
        "code": code,
        "error": message,
        "request_id": request_id,
    }
    document.update({name: value for name, value in (("field", field), ("place", place)) if value})
    headers: tuple[tuple[str, str], ...] = ()
    if row.status == 401:
        headers = (("www-authenticate", 'Bearer realm="lineage-trails"'),)
    elif row.retry_after is not None:
        headers = (("retry-after", str(row.retry_after)),)
    return Problem(row.status, json.dumps(document).encode(), headers)
