"""What went wrong, as a page: the same table as the API's problem documents."""

from __future__ import annotations

import json

from litestar.exceptions import NotFoundException
from litestar.response import Response

from app.console import telling  # noqa: F401  its filters
from app.console.cookie import no_cookie
from app.console.page import HEADERS, TEMPLATES
from app.console.visitor import SignInNeededError, has_visit, sign_in_place, visitor_if_known
from app.errors import NotFoundError
from app.http.exchange import Call, exchange_in
from app.http.problems import problem_of


def told(request: Call, error: Exception) -> Response[bytes]:
    """The handler of every exception of a page. Who is not signed in goes to the sign-in.

    A part of a page that a script asked for (``HX-Request``) is told so by a header, and the whole page goes.
    """
    if isinstance(error, SignInNeededError):
        return _to_sign_in(request)
    if isinstance(error, NotFoundException):
        error = NotFoundError("there is no such page")
    request_id = exchange_in(request.scope).request_id
    problem = problem_of(error, request_id)
    said = json.loads(problem.body)
    html = TEMPLATES.get_template("trouble.html").render(
        visitor=visitor_if_known(request),
        may_be_signed_in=has_visit(request),
        title=said["title"],
        message=said["error"],
        request_id=request_id,
    )
    return _response(html, problem.status, dict(problem.headers))


def _to_sign_in(request: Call) -> Response[bytes]:
    place = sign_in_place(request)
    name, cookie = no_cookie(request)
    by_script = "hx-request" in request.headers
    status, header = (401, "HX-Redirect") if by_script else (303, "Location")
    return _response("", status, {header: place, name.decode(): cookie.decode()})


def _response(html: str, status: int, extra: dict[str, str]) -> Response[bytes]:
    headers = {name.decode(): value.decode() for name, value in HEADERS} | extra
    return Response(html.encode(), status_code=status, media_type="text/html", headers=headers)
