"""Signing in with a key, and out again."""

from __future__ import annotations

import re
from typing import Final

from litestar import get, post
from litestar.response.base import ASGIResponse

from app.console.form import read_form, read_open_form
from app.console.page import render, see_other
from app.console.visitor import (
    begin_visit,
    check_origin,
    end_visit,
    failure,
    principal_of,
    visitor_of,
)
from app.errors import (
    EndedKeyError,
    ForbiddenError,
    TenantQuarantinedError,
    TooManyRequestsError,
    UnauthorizedError,
)
from app.http.access import PUBLIC
from app.http.exchange import Call, services_of
from app.http.target import one_field, parse_query

_OWN_PLACE: Final = re.compile(r"/(?![/\\])[\x21-\x7e]{0,2000}")
_KEY: Final = re.compile(rb"[A-Za-z0-9._~+/-]{1,500}=*")


@get("/sign-in", opt={PUBLIC: True}, include_in_schema=False)
async def sign_in_page(request: Call) -> ASGIResponse:
    """The form that asks for a key."""
    place = one_field(parse_query(request.scope["query_string"]), "next")
    return render("sign_in.html", None, next=_own(place), message=None)


@post("/sign-in", opt={PUBLIC: True}, include_in_schema=False)
async def sign_in(request: Call) -> ASGIResponse:
    """Proves the key and begins a visit."""
    check_origin(request)
    form = await read_open_form(request)
    place, key = _own(form.get("next")), form.get("key", "").strip().encode()
    try:
        if _KEY.fullmatch(key) is None:
            raise failure(request, UnauthorizedError())
        try:
            principal = await principal_of(services_of(request), key)
        except UnauthorizedError as refusal:
            raise failure(request, refusal) from None
        services_of(request).limits.admit(principal)
        services_of(request).limits.sign_in(principal)
        return see_other(place, (await begin_visit(request, key, principal),))
    except UnauthorizedError as error:
        told = error.message if isinstance(error, EndedKeyError) else "This is no key, or not any more."
        return render("sign_in.html", None, status=401, next=place, message=told)
    except ForbiddenError as error:
        return render("sign_in.html", None, status=403, next=place, message=error.message)
    except TooManyRequestsError as error:
        retry = ((b"retry-after", b"6"),)
        return render("sign_in.html", None, status=429, next=place, message=error.message, extra=retry)
    except TenantQuarantinedError as error:  # another tenant's key still signs in
        return render("sign_in.html", None, status=503, next=place, message=error.message)


@post("/sign-out", opt={PUBLIC: True}, include_in_schema=False)
async def sign_out(request: Call) -> ASGIResponse:
    """Ends the visit."""
    visitor = await visitor_of(request)
    await read_form(request, visitor)
    return see_other("/sign-in", (await end_visit(request, visitor),))


def _own(place: str | None) -> str:
    """A path of this console to go on to; anything else, such as another site, is the first page."""
    return place if place is not None and _OWN_PLACE.fullmatch(place) else "/"
