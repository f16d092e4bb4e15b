"""MCP: a middleware for servers of the official SDK (2.x) that asks the guard before each ``tools/call``.

::

    server = MCPServer("files", middleware=[GuardMiddleware(guard)])  # or: Server(…).middleware.append(…)

Put it last in the list: middleware that stands behind it could still change the arguments. The guard's
agent is the server's: one guard, one agent, whoever calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError

from app.client.decisions import Allowed, explain
from app.client.gate import Gate
from app.client.verdicts import Verdict

TOOLS_CALL = "tools/call"


class GuardMiddleware:
    """Lets a tool run only when the guard allows the call; else the client gets a result that is an error.

    Args:
        guard: whom to ask.
        wait: whether a call that needs a person waits for the approval; else it is not run.
    """

    def __init__(self, guard: Gate, *, wait: bool = True) -> None:
        self._guard = guard
        self._wait = wait

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Everything but ``tools/call`` passes."""
        if ctx.method != TOOLS_CALL:
            return await call_next(ctx)
        name, arguments = _call(ctx.params)
        decision = await self._guard.adecide(name, arguments, wait=self._wait)
        if not isinstance(decision, Allowed):
            said = types.TextContent(type="text", text=explain(name, decision))
            return types.CallToolResult(content=[said], is_error=True)
        return await self._guard.acarry_out(decision, lambda: call_next(ctx), judge=_judge)


def _call(params: Mapping[str, Any] | None) -> tuple[str, Any]:
    """Name and arguments, which nobody has validated yet."""
    name = (params or {}).get("name")
    if not isinstance(name, str):
        raise MCPError(code=types.INVALID_PARAMS, message="Invalid request parameters: name must be a string")
    arguments = (params or {}).get("arguments")
    return name, {} if arguments is None else arguments


def _judge(result: HandlerResult) -> Verdict:
    """Errors of a tool come back as a result; so does its wish for more input, before it is called anew."""
    told = result.model_dump(by_alias=True, mode="json") if not isinstance(result, dict | None) else result
    told = told or {}
    if told.get("isError"):
        texts = [item.get("text", "") for item in told.get("content", ()) if isinstance(item, dict)]
        return "failure", "\n".join(filter(None, texts))
    finished = told.get("resultType")
    if finished is not None and finished != "complete":
        return "unknown", f"not finished: {finished}"
    return "success", ""
