"""The description of the API: Litestar's OpenAPI document, completed from what the routes say of themselves.

Litestar knows paths, summaries, security and parameters of the path. Bodies are read by our own strict reader
and answers are finished bytes, so their schemas come from ``app.http.documents``. Everything is served from
here: the pages load nothing from elsewhere.
"""

from __future__ import annotations

import copy
import html
import importlib.metadata
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec
import msgspec.yaml
from litestar import Litestar
from litestar.enums import MediaType, OpenAPIMediaType
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme
from litestar.routes import HTTPRoute

from app.http import documents
from app.http.access import PERMISSION
from app.http.exchange import Call
from app.http.operation import JSON, OPERATION, Operation, Variant
from app.http.otlp_answers import CODES
from app.http.otlp_body import PROTOBUF
from app.http.problems import INTERNAL, MEDIA_TYPE, TABLE, TYPE_PREFIX, Row
from app.principal import PERMISSIONS, Permission, Role

_REF: Final = "#/components/schemas/{name}"
_BEARER: Final = "bearer"

ROLES: Final = "x-roles"
"""Member of an operation: the roles whose keys may; it is not there where no key is needed."""

_PATH_PARAMETERS: Final = {
    "agent_id": documents.AgentId,
    "action_id": documents.ActionId,
    "session_id": documents.SessionId,
    "key_id": documents.KeyId,
    "webhook_id": documents.WebhookId,
    "slug": documents.Slug,
}
_IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Same key and same body: the first answer again, for ever. Same key, other body: 409.",
    "schema": {"type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$"},
}
_REQUEST_ID: Final = "request_id"
_RETRY_AFTER: Final = "retry_after"
_ROOM_AGAIN: Final = "room_again"
_CHALLENGE: Final = "challenge"
_RECEIPT: Final = "receipt"


def _header(meaning: str, *, required: bool, **schema: Any) -> dict[str, Any]:  # noqa: ANN401  JSON Schema
    return {"description": meaning, "required": required, "schema": schema}


_HEADERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    _REQUEST_ID: (
        "X-Request-Id",
        _header(
            "The caller's own, when it sent a sane one; else a new one. Also in the service's log.",
            required=True,
            type="string",
            pattern="^[A-Za-z0-9_-]{8,64}$",
        ),
    ),
    _RETRY_AFTER: (
        "Retry-After",
        _header("Seconds until a retry makes sense.", required=True, type="integer", minimum=1),
    ),
    _ROOM_AGAIN: (
        "Retry-After",
        _header(
            "Of a denial by the rate limit alone: seconds until its window has room again.",
            required=False,
            type="integer",
            minimum=1,
        ),
    ),
    _CHALLENGE: (
        "WWW-Authenticate",
        _header("The scheme that is wanted, Bearer.", required=True, type="string"),
    ),
    _RECEIPT: (
        "trails-receipt",
        _header(
            "agent, seq and hash of the last record of each agent that was reached.",
            required=False,
            type="string",
        ),
    ),
}
"""Headers of answers: the name of each and what it says, by the name of its component."""

_DESCRIPTION: Final = (
    "Signed, hash-chained audit trails and a policy guard for AI agents. Send `Authorization: Bearer "
    "<token>`; the tenant follows from the token. A denied action is no error. Every error is an "
    "`application/problem+json` document with a stable `code`."
)


def openapi_config() -> OpenAPIConfig:
    """The configuration to give to Litestar: JSON, YAML and a plain page, nothing from a CDN."""
    return OpenAPIConfig(
        title="Lineage Trails",
        version=importlib.metadata.version("lineage-trails"),
        description=_DESCRIPTION,
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        use_handler_docstrings=True,
        path="/schema",
        components=Components(
            security_schemes={
                _BEARER: SecurityScheme(
                    type="http",
                    scheme="bearer",
                    description="An API key, the operator's token or an agent's.",
                )
            }
        ),
        render_plugins=[PagePlugin(), JsonPlugin(), YamlPlugin()],
    )


class _Plugin(OpenAPIRenderPlugin):
    """Renders the completed document once and keeps the bytes."""

    _rendered: bytes | None = None

    def render(self, request: Call, openapi_schema: dict[str, Any]) -> bytes:
        """The document in this plugin's form."""
        if self._rendered is None:
            self._rendered = self.write(completed(request.app, openapi_schema))
        return self._rendered

    def write(self, document: dict[str, Any]) -> bytes:
        """Turns the document into bytes."""
        raise NotImplementedError


