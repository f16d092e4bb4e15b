"""Who is calling, and what they were let to do: types that prove it.

A ``Principal`` is made by authentication only, a ``Grant`` by ``grant`` only. The ledger takes nothing
else, so that no code path reaches a chain without both.
"""

from __future__ import annotations

import enum
from typing import Final
from uuid import UUID

import msgspec

from app.errors import ForbiddenError

ADMINISTRATION: Final = "_administration"
"""Id of the chain that holds a tenant's administrative acts; no agent can have it."""


class Role(enum.StrEnum):
    """What a key may do."""

    ROOT = "root"
    OPERATOR = "operator"
    AUDITOR = "auditor"
    WRITER = "writer"
    AGENT = "agent"


class Permission(enum.StrEnum):
    """One kind of thing that a route does.

    ``POST`` is for traces, events and spans; ``OBSERVE`` begins the chain of an agent that posts for the
    first time; ``READ_SESSIONS`` shows what all agents of the tenant did together; the last three are about
    tenants as a whole.
    """

    CREATE_AGENT = "create_agent"
    LIST_AGENTS = "list_agents"
    ISSUE_TOKEN = "issue_token"  # noqa: S105  the name of a permission, no secret
    REVOKE_TOKEN = "revoke_token"  # noqa: S105  as above
    READ_STATUS = "read_status"
    READ_ACTION = "read_action"
    READ_PENDING = "read_pending"
    READ_LOG = "read_log"
    REQUEST = "request"
    REPORT = "report"
    CLAIM = "claim"
    REPORT_HARM = "report_harm"
    DECIDE = "decide"
    SCAR = "scar"
    TERMINATE = "terminate"
    POST = "post"
    OBSERVE = "observe"
    READ_SESSIONS = "read_sessions"
    EXPORT = "export"
    READ_FEED = "read_feed"
    LIST_WEBHOOKS = "list_webhooks"
    SET_WEBHOOKS = "set_webhooks"
    ISSUE_KEY = "issue_key"
    LIST_KEYS = "list_keys"
    REVOKE_KEY = "revoke_key"
    READ_REDACTION = "read_redaction"
    SET_REDACTION = "set_redaction"
    CREATE_TENANT = "create_tenant"
    LIST_TENANTS = "list_tenants"
    SUSPEND_TENANT = "suspend_tenant"


_ROOTS: Final = frozenset({Permission.CREATE_TENANT, Permission.LIST_TENANTS, Permission.SUSPEND_TENANT})

READING: Final = frozenset(
    {
        Permission.LIST_AGENTS,
        Permission.READ_STATUS,
        Permission.READ_ACTION,
        Permission.READ_PENDING,
        Permission.READ_LOG,
        Permission.READ_SESSIONS,
        Permission.EXPORT,
        Permission.READ_FEED,
        Permission.LIST_WEBHOOKS,
        Permission.LIST_KEYS,
        Permission.READ_REDACTION,
    }
)
"""What changes nothing: a suspended tenant keeps it, and the administration chain is open to it."""

PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.ROOT: _ROOTS,
    Role.OPERATOR: frozenset(Permission) - _ROOTS,
    Role.AUDITOR: READING,
    Role.WRITER: frozenset({Permission.POST, Permission.OBSERVE}),
    Role.AGENT: frozenset(
        {
            Permission.READ_STATUS,
            Permission.READ_ACTION,
            Permission.REQUEST,
            Permission.REPORT,
            Permission.CLAIM,
            Permission.POST,
        }
    ),
}
"""The one table of what each role may do."""


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller.

    Attributes:
        tenant_id: whose; no request reaches beyond it.
        role: what it may do.
        name: the actor of what it does: the agent's id, or the key's name.
        agent_id: set for agent keys, which reach that agent alone.
        key_id: visible id of its API key; None for the tokens of the installation and derived ones.
        epoch: of a token that is derived for an agent: how often it was revoked before.
    """

    tenant_id: UUID
    role: Role
    name: str
    agent_id: str | None = None
    key_id: str | None = None
    epoch: int = 0


class Grant(msgspec.Struct, frozen=True):
    """Proof that a principal may do ``permission`` to one agent (or, with None, in its tenant)."""

    tenant_id: UUID
    permission: Permission
    actor: str
    role: Role
    agent_id: str | None
    key_id: str | None = None

    @property
    def key(self) -> str | None:
        """Which key acts: the id of an API key, or the name of a token of the installation.

        None for the token that is derived for an agent: it is the agent's own, whose name is the actor.
        """
        own = self.role is Role.AGENT
        return self.key_id or (None if own else self.actor)


def grant(principal: Principal, permission: Permission, agent_id: str | None = None) -> Grant:
    """Lets ``principal`` do ``permission`` to ``agent_id``, or refuses.

    Raises:
        ForbiddenError: the role may not do this, the agent is not the caller's own, or it is the chain of
            administrative acts, which the service alone writes.
    """
    if permission not in PERMISSIONS[principal.role]:
        able = ", ".join(role for role in Role if permission in PERMISSIONS[role])
        raise ForbiddenError(f"the role {principal.role} may not do this; it takes a key of role {able}")
    if principal.agent_id not in {None, agent_id}:
        raise ForbiddenError("an agent's token reaches that agent alone")
    if agent_id == ADMINISTRATION and permission not in READING:
        raise ForbiddenError(
            f"{ADMINISTRATION} is the record of administrative acts; the service alone writes it"
        )
    return Grant(
        tenant_id=principal.tenant_id,
        permission=permission,
        actor=principal.name,
        role=principal.role,
        agent_id=agent_id,
        key_id=principal.key_id,
    )
