"""What the caller may do: principal and route become a ``Grant``.

Each route names its permission in its ``opt``; one Litestar guard over all routes turns it into a grant
before the route runs. With a route that names none and is not marked public nothing starts.
"""

from __future__ import annotations

import re
from typing import Final

from litestar.enums import HttpMethod
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import Scope

from app.errors import BadRequestError, NotFoundError, StartupError, UnknownActionError
from app.http.auth import authenticate
from app.http.exchange import Connection, exchange_in
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


async def authorize(connection: Connection, handler: BaseRouteHandler) -> None:
    """The guard over every route: authenticates, checks the ids of the path, grants or refuses.

    Raises:
        UnauthorizedError, BadRequestError, ForbiddenError, NotFoundError, UnknownActionError.
    """
    permission = handler.opt.get(PERMISSION)
    if permission is not None:
        _let_in(connection.scope, permission)


def _let_in(scope: Scope, permission: Permission) -> None:
    principal = authenticate(scope)
    ids = scope["path_params"]
    agent_id = check_agent_id(ids["agent_id"]) if "agent_id" in ids else None
    exchange_in(scope).grant = grant(principal, permission, agent_id)
    if "action_id" in ids and _ACTION_ID.fullmatch(ids["action_id"]) is None:
        raise _no_such_action(ids["action_id"], permission)


def _no_such_action(action_id: str, permission: Permission) -> NotFoundError:
    # Lineage's guard server names the reading of an action differently from acting on one; clients see both.
    if permission is Permission.READ_ACTION:
        return NotFoundError("action not found")
    return UnknownActionError(action_id)


def granted(connection: Connection) -> Grant:
    """The grant that ``authorize`` made for this request."""
    given = exchange_in(connection.scope).grant
    if given is None:
        raise RuntimeError("the route has no permission in its opt")
    return given


def grant_further(connection: Connection, permission: Permission, agent_id: str) -> Grant:
    """A grant that depends on the body: what it asks for, or whom it names.

    Raises:
        ForbiddenError: the caller may not do this.
    """
    return grant(authenticate(connection.scope), permission, agent_id)


def require_permissions(handlers: list[HTTPRouteHandler]) -> None:
    """Refuses a route table with a route that nobody thought about.

    Raises:
        StartupError: names the route.
    """
    for handler in handlers:
        if handler.http_methods == {HttpMethod.OPTIONS} or handler.opt.get(PUBLIC):
            continue
        if not isinstance(handler.opt.get(PERMISSION), Permission):
            raise StartupError(f"the route {sorted(handler.paths)} neither names a permission nor is public")