class JsonPlugin(_Plugin):
    """``/schema/openapi.json``."""

    def __init__(self) -> None:
        super().__init__(path="/openapi.json", media_type=OpenAPIMediaType.OPENAPI_JSON)

    def write(self, document: dict[str, Any]) -> bytes:
        """As JSON."""
        return msgspec.json.encode(document)


class YamlPlugin(_Plugin):
    """``/schema/openapi.yaml``."""

    def __init__(self) -> None:
        super().__init__(path="/openapi.yaml", media_type=OpenAPIMediaType.OPENAPI_YAML)

    def write(self, document: dict[str, Any]) -> bytes:
        """As YAML."""
        return msgspec.yaml.encode(document)


class PagePlugin(_Plugin):
    """``/schema``: one plain page without scripts, readable in any browser, also offline."""

    def __init__(self) -> None:
        super().__init__(path="/", media_type=MediaType.HTML)

    def write(self, document: dict[str, Any]) -> bytes:
        """As HTML."""
        title = html.escape(document["info"]["title"])
        parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><h1>{title}</h1>"]
        parts.append(f"<p>{html.escape(document['info']['description'])}</p>")
        parts.append('<p><a href="/schema/openapi.json">openapi.json</a>; with examples of requests: ')
        parts.append('<a href="/guides/api">the HTTP API</a></p>')
        for path, method, operation in _operations(document):
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2>")
            parts.append(f"<p><b>{html.escape(operation['summary'])}.</b></p>")
            parts.append(f"<p>{html.escape(operation.get('description', ''))}</p>")
            parts.extend(_details(operation))
        return "\n".join(parts).encode()


def _details(operation: dict[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", ()):
        name, where = html.escape(parameter["name"]), html.escape(parameter["in"])
        yield f"<p><code>{name}</code> ({where}): {html.escape(parameter.get('description', ''))}</p>"
    if "requestBody" in operation:
        yield _example("Body", operation["requestBody"]["content"])
    for status, response in operation["responses"].items():
        yield _example(f"{status} {response['description']}", response["content"])


def _example(title: str, content: dict[str, Any]) -> str:
    examples = next(iter(content.values()))["examples"]
    shown = (_written(example["value"]) for example in examples.values())
    blocks = "".join(f"<pre>{html.escape(text)}</pre>" for text in shown)
    return f"<details><summary>{html.escape(title)}</summary>{blocks}</details>"


def _written(value: Any) -> str:  # noqa: ANN401  an example
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value)).decode()


def completed(app: Litestar, openapi_schema: dict[str, Any]) -> dict[str, Any]:
    """Litestar's document with bodies, answers, errors and parameters as the routes describe them."""
    document = copy.deepcopy(openapi_schema)
    described = dict(_described(app))
    schemas = document["components"].setdefault("schemas", {})
    schemas.clear()
    schemas.update(_components(described.values()))
    document["components"]["headers"] = {name: header for name, (_, header) in _HEADERS.items()}
    for path, method, operation in _operations(document):
        _complete(operation, described[path, method])
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def _described(app: Litestar) -> Iterator[tuple[tuple[str, str], tuple[Operation, Permission | None]]]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in route.route_handler_map.items():
                if OPERATION in handler.opt:
                    told = handler.opt[OPERATION], handler.opt.get(PERMISSION)
                    yield (route.path_format, method.lower()), told


def _components(described: Any) -> dict[str, Any]:  # noqa: ANN401  an iterable of pairs
    structs: list[Any] = [documents.Problem, documents.RpcStatus, documents.ProtobufStatus]
    for operation, _ in described:
        structs += [struct for struct in (operation.body, operation.answer) if struct is not None]
        structs += [struct for variant in operation.variants for struct in (variant.body, variant.answer)]
    return msgspec.json.schema_components(structs, ref_template=_REF)[1]


