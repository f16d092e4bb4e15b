"""One table maps errors to problem documents, and no error is missing from it."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus

import pytest
from litestar.exceptions import (
    ClientException,
    ImproperlyConfiguredException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)

from app import errors
from app.errors import TrailsError
from app.guard.bodies import Ask
from app.http.problems import TABLE, TYPE_PREFIX, Problem, no_such_path, problem_of

ID = "0123456789abcdef"


def leaves(of: type[TrailsError] = TrailsError) -> list[type[TrailsError]]:
    below = [
        leaf for child in of.__subclasses__() if child.__module__ == "app.errors" for leaf in leaves(child)
    ]
    return below or [of]


def made(kind: type[TrailsError]) -> TrailsError:
    arguments: dict[type[TrailsError], tuple[object, ...]] = {
        errors.UnauthorizedError: (),
        errors.ForbiddenError: (),
        errors.IdempotencyConflictError: (),
        errors.InvalidPolicyError: ("tools.x.cost", "must be an integer >= 0"),
        errors.InvalidMemberError: ("trace_tree[3].parent_id", "must be a UUID or null"),
        errors.InvalidStateError: ("act-1", "denied"),
        errors.ClaimRefusedError: ("act-1", {"code": "claim_mismatch"}),
        errors.PayloadTooLargeError: (4_096,),
    }
    return kind(*arguments.get(kind, ("the sentence",)))


def read(problem: Problem) -> dict[str, object]:
    document = json.loads(problem.body)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("kind", leaves())
def test_each_leaf_has_its_row(kind: type[TrailsError]) -> None:
    assert kind in TABLE


def test_each_error_of_ours_is_told_by_its_own_row_or_its_parents() -> None:
    for kind in TABLE:
        problem = problem_of(made(kind), ID)
        assert problem.status == TABLE[kind].status


@pytest.mark.parametrize("kind", leaves())
def test_a_document_says_what_rfc_9457_and_lineages_clients_read(kind: type[TrailsError]) -> None:
    error = made(kind)
    problem = problem_of(error, ID)
    document = read(problem)
    assert document["status"] == problem.status
    assert document["title"] == TABLE[kind].title
    assert document["detail"] == document["error"]
    assert document["request_id"] == ID
    assert document["type"] == f"{TYPE_PREFIX}{document['code']}"
    if TABLE[kind].code is None:
        assert document["code"] == error.code
        assert document["error"] == error.message


def test_statuses_are_those_of_the_design() -> None:
    expected = {
        errors.BadRequestError: (400, "bad_request"),
        errors.UnauthorizedError: (401, "unauthorized"),
        errors.ForbiddenError: (403, "forbidden"),
        errors.NotFoundError: (404, "not_found"),
        errors.UnknownActionError: (404, "unknown_action"),
        errors.AgentExistsError: (409, "agent_exists"),
        errors.InvalidStateError: (409, "invalid_state"),
        errors.AlreadyTerminatedError: (409, "already_terminated"),
        errors.IdempotencyConflictError: (409, "idempotency_conflict"),
        errors.PayloadTooLargeError: (413, "payload_too_large"),
        errors.UnsupportedMediaTypeError: (415, "unsupported_media_type"),
        errors.TooManyRequestsError: (429, "too_many_requests"),
        errors.QuarantinedError: (503, "quarantined"),
        errors.UnavailableError: (503, "unavailable"),
        errors.KeyMaterialError: (503, "unavailable"),
        errors.StartupError: (500, "internal"),
    }
    for kind, (status, code) in expected.items():
        document = read(problem_of(made(kind), ID))
        assert (document["status"], document["code"]) == (status, code), kind


def test_what_passes_says_when_to_come_back() -> None:
    for kind in TABLE:
        problem = problem_of(made(kind), ID)
        headers = dict(problem.headers)
        assert ("retry-after" in headers) is (problem.status in {429, 503}), kind
        assert ("www-authenticate" in headers) is (problem.status == 401), kind
        if "retry-after" in headers:
            assert int(headers["retry-after"]) >= 1


def test_places_and_fields_are_members() -> None:
    place = read(problem_of(errors.InvalidJsonError("duplicate key", "$.a[3].k"), ID))
    assert place["place"] == "$.a[3].k"
    field = read(problem_of(errors.InvalidPolicyError("tools.x.cost", "must be an integer"), ID))
    assert field["field"] == "tools.x.cost"
    with pytest.raises(errors.BadRequestError) as caught:
        Ask.parse({"tool": "search", "cost": "1"})
    assert read(problem_of(caught.value, ID))["field"] == "cost"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("SELECT secret FROM agents"),
        ImproperlyConfiguredException("secret"),
        KeyError("secret"),
        errors.KeyMaterialError("secret key file /secret"),
        errors.StartupError("secret"),
    ],
)
def test_insides_are_logged_and_not_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    problem = problem_of(error, ID)
    assert problem.status in {500, 503}
    assert b"secret" not in problem.body
    assert "secret" in caplog.text


def test_passing_trouble_is_logged_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    problem_of(errors.UnavailableError("the database is away"), ID)
    problem_of(errors.BadRequestError("no"), ID)
    assert [(record.levelno, record.exc_info) for record in caplog.records] == [(logging.ERROR, None)]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFoundException(), 404, "not_found"),
        (MethodNotAllowedException(headers={"allow": "GET"}), 405, "method_not_allowed"),
        (ClientException("Invalid host header"), 400, "bad_request"),
        (ValidationException("x"), 400, "bad_request"),
    ],
)
def test_litestars_own_errors_are_problems(error: Exception, status: int, code: str) -> None:
    problem = problem_of(error, ID)
    document = read(problem)
    assert (document["status"], document["code"]) == (status, code)
    assert document["title"] == HTTPStatus(status).phrase
    assert dict(problem.headers).get("allow") == ("GET" if status == 405 else None)


def test_a_message_with_odd_characters_is_still_a_document() -> None:
    document = read(problem_of(errors.BadRequestError("lone \ud800, nul \0, é"), ID))
    assert document["error"] == "lone \ud800, nul \0, é"


@pytest.mark.parametrize("path", ["/v1/traces/v1/traces", "/v1/v1/traces", "/otlp/v1/traces", "/"])
def test_an_exporter_that_went_astray_is_told_which_variable_to_set(path: str) -> None:
    told = no_such_path("POST", path)
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in told
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in told


@pytest.mark.parametrize("path", ["/v1/{}", "/v1/traces/v1/{}"])
@pytest.mark.parametrize("signal", ["logs", "metrics"])
def test_other_signals_than_traces_are_told_how_to_switch_them_off(path: str, signal: str) -> None:
    told = no_such_path("POST", path.format(signal))
    assert signal in told
    assert f"OTEL_{signal.upper()}_EXPORTER=none" in told


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/traces/x", "/v1/tracesx", "/v1"])
def test_other_paths_that_are_none_say_nothing_of_exporters(path: str) -> None:
    assert "OTEL" not in no_such_path("POST", path)
    assert "OTEL" not in no_such_path("GET", "/")
