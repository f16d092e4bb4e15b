"""Verifying the database: what ``trails verify`` does without a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from app.chain.keys import PublicKey
from app.chain.verdict import Verdict
from app.cli.anchors import Anchor, checkpoints, contradiction
from app.cli.database import database_url
from app.cli.missing import missing_chains
from app.cli.outcome import Finding, Outcome, Run
from app.errors import StartupError
from app.ledger.audit import ChainVerdict, DatabaseAudit, Selection, Trust, audit_database
from app.ledger.audit_chain import ChainName
from app.opening import look_directly
from app.settings import Settings, master_key_at_hand

DATABASE = "database"


async def verify_database(
    environ: Mapping[str, str],
    *,
    agent_id: str | None,
    tenant: str | None,
    pinned: tuple[PublicKey, ...],
    anchors: Sequence[Anchor],
    progress: Callable[[int], None],
) -> Run:
    """Audits the database that the environment names.

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
    found = await audit_database(
        url,
        Selection(tenant, agent_id),
        Trust(pinned, key),
        checkpoints=lambda name: checkpoints(_heads_of(name, anchors)),
        progress=_steps(progress),
    )
    run = _run(found, anchors, agent_id=agent_id, tenant=tenant)
    return msgspec.structs.replace(run, findings=(*run.findings, *troubles))


def _heads_of(name: ChainName, anchors: Sequence[Anchor]) -> list[Anchor]:
    about = {"tenant": name.tenant, "agent_id": name.agent_id, "log_uuid": name.log_uuid}
    return [anchor for anchor in anchors if anchor.belongs_to(**about)]


def _outcome(chain: ChainVerdict, anchors: Sequence[Anchor]) -> Outcome:
    name, verdict, note = chain.name, chain.report.verdict, chain.note
    if contradicting := contradiction(_heads_of(name, anchors)):
        verdict, note = Verdict.TAMPERED, "; ".join(filter(None, (contradicting, note)))
    return Outcome(DATABASE, verdict, name.tenant, name.agent_id, name.log_uuid, chain.report, note)


def _run(found: DatabaseAudit, anchors: Sequence[Anchor], *, agent_id: str | None, tenant: str | None) -> Run:
    chains = sorted(found.chains, key=lambda chain: (chain.name.tenant, chain.name.agent_id))
    outcomes = [_outcome(chain, anchors) for chain in chains]
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
