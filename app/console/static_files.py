"""The console's own files: style, script. They are few, small, and read once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import msgspec
from litestar import get
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from app.console.page import TEMPLATES
from app.errors import NotFoundError
from app.http.access import PUBLIC
from app.http.exchange import Call, headers

TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_FOLDER: Final = Path(__file__).parent / "static"


class File(msgspec.Struct, frozen=True):
    """A file as it is served."""

    content: bytes
    media_type: bytes
    tag: bytes


def load(path: Path) -> File:
    """A file with its type and the tag of its content."""
    content = path.read_bytes()
    tag = b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"'
    return File(content, TYPES[path.suffix], tag)


FILES: Final = {path.name: load(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in TYPES}


def _address(name: str) -> str:
    """Where a page finds a file: the address changes with the content, so browsers may keep it."""
    return f"/static/{name}?v={FILES[name].tag.decode()[1:13]}"


TEMPLATES.globals["static"] = _address


class FileAnswer(ASGIResponse):
    """A file, or 304 for a browser that has it."""

    __slots__ = ("file",)

    def __init__(self, file: File) -> None:
        self.file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's form
        """Sends the file."""
        known = self.file.tag in headers(scope, b"if-none-match")
        body = b"" if known else self.file.content
        own: list[Any] = [(b"etag", self.file.tag), (b"cache-control", b"public, max-age=3600")]
        if not known:
            own += [(b"content-type", self.file.media_type), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 304 if known else 200, "headers": own})
        await send({"type": "http.response.body", "body": body, "more_body": False})


@get("/static/{name:str}", opt={PUBLIC: True}, include_in_schema=False)
async def static_file(request: Call) -> FileAnswer:
    """A file of the console; none of them says anything of anybody."""
    file = FILES.get(request.path_params["name"])
    if file is None:
        raise NotFoundError("there is no such file")
    return FileAnswer(file)
