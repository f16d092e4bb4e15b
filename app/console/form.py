"""Forms as browsers post them: ``application/x-www-form-urlencoded``, within a limit, each field once."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from app.console.visitor import Visitor, check_form
from app.errors import BadRequestError, UnsupportedMediaTypeError
from app.http.bodies import collect
from app.http.exchange import Call, headers

MAX_FORM_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 20

CSRF: Final = "csrf"
"""The field that every form of a visit carries."""

_FORM: Final = re.compile(
    rb'application/x-www-form-urlencoded[ \t]*(?:;[ \t]*charset="?utf-8"?[ \t]*)?', re.IGNORECASE
)

Form = dict[str, str]


async def read_form(request: Call, visitor: Visitor) -> Form:
    """The fields of a form that this visit's own pages sent.

    Raises:
        ForbiddenError: another site sent it, or it is of an earlier visit.
        BadRequestError, PayloadTooLargeError, UnsupportedMediaTypeError: it is no form of ours.
    """
    form = await read_open_form(request)
    check_form(request, visitor, form.pop(CSRF, ""))
    return form


async def read_open_form(request: Call) -> Form:
    """The fields of a form that anybody may send, such as the sign-in's.

    Raises:
        BadRequestError: not UTF-8, a field twice, too many.
        PayloadTooLargeError, UnsupportedMediaTypeError: it is no form of ours.
    """
    types = headers(request.scope, b"content-type")
    if len(types) != 1 or _FORM.fullmatch(types[0]) is None:
        raise UnsupportedMediaTypeError("a form must be sent as application/x-www-form-urlencoded")
    raw = await collect(request, MAX_FORM_BYTES)
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise BadRequestError("the form cannot be read: it must be percent-encoded UTF-8") from None
    form: Form = {}
    for name, value in pairs:
        if name in form:
            raise BadRequestError(f"{name[:40]}: is given twice")
        # Browsers send line breaks as CR LF; on record they are what was typed.
        form[name] = value.replace("\r\n", "\n")
    return form
