"""Verifying the database: what ``trails verify`` does without a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from app.audit.chain import ChainName, Reached
from app.audit.database import audit_database
from app.audit.rows import Place
from app.audit.walk import ChainVerdict, DatabaseAudit, Marks, Selection, Trust
from app.chain.keys import PublicKey
from app.chain.verdict import Verdict
from app.cli.database import database_url
from app.cli.local import local_ledger
from app.cli.on_record import not_on_record, recorded
from app.errors import StartupError, TrailsError
from app.opening import look_directly
from app.settings import Settings, master_key_at_hand
from app.verification.anchors import Anchor, checkpoints, contradiction
from app.verification.marks import Mark, Marked, MarkWriter, marks_of, trust_of, written
from app.verification.missing import missing_chains
from app.verification.outcome import SOUND, Finding, MarkWord, Outcome, Run

if TYPE_CHECKING:
    from app.chain.strict import JsonObject

DATABASE = "database"


async def verify_database(
    environ: Mapping[str, str],
    *,
    agent_id: str | None,
    tenant: str | None,
    pinned: tuple[PublicKey, ...],
    anchors: Sequence[Anchor],
    progress: Callable[[int], None],
    record: bool = False,
    jobs: int = 1,
    mark: Path | None = None,
    resume: Path | None = None,
) -> Run:
    """Audits the database that the environment names; with ``record`` it is put on record afterwards.

    Raises:
        StartupError: no database is named, it is away or refuses, or a setting does not fit.
    """
    settings = Settings.from_env(environ)
    url = database_url(settings)
    await look_directly(url, embedded=None if settings.database_url else settings.data_dir)
    troubles: list[Finding] = []
    key: bytes | None = None
    try:
        key = None if pinned else master_key_at_hand(settings)
    except StartupError as error:
        troubles.append(Finding(Verdict.UNCHECKED, "master key", error.message))
    trust = trust_of(pinned, keys=key is not None)
    before, writer = marks_of(environ, mark, resume, of=DATABASE, trust=trust)
    found = await audit_database(
        url,
        Selection(tenant, agent_id),
        Trust(pinned, key),
        checkpoints=lambda name: checkpoints(_heads_of(name, anchors)),
        progress=_steps(progress),
        jobs=jobs,
        marks=_marks(before, writer),
    )
    if writer is not None:
        troubles += written(writer)
    run = _run(found, anchors, before, agent_id=agent_id, tenant=tenant)
    run = msgspec.structs.replace(run, findings=(*run.findings, *troubles))
    if record:
        run = msgspec.structs.replace(run, notes=(*run.notes, *await _put_on_record(settings, run, agent_id)))
    return run


async def _put_on_record(settings: Settings, run: Run, agent_id: str | None) -> list[str]:
    """Tells each tenant's administration chain how its chains came out; says of each whether it did."""
    by_tenant: dict[str, list[Outcome]] = {}
    for outcome in run.outcomes:
        if outcome.tenant is not None and outcome.report is not None:
            by_tenant.setdefault(outcome.tenant, []).append(outcome)
    notes = []
    try:
        async with local_ledger(settings) as ledger:
            for slug, outcomes in by_tenant.items():
                others = by_tenant.keys() - {slug}
                sound = not any(_concerns(finding, others) for finding in run.findings)
                payload = _told(outcomes, agent_id, sound=sound)
                try:
                    told = await recorded(ledger, await ledger.tenant_id(slug), payload)
                except TrailsError as error:
                    told = not_on_record(error)
                notes.append(f"this verification of {slug} is {told}")
    except TrailsError as error:
        notes.append(f"this verification is {not_on_record(error)}")
    return notes


def _concerns(finding: Finding, others: Iterable[str]) -> bool:
    """Whether a finding counts for a tenant: unless it is about one of the others."""
    return not any(finding.what.endswith(f" of {slug}") for slug in others)


def _told(outcomes: Sequence[Outcome], agent_id: str | None, *, sound: bool) -> JsonObject:
    """What the record of a verification says.

    Args:
        outcomes: what became of the tenant's chains.
        agent_id: None when all chains were asked for.
        sound: whether nothing else was found.
    """
    told: JsonObject = {
        "act": "verified",
        "agent_id": agent_id,
        "chains": len(outcomes),
        "length": sum(outcome.checked for outcome in outcomes),
        "intact": sound and all(outcome.verdict in SOUND for outcome in outcomes),
    }
    if before := sum(outcome.mark.seq for outcome in outcomes if outcome.mark is not None):
        told["on_a_marks_word"] = before  # records that were not read
    [one, *others] = outcomes
    if others or one.report is None or one.report.head is None:
        return told
    head: JsonObject = {"seq": one.report.head.seq, "hash": one.report.head.hash}
    return {**told, "log_uuid": one.log_uuid, "head": head}


