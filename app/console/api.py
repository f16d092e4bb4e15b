"""The HTTP API to be read: every route with who may, what it takes, what it answers, and its errors.

It is made of the OpenAPI document and of nothing else, so it says what ``/schema`` says.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from litestar import Litestar, get
from litestar.response.base import ASGIResponse
from markupsafe import Markup, escape

from app.console.guides import show
from app.console.markdown import Rendered
from app.console.page import TEMPLATES
from app.http.access import PUBLIC
from app.http.exchange import Call
from app.http.openapi import ROLES, completed

_JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
_REF: Final = "#/components/schemas/"
_IDS: Final = {
    "agent_id": "support-bot",
    "action_id": "act-2",
    "session_id": "6f1c2a34-0b5d-4e6f-8a9b-0c1d2e3f4a5b",
    "key_id": "0123456789abcdef",
    "slug": "acme",
    "webhook_id": "9f86d081884c7d65",
}
"""What stands for the ids of a path in examples; for any other a variable of the shell."""

_UUID: Final = "^[0-9a-fA-F]{8}-"
_SHOWN_PATTERN: Final = 40

Object = dict[str, Any]


class Member(msgspec.Struct, frozen=True):
    """A member of a body, or a field of a path, query or header."""

    name: str
    type: Markup
    required: bool
    about: Markup
    place: str = ""


class Shape(msgspec.Struct, frozen=True):
    """An object of the API."""

    name: str
    about: Markup
    members: tuple[Member, ...]


class Form(msgspec.Struct, frozen=True):
    """One form of a body or an answer: its media type, what it is, its members, and examples as text."""

    media_type: str
    type: Markup
    members: tuple[Member, ...]
    examples: tuple[str, ...]


class Problem(msgspec.Struct, frozen=True):
    """The errors of one status."""

    status: str
    codes: tuple[str, ...]
    about: str


class Route(msgspec.Struct, frozen=True):
    """One route. ``roles`` is empty where no key is needed; ``curl`` is the request as a command."""

    anchor: str
    method: str
    path: str
    summary: str
    about: tuple[Markup, ...]
    roles: tuple[str, ...]
    fields: tuple[Member, ...]
    body: tuple[Form, ...]
    curl: str
    answer: tuple[Form, ...]
    problems: tuple[Problem, ...]


class Api(msgspec.Struct, frozen=True):
    """All routes, by what they are about, and all objects."""

    groups: tuple[tuple[str, tuple[Route, ...]], ...]
    shapes: tuple[Shape, ...]


_known: list[Rendered] = []
"""The page, once it was made: it is the same for everybody, and takes a moment."""


@get("/guides/api", opt={PUBLIC: True}, include_in_schema=False)
async def api_page(request: Call) -> ASGIResponse:
    """The whole API on one page, without scripts."""
    if not _known:
        _known.append(await asyncio.to_thread(_article, request.app))
    return await show(request, "api", _known[0])


def _article(app: Litestar) -> Rendered:
    api = api_of(completed(app, app.openapi_schema.to_schema()))
    html = TEMPLATES.get_template("api.html").render(api=api)
    return Rendered(
        "HTTP API", "Every route: who may, what it takes, what it answers, and its errors.", (), html
    )


def api_of(document: Object) -> Api:
    """What the page shows of an OpenAPI document."""
    schemas = document["components"]["schemas"]
    routes = [
        _route(path, method, operation, schemas)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    routes.sort(key=lambda route: _group(route.path))  # stable: within a group the document's order
    groups = itertools.groupby(routes, key=lambda route: _group(route.path))
    shapes = [_shape(name, schemas[name]) for name in sorted(schemas) if "properties" in schemas[name]]
    return Api(tuple((name, tuple(found)) for name, found in groups), tuple(shapes))


def _group(path: str) -> str:
    words = path.strip("/").split("/")
    if words[0] != "v1":
        return "the service itself"
    return "actions" if "actions" in words else words[1]


def _route(path: str, method: str, operation: Object, schemas: Object) -> Route:
    parts = re.split(r"\n\s*\n", operation.get("description", ""))
    return Route(
        anchor=f"{method}{re.sub(r'[^a-z0-9_]+', '-', path.lower())}".rstrip("-"),
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        about=tuple(_told(part) for part in parts),
        roles=tuple(operation.get(ROLES, ())),
        fields=tuple(_field(parameter) for parameter in operation.get("parameters", ())),
        body=tuple(_forms(operation.get("requestBody", {}).get("content", {}), schemas)),
        curl=_curl(path, method, operation),
        answer=tuple(_forms(operation["responses"]["200"]["content"], {})),
        problems=tuple(
            _problem(status, response)
            for status, response in operation["responses"].items()
            if status != "200"
        ),
    )


def _field(parameter: Object) -> Member:
    about = _told(parameter.get("description", ""))
    return Member(
        parameter["name"], _type(parameter["schema"]), parameter["required"], about, parameter["in"]
    )


def _forms(content: Mapping[str, Object], schemas: Object) -> Iterator[Form]:
    """The forms of a body or an answer, with the members of one that is an object among ``schemas``."""
    for media_type, form in content.items():
        schema = schemas.get(form["schema"].get("$ref", "").removeprefix(_REF), {})
        examples = tuple(_written(example["value"]) for example in form["examples"].values())
        yield Form(media_type, _type(form["schema"]), tuple(_members(schema)), examples)


def _problem(status: str, response: Object) -> Problem:
    examples = response["content"].get(_PROBLEM, {"examples": {}})["examples"].values()
    codes = dict.fromkeys(example["value"]["code"] for example in examples)
    return Problem(status, tuple(codes), response["description"])


def _curl(path: str, method: str, operation: Object) -> str:
    """The request as a command, with the first example of a body."""
    address = re.sub(r"\{(\w+)\}", lambda found: _IDS.get(found[1], f"${found[1]}"), path)
    words = ["curl -sS --fail-with-body"]
    words += [] if method in {"get", "post"} else [f"-X {method.upper()}"]
    lines = [" ".join([*words, f"$url{address}"])]
    if ROLES in operation:
        lines.append('-H "Authorization: Bearer $token"')
    content = operation.get("requestBody", {}).get("content", {})
    if _JSON in content:
        example = next(iter(content[_JSON]["examples"].values()))["value"]
        lines += [
            "-H 'Content-Type: application/json'",
            f"-d {shlex.quote(json.dumps(example, ensure_ascii=False))}",
        ]
    return " \\\n  ".join(lines)


def _shape(name: str, schema: Object) -> Shape:
    return Shape(name, _told(schema.get("description", "")), tuple(_members(schema)))


def _members(schema: Object) -> Iterator[Member]:
    required = set(schema.get("required", ()))
    for name, told in schema.get("properties", {}).items():
        yield Member(name, _type(told), name in required, _told(told.get("description", "")))


def _type(schema: Object) -> Markup:
    """A JSON schema in a few words; objects are links to where they are told."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return Markup('<a href="#shape-{0}">{0}</a>').format(name)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return Markup(" or ").join(_type(part) for part in schema[several])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return Markup(" or ").join(Markup("<code>{}</code>").format(json.dumps(value)) for value in values)
    return _plain_type(schema)


