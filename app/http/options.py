"""OPTIONS: which methods a path takes. A browser's preflight is answered by it, too (``app.http.cors``).

Litestar makes such routes by itself, but of a path with two routes its own names the methods of one alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from litestar import route
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response


def options_of(handlers: Iterable[HTTPRouteHandler]) -> list[HTTPRouteHandler]:
    """A route for OPTIONS on each path; registered before the others it takes the place of Litestar's."""
    methods: dict[str, set[str]] = {}
    for handler in handlers:
        for path in handler.paths:
            methods.setdefault(path, {"OPTIONS"}).update(handler.http_methods)
    return [_telling(path, ", ".join(sorted(allowed))) for path, allowed in methods.items()]


def _telling(path: str, allowed: str) -> HTTPRouteHandler:
    @route(path, http_method=["OPTIONS"], status_code=204, include_in_schema=False)
    async def options() -> Response[None]:
        return Response(None, status_code=204, headers={"Allow": allowed})

    return options
