"""Pydantic AI: a capability that asks the guard before each tool call.

::

    agent = Agent(model, tools=[search], capabilities=[GuardCapability(guard)])

Function tools and those of toolsets come by here. Tools that the model's provider runs itself never do; only
the provider can withhold them. A denied call is a failed tool call to the model, which reads why.

Output functions come by here too, under the function's name (in a union of outputs the output tool's): the
model calls them like tools. A denied one ends the run with ``ActionDenied``. While output is streamed they
run, and are asked for, on each part.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.output import OutputContext
from pydantic_ai.tools import RunContext, ToolDefinition

from app.client.decisions import Allowed, explain, permitted
from app.client.gate import Gate
from app.client.verdicts import Verdict, outcome_of_error
from app.client.waiting import as_recorded

_asked: ContextVar[Any] = ContextVar("lineage_trails_asked")
"""The arguments that the guard allowed, in the context of one call."""


class GuardCapability(AbstractCapability[Any]):
    """Lets a tool run only when the guard allows the call.

    Args:
        guard: whom to ask.
        wait: whether a call that needs a person waits for the approval; else it is not run.
    """

    def __init__(self, guard: Gate, *, wait: bool = True) -> None:
        self._guard = guard
        self._wait = wait

    def get_ordering(self) -> CapabilityOrdering:
        """Next to the tool: what is allowed is what the tool gets."""
        return CapabilityOrdering(position="innermost")

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Any,  # noqa: ANN401  the framework's callable
    ) -> Any:  # noqa: ANN401  the tool's result
        """Asks, runs the tool when allowed, reports."""
        del tool_def
        decision = await self._guard.adecide(
            call.tool_name, args, thought_process=_thought(ctx, call), wait=self._wait
        )
        if not isinstance(decision, Allowed):
            raise ToolFailed(explain(call.tool_name, decision))
        token = _asked.set(as_recorded(args))
        try:
            return await self._guard.acarry_out(decision, lambda: handler(args), blame=_blame)
        finally:
            _asked.reset(token)

    async def wrap_output_process(
        self,
        ctx: RunContext[Any],
        *,
        output_context: OutputContext,
        output: Any,  # noqa: ANN401  what the model produced
        handler: Any,  # noqa: ANN401  the framework's callable
    ) -> Any:  # noqa: ANN401  the function's result
        """Asks before an output function runs, and reports; output without one passes."""
        if not output_context.has_function:
            return await handler(output)
        call = output_context.tool_call
        name = output_context.function_name or ("output" if call is None else call.tool_name)
        thought = None if call is None else _thought(ctx, call)
        decision = await self._guard.adecide(name, output, thought_process=thought, wait=self._wait)
        return await self._guard.acarry_out(permitted(name, decision), lambda: handler(output), blame=_blame)

    async def before_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any]
    ) -> dict[str, Any]:
        """The last look before the tool: another capability may have changed the arguments since."""
        del ctx, tool_def
        if _asked.get(None) != as_recorded(args):
            raise ToolFailed(f"{call.tool_name} was not run: its arguments are not those that were allowed")
        return args


def _blame(error: BaseException) -> Verdict:
    """A call that is put off has not failed; when it is taken up again, it is asked for anew."""
    if isinstance(error, CallDeferred | ApprovalRequired):
        return "unknown", f"put off: {type(error).__name__}"
    return outcome_of_error(error)


def _thought(ctx: RunContext[Any], call: ToolCallPart) -> str | None:
    """What the model said beside this call."""
    last = next((found for found in reversed(ctx.messages) if isinstance(found, ModelResponse)), None)
    ids = [part.tool_call_id for part in last.parts if isinstance(part, ToolCallPart)] if last else []
    if last is None or call.tool_call_id not in ids:
        return None
    said = [part.content for part in last.parts if isinstance(part, TextPart)]
    return "\n".join(said) or None
