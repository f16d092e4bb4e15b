"""Who is calling, and what they were let to do: types that prove it.

A ``Principal`` is made by authentication only, a ``Grant`` by ``grant`` only. The ledger takes nothing
else, so that no code path reaches a chain without both.
"""

from __future__ import annotations

import enum
from uuid import UUID

import msgspec

from app.errors import ForbiddenError


class Role(enum.StrEnum):
    """What a key may do."""

    OPERATOR = "operator"
    AGENT = "agent"


class Permission(enum.StrEnum):
    """One kind of thing that a route does.

    ``POST`` is for traces, events and spans; ``OBSERVE`` begins the chain of an agent that posts for the
    first time; ``READ_SESSIONS`` shows what all agents of the tenant did together.
    """

    CREATE_AGENT = "create_agent"
    LIST_AGENTS = "list_agents"
    ISSUE_TOKEN = "issue_token"  # noqa: S105  the name of a permission, no secret
    READ_STATUS = "read_status"
    READ_ACTION = "read_action"
    READ_LOG = "read_log"
    REQUEST = "request"
    REPORT = "report"
    REPORT_HARM = "report_harm"
    DECIDE = "decide"
    SCAR = "scar"
    TERMINATE = "terminate"
    POST = "post"
    OBSERVE = "observe"
    READ_SESSIONS = "read_sessions"


PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.OPERATOR: frozenset(Permission),
    Role.AGENT: frozenset(
        {
            Permission.READ_STATUS,
            Permission.READ_ACTION,
            Permission.REQUEST,
            Permission.REPORT,
            Permission.POST,
        }
    ),
}
"""The one table of what each role may do."""


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller: ``agent_id`` is set for agent keys, which reach that agent alone."""

    tenant_id: UUID
    role: Role
    name: str
    agent_id: str | None = None


class Grant(msgspec.Struct, frozen=True):
    """Proof that a principal may do ``permission`` to one agent (or, with None, in its tenant)."""

    tenant_id: UUID
    permission: Permission
    actor: str
    role: Role
    agent_id: str | None


def grant(principal: Principal, permission: Permission, agent_id: str | None = None) -> Grant:
    """Lets ``principal`` do ``permission`` to ``agent_id``, or refuses.

    Raises:
        ForbiddenError: the role may not do this, or the agent is not the caller's own.
    """
    if permission not in PERMISSIONS[principal.role]:
        raise ForbiddenError(f"the role {principal.role} may not do this; it takes an operator's token")
    if principal.agent_id not in {None, agent_id}:
        raise ForbiddenError("an agent's token reaches that agent alone")
    return Grant(
        tenant_id=principal.tenant_id,
        permission=permission,
        actor=principal.name,
        role=principal.role,
        agent_id=agent_id,
    )
