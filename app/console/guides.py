"""The guides, as the repository has them, for everybody: ``/guides`` needs no key.

They are read when they are first asked for, and nobody's data is in them.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from litestar import get
from litestar.response.base import ASGIResponse
from markupsafe import Markup

from app.console.markdown import README, Rendered, render_markdown
from app.console.page import render
from app.console.static_files import File, FileAnswer, load
from app.console.visitor import SignInNeededError, Visitor, visitor_of, with_waiting
from app.errors import NotFoundError, TrailsError
from app.http.access import PUBLIC
from app.http.exchange import Call

FOLDER: Final = Path(__file__).parent.parent / "guides"
ORDER: Final = (
    README,
    "developers",
    "feed",
    "operators",
    "compliance",
    "sql-schema",
    "record-format",
    "bi",
    "administrators",
    "performance",
    "sizing",
    "threat-model",
    "architecture",
    "contributing",
)
"""What is listed first; pages that are not named here follow."""


@get("/guides", opt={PUBLIC: True}, include_in_schema=False)
async def guide_list(request: Call) -> ASGIResponse:
    """All guides, with what each is for."""
    return render("guides.html", await _guest(request), guides=await _known())


@get("/guides/{name:str}", opt={PUBLIC: True}, include_in_schema=False)
async def guide(request: Call) -> ASGIResponse:
    """One guide, or a picture of one."""
    name = request.path_params["name"]
    if name in pictures():
        return FileAnswer(pictures()[name])
    page = (await _known()).get(name)
    if page is None:
        raise NotFoundError("there is no such guide")
    return await show(request, name, page)


async def show(request: Call, name: str, page: Rendered) -> ASGIResponse:
    """A page to be read, with the list of the others beside it."""
    return render(
        "guide.html",
        await _guest(request),
        page=page,
        html=Markup(page.html),  # noqa: S704  our own file, rendered without HTML in it
        guides=await _known(),
        name=name,
    )


async def _known() -> Mapping[str, Rendered]:
    """The guides; the first time they are made beside the loop, since that takes a moment."""
    return pages() if pages.cache_info().currsize else await asyncio.to_thread(pages)


@cache
def pages() -> Mapping[str, Rendered]:
    """The guides by name, in the order in which they are listed."""
    texts = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.md"))}
    texts[README] = _readme()
    rendered = {name: render_markdown(text) for name, text in texts.items()}
    rendered[README] = msgspec.structs.replace(rendered[README], title="What it is, and a tour")
    names = [*(name for name in ORDER if name in texts), *sorted(texts.keys() - set(ORDER))]
    return {name: rendered[name] for name in names}


@cache
def pictures() -> Mapping[str, File]:
    """The guides' pictures by file name."""
    return {path.name: load(path) for path in sorted(FOLDER.glob("*.svg"))}


def _readme() -> str:
    """The README: beside the code, or, where the program is installed, what the package says of itself."""
    beside = FOLDER.parent.parent / "README.md"
    if beside.exists():
        return beside.read_text("utf-8")
    return importlib.metadata.metadata("lineage-trails")["Description"]


async def _guest(request: Call) -> Visitor | None:
    """Who is signed in, with what waits, for the head of the page; nobody also while that cannot be told."""
    try:
        return await with_waiting(request, await visitor_of(request))
    except (SignInNeededError, TrailsError):
        return None
