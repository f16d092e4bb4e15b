"""Chains that a head kept elsewhere names, and that are not there at all: the whole chain was taken away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.chain.verdict import Verdict
from app.verification.anchors import Anchor
from app.verification.outcome import Outcome


def missing_chains(
    anchors: Iterable[Anchor],
    outcomes: Sequence[Outcome],
    *,
    agent_id: str | None = None,
    tenant: str | None = None,
) -> list[Outcome]:
    """Chains that a kept head names and that were not found at all."""
    missing: dict[str, Outcome] = {}
    for anchor in anchors:
        if not anchor.named or not _wanted(anchor, agent_id, tenant):
            continue
        if not any(_is_of(anchor, outcome) for outcome in outcomes):
            name = anchor.log_uuid or "/".join(part for part in (anchor.tenant, anchor.agent_id) if part)
            called = f"{name} ({anchor.told})" if anchor.told else name
            note = f"the chain is not there; a head kept elsewhere says seq {anchor.seq}"
            missing[name] = Outcome(
                called, Verdict.INCOMPLETE, anchor.tenant, anchor.agent_id, anchor.log_uuid, note=note
            )
    return list(missing.values())


def _wanted(anchor: Anchor, agent_id: str | None, tenant: str | None) -> bool:
    """Whether a missing chain would have been among those that were asked for."""
    return (agent_id is None or anchor.agent_id == agent_id) and (tenant is None or anchor.tenant == tenant)


def _is_of(anchor: Anchor, outcome: Outcome) -> bool:
    return anchor.belongs_to(tenant=outcome.tenant, agent_id=outcome.agent_id, log_uuid=outcome.log_uuid)
