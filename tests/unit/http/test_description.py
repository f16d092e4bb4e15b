"""The description of the API: complete, sound, and served without anything from elsewhere."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from jsonschema import Draft202012Validator
from litestar import get
from litestar.testing import TestClient

from app.asgi import create_app
from app.errors import StartupError
from app.http.access import require_permissions
from app.http.operation import OPERATION, Operation
from app.http.routes import ROUTES
from app.settings import Secrets, Settings

OTLP = "/v1/traces"
"""Its errors are those of OTLP, and no problem documents."""

NO_JSON = {
    "/metrics": "text/plain",
    "/v1/export": "application/x-ndjson",
    "/v1/agents/{agent_id}/export": "application/x-ndjson",
}
"""What is answered there is no JSON document."""

APP = create_app(Settings(), Secrets("t" * 32, b"k" * 32))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return msgspec.json.decode(fetch("/schema/openapi.json"), type=dict[str, Any])


def fetch(path: str) -> bytes:
    # The lifespan does not start: the description needs no database.
    answer = TestClient(APP).get(path)
    assert answer.status_code == 200
    return answer.content


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_every_route_is_described(document: dict[str, Any]) -> None:
    served = {
        (path.replace(":str", ""), method.lower())
        for handler in ROUTES
        for path in handler.paths
        for method in handler.http_methods
    }
    assert {(path, method) for path, method, _ in operations(document)} == served


def test_every_operation_says_what_it_does_takes_and_answers(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert len(operation["description"]) > 30, where
        assert operation["operationId"], where
        assert ("requestBody" in operation) is (method == "post"), where
        assert {"200", "400", "429", "500", "503"} <= operation["responses"].keys(), where
        for waits in ("429", "503"):
            assert "Retry-After" in operation["responses"][waits]["headers"], where
        for status, response in operation["responses"].items():
            told_as_status = status == "200" or path == OTLP
            main = "application/json" if told_as_status else "application/problem+json"
            if status == "200":
                main = NO_JSON.get(path, main)
            assert main in response["content"], where
            assert status == "200" or len(response["content"]) == (3 if path == OTLP else 1), where
            assert "X-Request-Id" in response["headers"], where
            for content in response["content"].values():
                assert content["examples"], where
                assert content["schema"], where
        protected = operation["security"] == [{"bearer": []}]
        assert protected is ("403" in operation["responses"]), where
        named = set(re.findall(r"\{(\w+)\}", path))
        given = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert given == named, where


def test_the_document_is_openapi_3_1_and_its_schemas_are_json_schema(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(copy.deepcopy(document), config=schemathesis.Config()).validate()
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    headers = set(re.findall(r'"\$ref": "#/components/headers/(\w+)"', json.dumps(document)))
    assert headers == set(document["components"]["headers"])
    found = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document)))
    assert found == set(document["components"]["schemas"])
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


@pytest.mark.parametrize("handler", ROUTES, ids=str)
def test_every_example_has_the_shape_it_illustrates(handler: Any) -> None:
    operation: Operation = handler.opt[OPERATION]
    msgspec.convert(operation.example, operation.answer)
    if operation.body is not None:
        msgspec.convert(operation.body_example, operation.body)
    for variant in operation.variants:
        msgspec.convert(variant.body_example, variant.body)
        msgspec.convert(variant.example, variant.answer)


def test_problem_examples_have_the_shape_of_problems(document: dict[str, Any]) -> None:
    members = {"type", "title", "status", "detail", "code", "error", "request_id"}
    for path, _, operation in operations(document):
        for status, response in operation["responses"].items():
            if status != "200" and path != OTLP:
                for example in response["content"]["application/problem+json"]["examples"].values():
                    assert example["value"].keys() == members
                    assert str(example["value"]["status"]) == status


@pytest.mark.parametrize("path", ["/schema", "/schema/"])
def test_the_page_loads_nothing_from_elsewhere(path: str) -> None:
    page = fetch(path).decode()
    assert "Ask to act" in page
    assert not re.search(r"<script|<link|<img|<iframe|src=|@import|url\(", page)
    assert re.findall(r'href="([^"]*)"', page) == ["/schema/openapi.json", "/guides/api"]


def test_options_names_every_method_of_a_path(document: dict[str, Any]) -> None:
    client = TestClient(APP)
    for path, item in document["paths"].items():
        answer = client.options(re.sub(r"\{\w+\}", "x", path))
        methods = {method.upper() for method in item} | {"OPTIONS"}
        assert answer.status_code == 204, path
        assert set(answer.headers["allow"].split(", ")) == methods, path


def test_yaml_says_the_same(document: dict[str, Any]) -> None:
    assert msgspec.yaml.decode(fetch("/schema/openapi.yaml")) == document


def test_a_route_that_nobody_thought_about_does_not_start() -> None:
    @get("/v1/forgotten")
    async def forgotten() -> None: ...

    with pytest.raises(StartupError, match="forgotten"):
        require_permissions([*ROUTES, forgotten])
