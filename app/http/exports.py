"""Exports: records, views and bundles as files."""

from __future__ import annotations

from typing import Final

from litestar import get

from app.errors import BadRequestError, NotFoundError
from app.http import examples
from app.http.access import check_agent_id, granted
from app.http.exchange import Call, services_of
from app.http.operation import AGENT_ID, LINES, Field, Form, describe
from app.http.query import instant_of, known_fields
from app.http.streaming import Download
from app.http.target import Query, one_field
from app.ledger.export.wanted import VIEWS, Format, Wanted
from app.principal import Permission

_DAY_OR_INSTANT: Final = {"type": "string", "anyOf": [{"format": "date-time"}, {"format": "date"}]}
_A_DAY: Final = "A date alone is the start of that day in UTC."

_SHARED: Final = (
    Field(
        "format",
        {"type": "string", "enum": [form.value for form in Format], "default": Format.JSONL.value},
        "jsonl and bundle are evidence; csv and parquet are copies to read.",
    ),
    Field("since", _DAY_OR_INSTANT, f"Recorded at this time or later. {_A_DAY}"),
    Field("until", _DAY_OR_INSTANT, f"Recorded before this time. {_A_DAY}"),
    Field(
        "trailer",
        {"type": "boolean", "default": True},
        "false: csv, and jsonl of one whole chain, without the lines that say what was exported and that it "
        "is whole.",
    ),
)

_FORMS: Final = (
    Form("text/csv", examples.EXPORT_CSV),
    Form("application/vnd.apache.parquet", "(Parquet)"),
    Form("application/zip", "(a bundle)"),
)


@get(
    "/v1/agents/{agent_id:str}/export",
    summary="Export an agent's records",
    opt=describe(
        Permission.EXPORT,
        answer=str,
        example=examples.EXPORT,
        media_type=LINES,
        forms=_FORMS,
        errors=(NotFoundError,),
        query=_SHARED,
    ),
)
async def export_agent(request: Call) -> Download:
    """The agent's chain as a file, from one snapshot, streamed. Operators and auditors.

    JSON lines begin with a line that announces the last one, and end in that one: a signed statement of
    count, heads and SHA-256. An answer that breaks off is cut, without its last chunk. With since or until
    records are left out, which file and answer say. That the export began and how it ended is put on record.
    """
    grant = granted(request)
    fields = known_fields(request, _FIELDS)
    wanted = _wanted(fields, agents=(request.path_params["agent_id"],), view=None)
    return Download(services_of(request).ledger.export(grant, wanted))


@get(
    "/v1/export",
    summary="Export the tenant's records",
    opt=describe(
        Permission.EXPORT,
        answer=str,
        example=examples.EXPORT,
        media_type=LINES,
        forms=_FORMS,
        errors=(NotFoundError,),
        query=(
            *_SHARED,
            Field("agent", AGENT_ID, "Of this agent; may be given several times."),
            Field(
                "view",
                {"type": "string", "enum": list(VIEWS)},
                "Rows of this view in place of records; since and until are about the time of its rows.",
            ),
        ),
    ),
)
async def export_tenant(request: Call) -> Download:
    """All records of the tenant, or the rows of a view, as a file from one snapshot. Operators and auditors.

    As the export of an agent, chain after chain; each ends in a line with its count and head. A bundle is a
    ZIP file with the chains, their heads, the public keys and a signed manifest, which `trails verify` checks
    offline.
    """
    grant = granted(request)
    fields = known_fields(request, _FIELDS | {"agent", "view"})
    agents = tuple(dict.fromkeys(check_agent_id(value) for name, value in fields if name == "agent"))
    wanted = _wanted(fields, agents=agents or None, view=one_field(fields, "view"))
    return Download(services_of(request).ledger.export(grant, wanted))


_FIELDS: Final = frozenset(field.name for field in _SHARED)
_FLAGS: Final = {None: True, "true": True, "false": False}


def _wanted(fields: Query, *, agents: tuple[str, ...] | None, view: str | None) -> Wanted:
    form, trailer = one_field(fields, "format"), one_field(fields, "trailer")
    if form is not None and form not in set(Format):
        raise BadRequestError(f"format: must be one of {', '.join(Format)}")
    if trailer not in _FLAGS:
        raise BadRequestError("trailer: must be true or false")
    return Wanted(
        format=Format(form or Format.JSONL),
        view=view,
        agents=agents,
        since_us=instant_of(fields, "since"),
        until_us=instant_of(fields, "until"),
        trailer=_FLAGS[trailer],
    ).check()
