"""What the caller may do: principal and route become a ``Grant``.

Each route names its permission in its ``opt`` and asks for its grant first; nothing behind a route works
without one, neither reading a body nor the ledger. A Litestar guard would do the same, but copies its route
for every request, which costs more than all the rest of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from litestar.handlers import HTTPRouteHandler

from app.errors import BadRequestError, NotFoundError, StartupError, UnknownActionError
from app.http.auth import authenticate, authenticate_by_row
from app.http.exchange import Call
from app.principal import Grant, Permission, grant

PERMISSION: Final = "permission"
PUBLIC: Final = "public"

_AGENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ACTION_ID = re.compile(r"act-[1-9][0-9]{0,18}")


def check_agent_id(agent_id: object) -> str:
    """``agent_id`` when it is one.

    Raises:
        BadRequestError: it breaks the one pattern of agent ids (case G21).
    """
    if not isinstance(agent_id, str) or _AGENT_ID.fullmatch(agent_id) is None:
        raise BadRequestError("agent_id: must have 1 to 64 characters of A-Z a-z 0-9 _ -")
    return agent_id


def check_action_id(action_id: str) -> str:
    """``action_id`` when it can be one.

    Raises:
        UnknownActionError: no action is ever called so.
    """
    if _ACTION_ID.fullmatch(action_id) is None:
        raise UnknownActionError(action_id)
    return action_id


def granted(request: Call) -> Grant:
    """Authenticates the caller, checks the ids of the path, and grants what the route is for.

    Raises:
        UnauthorizedError: no valid token.
        BadRequestError: an agent id that breaks its pattern.
        ForbiddenError: the caller may not do this, or not to this agent.
        NotFoundError, UnknownActionError: an action id that cannot be one.
    """
    permission: Permission = request.route_handler.opt[PERMISSION]
    principal = authenticate(request.scope)
    ids = request.scope["path_params"]
    agent_id = check_agent_id(ids["agent_id"]) if "agent_id" in ids else None
    given = grant(principal, permission, agent_id)
    if "action_id" in ids and _ACTION_ID.fullmatch(ids["action_id"]) is None:
        raise _no_such_action(ids["action_id"], permission)
    return given


async def granted_by_row(request: Call) -> Grant:
    """What ``granted`` would grant, if the record of the tenant's administration verified.

    Raises:
        UnauthorizedError: no API key, or none by its row.
        ForbiddenError: the caller may not do this.
    """
    permission: Permission = request.route_handler.opt[PERMISSION]
    return grant(await authenticate_by_row(request.scope), permission, request.path_params["agent_id"])


def _no_such_action(action_id: str, permission: Permission) -> NotFoundError:
    # Lineage's guard server names the reading of an action differently from acting on one; clients see both.
    if permission is Permission.READ_ACTION:
        return NotFoundError("action not found")
    return UnknownActionError(action_id)


def grant_further(request: Call, permission: Permission, agent_id: str | None) -> Grant:
    """A grant that depends on the body: what it asks for, or whom it names.

    Raises:
        ForbiddenError: the caller may not do this.
    """
    return grant(authenticate(request.scope), permission, agent_id)


def require_permissions(handlers: Iterable[HTTPRouteHandler]) -> None:
    """Refuses a route table with a route that nobody thought about.

    Raises:
        StartupError: names the route.
    """
    for handler in handlers:
        known = isinstance(handler.opt.get(PERMISSION), Permission)
        if known is bool(handler.opt.get(PUBLIC)):
            raise StartupError(f"the route {sorted(handler.paths)} must name a permission or be public")