def _plain_type(schema: Object) -> Markup:
    kind = schema.get("type")
    if kind is None:
        return Markup("any JSON")
    if kind == "array":
        return Markup("array of ") + _type(schema.get("items", {})) + escape(_bounds(schema, "Items"))
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return Markup("object of ") + _type(schema["additionalProperties"])
    if kind == "string":
        return escape(_string(schema))
    bounds = _bounds(schema, "imum") if kind in {"integer", "number"} else ""
    return escape(kind if isinstance(kind, str) else " or ".join(kind)) + escape(bounds)


def _string(schema: Object) -> str:
    pattern = schema.get("pattern", "")
    if pattern.startswith(_UUID):
        return "UUID"
    if "format" in schema:
        return f"string ({schema['format']})"
    if pattern and len(pattern) <= _SHOWN_PATTERN:
        return f"string {pattern}"
    return "string" + _bounds(schema, "Length")


def _bounds(schema: Object, what: str) -> str:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if least is None and most is None:
        return ""
    if most is None:
        return f", at least {least:,}"
    return f", at most {most:,}" if least is None else f", {least:,} to {most:,}"


def _told(text: str) -> Markup:
    """A docstring's or description's words: what stands in backquotes is code."""
    parts = re.split(r"`{1,2}([^`]+)`{1,2}", " ".join(text.split()))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def _written(value: Any) -> str:  # noqa: ANN401  an example
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value)).decode()
