"""One page: a template, what every page carries, and the headers that keep foreign text from acting.

Whatever an agent wrote is text here. Templates escape each value, there is no inline script or style, and the
Content-Security-Policy lets the browser load and run nothing but our own files (case H23).
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, Final

import jinja2
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from app.chain.record import format_timestamp
from app.console.visitor import Visitor
from app.text import printable

POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing inline, nothing from elsewhere, in no frame."""

HEADERS: Final = [
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (b"vary", b"Cookie"),
]
"""What every page carries; ``no-store`` and ``nosniff`` come from the edge (case H17).

The referrer stays among our own pages; with none at all browsers would send forms with the origin ``null``.
"""

_HTML: Final = b"text/html; charset=utf-8"

TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""All templates. A name that is not given is an error, never an empty place."""


class Page(ASGIResponse):
    """A finished page: its bytes, its status, and headers of its own such as ``Set-Cookie``."""

    __slots__ = ("extra", "html", "status")

    def __init__(self, html: str, status: int = 200, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        # The base class is for Litestar's type checks only, as in ``app.http.responses``.
        self.html = html.encode()
        self.status = status
        self.extra = extra

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's form
        """Sends the page."""
        length = str(len(self.html)).encode()
        headers = [(b"content-type", _HTML), (b"content-length", length), *HEADERS, *self.extra]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.html, "more_body": False})


def render(
    template: str,
    visitor: Visitor | None,
    *,
    status: int = 200,
    extra: tuple[tuple[bytes, bytes], ...] = (),
    **values: Any,  # noqa: ANN401  whatever the template shows
) -> Page:
    """A page from a template.

    Args:
        template: file name below ``templates``.
        visitor: who is signed in, for the head of the page; None for nobody.
        status: HTTP status.
        extra: further headers.
        values: what the template names.
    """
    html = TEMPLATES.get_template(template).render(visitor=visitor, **values)
    return Page(html, status, extra)


def see_other(place: str, extra: tuple[tuple[bytes, bytes], ...] = ()) -> Redirect:
    """Sends the browser to another page of the console, by GET."""
    return Redirect(place, extra)


class Redirect(ASGIResponse):
    """A 303 to a path of the console."""

    __slots__ = ("extra", "place")

    def __init__(self, place: str, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self.place = place
        self.extra = extra

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's form
        """Sends the redirect."""
        headers = [(b"location", self.place.encode()), (b"content-length", b"0"), *HEADERS, *self.extra]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _ago(instant: str, now: dt.datetime | None = None) -> str:
    """How long before now a record's time is, in one unit: ``3 min ago``."""
    then = dt.datetime.fromisoformat(instant)
    seconds = ((now or dt.datetime.now(dt.UTC)) - then).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{max(0, int(seconds))} s ago"


TEMPLATES.filters["ago"] = _ago
TEMPLATES.filters["instant"] = format_timestamp
TEMPLATES.filters["shown"] = printable