def _complete(operation: dict[str, Any], told: tuple[Operation, Permission | None]) -> None:
    described, permission = told
    operation["security"] = [] if permission is None else [{_BEARER: []}]
    if permission is not None:
        operation[ROLES] = [role.value for role in Role if permission in PERMISSIONS[role]]
    names = sorted(parameter["name"] for parameter in operation.get("parameters", ()))
    parameters = [_path_parameter(name) for name in names]  # sorted: Litestar's order differs by process
    parameters += [
        {
            "name": field.name,
            "in": "query",
            "required": False,
            "description": field.meaning,
            "schema": field.schema,
        }
        for field in described.query
    ]
    if described.body is not None:
        if not described.otlp:
            parameters.append(_IDEMPOTENCY_KEY)
        content = _content(JSON, _schema(described.body), {"body": described.body_example})
        for variant in described.variants:
            _add(content, variant, variant.body, variant.body_example)
        operation["requestBody"] = {"required": described.needs_body, "content": content}
    if parameters:
        operation["parameters"] = parameters
    success = _content(described.media_type, _schema(described.answer), {"answer": described.example})
    for variant in described.variants:
        _add(success, variant, variant.answer, variant.example)
    for form in described.forms:
        success |= _content(form.media_type, _schema(str), {"answer": form.example})
    operation["responses"] = {"200": _done(described, success), **_problems(described)}


def _done(described: Operation, content: dict[str, Any]) -> dict[str, Any]:
    headers = [_REQUEST_ID]
    if described.answer is documents.Decision:
        headers.append(_ROOM_AGAIN)
    if described.otlp:
        headers.append(_RECEIPT)
    return {"description": "Done", "headers": _headers(*headers), "content": content}


def _headers(*names: str) -> dict[str, Any]:
    return {_HEADERS[name][0]: {"$ref": f"#/components/headers/{name}"} for name in names}


def _path_parameter(name: str) -> dict[str, Any]:
    schema = msgspec.json.schema(_PATH_PARAMETERS[name])
    description = schema.pop("description")
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _schema(struct: Any) -> dict[str, Any]:  # noqa: ANN401  a struct or a union of structs
    return msgspec.json.schema_components([struct], ref_template=_REF)[0][0]


def _content(media_type: str, schema: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    return {media_type: {"schema": schema, "examples": {name: {"value": v} for name, v in examples.items()}}}


def _add(content: dict[str, Any], variant: Variant, struct: Any, example: Any) -> None:  # noqa: ANN401  as above
    """Adds another form: beside the one of the same media type, or as a media type of its own."""
    added = _content(variant.media_type, _schema(struct), {variant.name: example})[variant.media_type]
    known = content.get(variant.media_type)
    if known is not None:
        added["schema"] = {"anyOf": [known["schema"], added["schema"]]}
        added["examples"] = {**known["examples"], **added["examples"]}
    content[variant.media_type] = added


def _problems(operation: Operation) -> dict[str, Any]:
    by_status: dict[int, list[tuple[str, Row]]] = {500: [("internal", INTERNAL)]}
    for error in operation.errors:
        row = TABLE[error]
        by_status.setdefault(row.status, []).append((row.code or error.code, row))
    return {str(status): _refusal(rows, otlp=operation.otlp) for status, rows in sorted(by_status.items())}


def _refusal(rows: list[tuple[str, Row]], *, otlp: bool) -> dict[str, Any]:
    """The errors of one status; OTLP tells them in the encoding of the request, where that is known."""
    examples = {row.title.lower().replace(" ", "_"): _problem(code, row) for code, row in rows}
    content = _content(MEDIA_TYPE, _schema(documents.Problem), examples)
    if otlp:
        status = {"code": CODES[rows[0][1].status], "message": _problem(*rows[0])["error"]}
        text = "(a google.rpc.Status)"
        content |= _content(JSON, _schema(documents.RpcStatus), {"status": status})
        content |= _content(PROTOBUF.decode(), _schema(documents.ProtobufStatus), {"status": text})
    headers = [_REQUEST_ID]
    headers += [_RETRY_AFTER] if all(row.retry_after is not None for _, row in rows) else []
    headers += [_CHALLENGE] if rows[0][1].status == HTTPStatus.UNAUTHORIZED else []
    description = "; ".join(dict.fromkeys(row.title for _, row in rows))
    return {"description": description, "headers": _headers(*headers), "content": content}


def _problem(code: str, row: Row) -> dict[str, Any]:
    message = row.detail or f"{row.title.lower()}: the sentence says what and why"
    return {
        "type": TYPE_PREFIX + code,
        "title": row.title,
        "status": row.status,
        "detail": message,
        "code": code,
        "error": message,
        "request_id": "0f8b6c1e6a0b4a1f9d3c5e7a9b1d3f50",
    }
