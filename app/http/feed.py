"""The feed: all records of the tenant as they are committed, for SIEM, notifications and dashboards."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from litestar import get
from litestar.response.base import ASGIResponse

from app.errors import BadRequestError, CursorGoneError
from app.http import documents, examples
from app.http.access import check_agent_id, granted
from app.http.event_stream import Event, EventStream
from app.http.exchange import Call, headers, services_of
from app.http.operation import TEXT, Field, Variant, describe
from app.http.query import page_of
from app.http.responses import Answer
from app.http.target import Query, one_field, parse_query
from app.ledger.feed.batches import Wanted
from app.principal import Grant, Permission
from app.trace.instant import parse_day_or_instant

if TYPE_CHECKING:
    from app.ledger.feed.cursor import Cursor
    from app.ledger.feed.feed import Feed

FEED_LIMIT: Final = 100
MAX_FEED_LIMIT: Final = 1_000
"""Events in one page, by default and at most."""

MAX_NAMED: Final = 20
"""Kinds, and agents, that one may ask for at once."""

_KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NOW, _START = "now", "start"
_FIELDS: Final = frozenset({"after", "from", "kind", "agent", "limit"})
_STREAM: Final = b"text/event-stream"
_KINDS: Final = {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,63}(,[a-z][a-z0-9_]{0,63}){0,19}$"}
_AGENTS: Final = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}(,[A-Za-z0-9_-]{1,64}){0,19}$"}
_BEGINNING: Final = {
    "type": "string",
    "anyOf": [{"enum": [_NOW, _START]}, {"format": "date-time"}, {"format": "date"}],
    "default": _NOW,
}


@get(
    "/v1/feed",
    summary="All records as they are committed",
    opt=describe(
        Permission.READ_FEED,
        answer=documents.FeedPage,
        example=examples.FEED_PAGE,
        errors=(CursorGoneError,),
        variants=(Variant("stream", _STREAM.decode(), None, None, str, examples.FEED_STREAM),),
        query=(
            Field("after", TEXT, "The next of an earlier answer, or the id of an event: go on behind it."),
            Field(
                "from",
                _BEGINNING,
                "Without after, where to begin: now; start; or the records with a time from this one on.",
            ),
            Field("kind", _KINDS, f"Records of these kinds alone, at most {MAX_NAMED}, commas between them."),
            Field("agent", _AGENTS, f"Records of these agents alone, at most {MAX_NAMED}; the same."),
            Field(
                "limit",
                {"type": "integer", "minimum": 1, "default": FEED_LIMIT},
                f"Most events in a page; above {MAX_FEED_LIMIT} counts as {MAX_FEED_LIMIT}.",
            ),
        ),
    ),
)
async def read_feed(request: Call) -> ASGIResponse:
    """Each record of each chain, once, however late it was committed. Operators and auditors.

    With Accept: text/event-stream an endless stream of server-sent events, which goes on behind the id that
    Last-Event-ID names; else a page. Of each agent records come in their order; between agents the order says
    nothing. Each event is a CloudEvents 1.0 envelope around the record as it was signed: its hash and
    signature are for you to check, the feed does not. A cursor that this database cannot go on with, as after
    a restore or a failover, is refused (410), and nothing is passed over in silence.
    """
    grant = granted(request)
    feed = services_of(request).ledger.feed
    fields = _fields(request)
    wanted = Wanted(_kinds(fields), _agents(fields))
    page = page_of(request, default=FEED_LIMIT, most=MAX_FEED_LIMIT)
    if not _asks_for_stream(request):
        cursor = await _cursor(feed, grant, fields, page.after)
        found = await feed.page(grant.tenant_id, cursor, wanted, page.limit)
        more = "true" if found.more else "false"
        return Answer(f'{{"events":[{",".join(found.events)}],"more":{more},"next":"{found.next}"}}'.encode())
    cursor = await _cursor(feed, grant, fields, _last_seen(request) or page.after)
    return EventStream(_events(feed, grant, cursor, wanted), tenant_id=grant.tenant_id)


async def _events(feed: Feed, grant: Grant, cursor: Cursor, wanted: Wanted) -> AsyncIterator[Event]:
    # Where it begins is told at once: who is cut off before the first event misses nothing either.
    yield Event(None, feed.seal(grant.tenant_id, cursor))
    async with aclosing(feed.live(grant.tenant_id, cursor, wanted)) as live:
        async for told in live:
            yield Event(told.event, told.cursor)


async def _cursor(feed: Feed, grant: Grant, fields: Query, after: str | None) -> Cursor:
    beginning = one_field(fields, "from")
    if after is not None:
        return await feed.resumed(grant.tenant_id, after)
    if beginning in {None, _NOW}:
        return await feed.from_now(grant.tenant_id)
    if beginning == _START:
        return await feed.from_start(grant.tenant_id)
    try:
        return await feed.from_start(grant.tenant_id, parse_day_or_instant(beginning or ""))
    except ValueError as error:
        raise BadRequestError(f"from: {error}") from error


def _asks_for_stream(request: Call) -> bool:
    return any(_STREAM in accepted.lower() for accepted in headers(request.scope, b"accept"))


def _last_seen(request: Call) -> str | None:
    """What a client that comes back has seen; it is later than what its URL says."""
    given = headers(request.scope, b"last-event-id")
    if len(given) > 1:
        raise BadRequestError("Last-Event-ID: is given more than once")
    return given[0].decode("latin-1") if given and given[0] else None


def _fields(request: Call) -> Query:
    fields = parse_query(request.scope["query_string"])
    unknown = next((name for name, _ in fields if name not in _FIELDS), None)
    if unknown is not None:
        raise BadRequestError(
            f"there is no query field {unknown[:40]}; there are {', '.join(sorted(_FIELDS))}"
        )
    return fields


def _kinds(fields: Query) -> tuple[str, ...] | None:
    kinds = _named(fields, "kind")
    return None if kinds is None else tuple(check_kind(kind, "kind") for kind in kinds)


def check_kind(kind: str, field: str) -> str:
    """``kind`` when it may be one.

    Raises:
        BadRequestError: it breaks the pattern of kinds.
    """
    if _KIND.fullmatch(kind) is None:
        raise BadRequestError(f"{field}: kinds of records have 1 to 64 characters of a-z 0-9 _")
    return kind


def _agents(fields: Query) -> tuple[str, ...] | None:
    agents = _named(fields, "agent")
    return None if agents is None else tuple(check_agent_id(agent_id) for agent_id in agents)


def _named(fields: Query, name: str) -> tuple[str, ...] | None:
    text = one_field(fields, name)
    if text is None:
        return None
    values = tuple(dict.fromkeys(text.split(",")))
    if len(values) > MAX_NAMED:
        raise BadRequestError(f"{name}: at most {MAX_NAMED} at once")
    return values
