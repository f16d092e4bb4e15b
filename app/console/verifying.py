"""Verifying a chain from the console: it runs in the background, the page tells how far it is.

The verdict is the one of ``GET …/verify``, and on record as that is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import get, post
from litestar.response.base import ASGIResponse

from app.chain.record import format_timestamp
from app.console.asked import asked
from app.console.form import read_form
from app.console.page import render, see_other
from app.console.visitor import visit
from app.errors import BadRequestError, NotFoundError
from app.http.access import PERMISSION
from app.http.exchange import Call, services_of
from app.ledger.watch.inspect import COMPLETENESS
from app.principal import ADMINISTRATION, Permission

if TYPE_CHECKING:
    from app.chain.strict import JsonObject
    from app.ledger.trail_reader import TrailReader
    from app.ledger.watch.verifications import Run
    from app.principal import Grant

MEANINGS: Final = {
    "content": "What the record says is not what was hashed: its text, or its hash, was changed afterwards.",
    "link": "It does not follow the record before it: one of the two was replaced, or its link was changed.",
    "order": "A record is missing or out of place: the numbers do not go on by one, or the time goes back.",
    "fork": "Two records claim the same place in the chain: somebody wrote a second history.",
    "signature": "It is not signed by the tenant's key that was in force: another made or changed it.",
    "format": "This is no record of the format at all: its text was damaged or replaced.",
    "mirror": "The signed text is sound, but columns beside it say something else: SQL is misled.",
    "fold": "A snapshot says something else than the records before it come to.",
    "kind": "The record is sound, but this version does not know its kind.",
    "chain": "The chain does not hold together here.",
}
"""What each class of a failure means, for a person (case C31)."""

MOST_MISSES: Final = 60
"""How often a page asks for a run that the process it reached does not know; another one may."""

_CHECKPOINT: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_RUN: Final = re.compile(r"[0-9a-f]{16}")
_KNOWN: Final = frozenset({"run", "checkpoint", "misses"})


class Held(msgspec.Struct, frozen=True):
    """Whether a chain has the record of a checkpoint: ``holds``, and in words what that says."""

    checkpoint: str
    holds: bool
    said: str


@get("/agents/{agent_id:str}/verify", opt={PERMISSION: Permission.READ_LOG}, include_in_schema=False)
async def verify_page(request: Call) -> ASGIResponse:
    """What the last verification found, or how far it is; and the form for a checkpoint."""
    visitor, grant = await visit(request)
    fields = asked(request, _KNOWN)
    ledger = services_of(request).ledger
    length = await ledger.trail.length(grant)
    checkpoint = fields.get("checkpoint")
    return render(
        "verify.html",
        visitor,
        **_told(grant, ledger.verifications.last(grant), fields),
        length=length,
        held=None if checkpoint is None else await _held(ledger.trail, grant, checkpoint),
        checkpoint=checkpoint or "",
        is_administration=grant.agent_id == ADMINISTRATION,
    )


@get("/agents/{agent_id:str}/verify/progress", opt={PERMISSION: Permission.READ_LOG}, include_in_schema=False)
async def progress(request: Call) -> ASGIResponse:
    """The part of the page that changes, for its script."""
    _, grant = await visit(request)
    fields = asked(request, _KNOWN)
    run = services_of(request).ledger.verifications.last(grant)
    return render("parts/verification.html", None, **_told(grant, run, fields))


@post("/agents/{agent_id:str}/verify", opt={PERMISSION: Permission.READ_LOG}, include_in_schema=False)
async def verify(request: Call) -> ASGIResponse:
    """Begins a verification, or joins the one that goes on."""
    visitor, grant = await visit(request)
    await read_form(request, visitor)
    ledger = services_of(request).ledger
    run = ledger.verifications.start(grant, await ledger.trail.length(grant))
    return see_other(f"/agents/{grant.agent_id}/verify?run={run.id}")


def _told(grant: Grant, run: Run | None, fields: dict[str, str]) -> dict[str, Any]:
    """What the changing part of the page shows: a run, or that the run is not known in this process."""
    wanted, misses = fields.get("run", ""), fields.get("misses", "0")
    if wanted and _RUN.fullmatch(wanted) is None:
        raise BadRequestError("run: is none of a verification")
    missed = int(misses) if misses.isdecimal() and len(misses) < 4 else MOST_MISSES
    is_elsewhere = bool(wanted) and (run is None or (run.id != wanted and run.is_over))
    verdict = None if run is None else run.verdict
    return {
        "agent_id": grant.agent_id,
        "run": None if is_elsewhere else run,
        "wanted": wanted,
        "is_elsewhere": is_elsewhere,
        "misses": missed + 1 if is_elsewhere else 0,
        "is_lost": is_elsewhere and missed >= MOST_MISSES,
        "faults": [] if verdict is None else _faults(verdict),
        "head": None if verdict is None else _head(verdict),
        "completeness": COMPLETENESS,
        "ended": None if run is None or run.ended_at is None else format_timestamp(int(run.ended_at * 1e6)),
    }


def _faults(verdict: JsonObject) -> list[dict[str, object]]:
    listed = verdict.get("faults")
    faults = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [{**one, "meaning": MEANINGS.get(str(one.get("fault")), MEANINGS["chain"])} for one in faults]


def _head(verdict: JsonObject) -> str | None:
    head = verdict.get("head")
    return f"{head['seq']}:{head['hash']}" if isinstance(head, dict) else None


async def _held(trail: TrailReader, grant: Grant, checkpoint: str) -> Held:
    found = _CHECKPOINT.fullmatch(checkpoint)
    if found is None:
        return Held(
            checkpoint,
            holds=False,
            said="This is no checkpoint; one is written SEQ:HASH, the hash with 64 hex digits.",
        )
    seq, hash_ = int(found[1]), found[2]
    try:
        read, _ = await trail.record(grant, seq)
    except NotFoundError:
        last = await trail.length(grant) - 1
        return Held(
            checkpoint,
            holds=False,
            said=f"The chain has no record {seq} any more; its last one is {last}. Its end was cut off, or "
            "an older state of the database was put back.",
        )
    if read.row.hash != hash_:
        said = f"Record {seq} has another hash than the checkpoint: it is not the record that was there then."
        return Held(checkpoint, holds=False, said=said)
    if read.record is None:
        return Held(checkpoint, holds=False, said=f"Record {seq} has this hash, but does not verify.")
    return Held(
        checkpoint,
        holds=True,
        said=f"The chain still has this record. If it verifies, it is complete and unchanged up to {seq}.",
    )
