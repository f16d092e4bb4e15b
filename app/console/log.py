"""An agent's log: its records page by page, filtered, each with what it says exactly; and one alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import get
from litestar.response.base import ASGIResponse

from app.chain.record import KNOWN_KINDS
from app.console.asked import asked, instant_in, seq_in, uuid_in
from app.console.page import Page, render, see_other
from app.console.shown import IN_LIST_CHARS, Shown, shown
from app.console.visitor import Visitor, visit
from app.errors import BadRequestError, NotFoundError
from app.http.access import PERMISSION
from app.http.exchange import Call, services_of
from app.http.query import MAX_SEQ
from app.ledger.trail_reader import RecordPage, RecordQuery
from app.principal import ADMINISTRATION, Permission
from db.browse import RecordsWanted

if TYPE_CHECKING:
    from app.principal import Grant

_FILTERS: Final = ("kind", "actor", "action", "act", "session", "since", "until")
_KNOWN: Final = frozenset({*_FILTERS, "before", "after", "seq", "from"})
_DIGITS: Final = re.compile(r"[0-9]{1,19}")


class LogView(msgspec.Struct, frozen=True):
    """A page of a log as the template shows it: ``fields`` are the filters alone."""

    path: str
    agent_id: str
    records: list[Shown]
    page: RecordPage
    fields: dict[str, str]
    kinds: list[str]

    @property
    def is_filtered(self) -> bool:
        """Whether a filter leaves records out."""
        return bool(self.fields)


@get("/agents/{agent_id:str}/log", opt={PERMISSION: Permission.READ_LOG}, include_in_schema=False)
async def log(request: Call) -> ASGIResponse:
    """A page of the agent's records, newest first."""
    visitor, grant = await visit(request)
    if grant.agent_id == ADMINISTRATION:
        return see_other("/administration")
    return await log_page(request, visitor, grant, f"/agents/{grant.agent_id}/log", "log.html")


async def log_page(
    request: Call,
    visitor: Visitor,
    grant: Grant,
    path: str,
    template: str,
    **values: Any,  # noqa: ANN401  whatever the template shows
) -> Page:
    """A page of a chain's records; that somebody looks at them is put on record first.

    Raises:
        BadRequestError: the address asks for something that cannot be.
        NotFoundError: there is no such agent.
    """
    fields = asked(request, _KNOWN)
    query = _query(fields)
    ledger = services_of(request).ledger
    if grant.agent_id != ADMINISTRATION:  # that one begins with its first record, which may be this one
        await ledger.require_agent(grant)
    await ledger.views.put_on_record(grant, {"agent_id": grant.agent_id}, fields)
    page = await ledger.trail.page(grant, query)
    view = LogView(
        path=path,
        agent_id=grant.agent_id or "",
        records=[shown(read, IN_LIST_CHARS) for read in page.records],
        page=page,
        fields={name: fields[name] for name in _FILTERS if name in fields},
        kinds=sorted(KNOWN_KINDS),
    )
    return render(template, visitor, log=view, **values)


def _query(fields: dict[str, str]) -> RecordQuery:
    given = [name for name in ("before", "after", "seq", "from") if name in fields]
    if len(given) > 1:
        raise BadRequestError(f"{' and '.join(given)}: only one place to go to")
    seq = seq_in(fields, "seq")
    before = seq_in(fields, "before") if seq is None else min(seq + 1, MAX_SEQ)
    first = seq_in(fields, "from")
    return RecordQuery(
        wanted=RecordsWanted(
            kind=fields.get("kind"),
            actor=fields.get("actor"),
            action_id=fields.get("action"),
            act=fields.get("act"),
            session_id=uuid_in(fields, "session"),
        ),
        since_us=instant_in(fields, "since"),
        until_us=instant_in(fields, "until"),
        before=before,
        after=seq_in(fields, "after") if first is None else first - 1,
    )


@get("/agents/{agent_id:str}/log/{seq:str}", opt={PERMISSION: Permission.READ_LOG}, include_in_schema=False)
async def record(request: Call) -> ASGIResponse:
    """One record with everything that it says, at an address that stays."""
    visitor, grant = await visit(request)
    text = request.path_params["seq"]
    if _DIGITS.fullmatch(text) is None or int(text) >= MAX_SEQ:
        raise NotFoundError("the seq of a record is a whole number from 0")
    ledger = services_of(request).ledger
    await ledger.require_agent(grant)
    await ledger.views.put_on_record(grant, {"agent_id": grant.agent_id}, {"seq": text})
    read, end = await ledger.trail.record(grant, int(text))
    return render(
        "record.html",
        visitor,
        agent_id=grant.agent_id,
        is_administration=grant.agent_id == ADMINISTRATION,
        one=shown(read, alone=True),
        end=end,
    )