def _heads_of(name: ChainName, anchors: Sequence[Anchor]) -> list[Anchor]:
    about = {"tenant": name.tenant, "agent_id": name.agent_id, "log_uuid": name.log_uuid}
    return [anchor for anchor in anchors if anchor.belongs_to(**about)]


def _marks(before: Mark | None, writer: MarkWriter | None) -> Marks:
    """What is known of chains by a mark, and who keeps what the next one says."""

    def tell(place: Place, name: ChainName, reached: Reached | None, resumed: bool) -> None:  # noqa: FBT001
        if writer is not None:
            marked = None if reached is None else partial(_marked, place, name, reached)
            writer.tell(name.log_uuid, marked, resumed=resumed)

    told = () if before is None else before.chains
    places: dict[Place, Marked] = {
        (UUID(chain.tenant_id), UUID(chain.log_uuid)): chain
        for chain in told
        if chain.tenant_id is not None and chain.log_uuid is not None
    }
    return Marks(
        {place: _reached(chain) for place, chain in places.items()},
        {
            place: ChainName(chain.tenant or "(none)", chain.agent_id or "(none)", str(place[1]))
            for place, chain in places.items()
        },
        tell,
    )


def _marked(place: Place, name: ChainName, reached: Reached, since: str) -> Marked:
    return Marked(
        name=name.log_uuid,
        tenant=name.tenant,
        agent_id=name.agent_id,
        log_uuid=name.log_uuid,
        position=reached.position,
        since=since,
        tenant_id=str(place[0]),
        begun=reached.begun[1],
        fold=reached.fold,
    )


def _reached(marked: Marked) -> Reached:
    position = marked.position
    begun = marked.begun or datetime.min.replace(tzinfo=UTC)
    return Reached(position, (position.genesis_key, begun), marked.fold)


def _word(chain: ChainVerdict, before: Mark | None) -> MarkWord | None:
    if chain.marked is None or before is None:
        return None
    since = next(told.since for told in before.chains if told.log_uuid == chain.name.log_uuid)
    return MarkWord(chain.marked.seq, before.written, since)


def _outcome(chain: ChainVerdict, anchors: Sequence[Anchor], before: Mark | None) -> Outcome:
    name, verdict, note = chain.name, chain.report.verdict, chain.note
    word = _word(chain, before)
    if word is not None and verdict is Verdict.VERIFIED:
        verdict = Verdict.RESUMED
    if contradicting := contradiction(_heads_of(name, anchors)):
        verdict, note = Verdict.TAMPERED, "; ".join(filter(None, (contradicting, note)))
    return Outcome(DATABASE, verdict, name.tenant, name.agent_id, name.log_uuid, chain.report, note, word)


def _run(
    found: DatabaseAudit,
    anchors: Sequence[Anchor],
    before: Mark | None,
    *,
    agent_id: str | None,
    tenant: str | None,
) -> Run:
    chains = sorted(found.chains, key=lambda chain: (chain.name.tenant, chain.name.agent_id))
    outcomes = [_outcome(chain, anchors, before) for chain in chains]
    findings = [Finding(problem.verdict, problem.what, problem.reason) for problem in found.problems]
    if found.complete:
        outcomes += missing_chains(anchors, outcomes, agent_id=agent_id, tenant=tenant)
    if not outcomes and not findings:
        findings.append(Finding(Verdict.NOTHING, DATABASE, _nothing(agent_id, tenant)))
    return Run(tuple(outcomes), tuple(findings), tuple(found.notes))


def _nothing(agent_id: str | None, tenant: str | None) -> str:
    wanted = " and ".join(
        part for part in (agent_id and f"agent {agent_id}", tenant and f"tenant {tenant}") if part
    )
    return f"holds no chain of {wanted}" if wanted else "holds no chain yet"


def _steps(progress: Callable[[int], None]) -> Callable[[int], None]:
    """Turns "so many so far" into "so many more"."""
    before = 0

    def report(so_far: int) -> None:
        nonlocal before
        progress(so_far - before)
        before = so_far

    return report
