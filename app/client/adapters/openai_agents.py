"""OpenAI Agents SDK: function tools that ask the guard before they run.

::

    agent = Agent(name="support", tools=guarded_tools([search, send_email], guard))

The question is the last of the tool's input guardrails, so that waiting for a person does not count against
the tool's own time-out. The tool itself runs only on that answer; invoked in another way, it asks there.
Hosted tools (web search, code interpreter …) run at OpenAI and cannot be guarded here, so they are refused.
Tools of MCP servers are guarded at the server, see ``app.client.adapters.mcp``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from agents import FunctionTool, Tool
from agents.tool_context import ToolContext
from agents.tool_guardrails import ToolGuardrailFunctionOutput, ToolInputGuardrail, ToolInputGuardrailData

from app.client.adapters.openai_errors import observed, words_for
from app.client.decisions import Allowed, Decision, explain
from app.client.gate import Gate
from app.client.verdicts import Verdict, outcome_of_error, success


def guarded_tools(tools: Iterable[Tool], guard: Gate, *, wait: bool = True) -> list[Tool]:
    """The tools, each guarded.

    Raises:
        TypeError: one of them cannot be guarded, since it does not run here.
    """
    return [guarded(tool, guard, wait=wait) for tool in tools]


def guarded(tool: Tool, guard: Gate, *, wait: bool = True) -> FunctionTool:
    """A copy of the tool that runs only when the guard allows the call; else the model reads why it did not.

    Args:
        tool: a function tool; it stays as it is.
        guard: whom to ask.
        wait: whether a call that needs a person waits for the approval; else it is not run.

    Raises:
        TypeError: it is no function tool.
    """
    if not isinstance(tool, FunctionTool):
        raise TypeError(f"{getattr(tool, 'name', tool)!r} does not run here, so that nobody can guard it")
    call = _GuardedCall(tool, guard, wait=wait)
    made = copy.copy(tool)
    made.on_invoke_tool = call
    asking = ToolInputGuardrail[Any](guardrail_function=call.ask_first, name="lineage_trails_guard")
    made.tool_input_guardrails = [*(tool.tool_input_guardrails or ()), asking]
    return made


class _GuardedCall:
    """What a guarded tool invokes."""

    def __init__(self, tool: FunctionTool, guard: Gate, *, wait: bool) -> None:
        self._guard = guard
        self._wait = wait
        self._tool = tool
        self._decided: WeakKeyDictionary[ToolContext[Any], Decision] = WeakKeyDictionary()
        self._errors: WeakKeyDictionary[ToolContext[Any], Exception] = WeakKeyDictionary()
        self._observed = observed(tool, self._failed)

    async def ask_first(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        """The guardrail: rejects the call with the guard's reason."""
        context = data.context
        execution = None if context.run_config is None else context.run_config.tool_execution
        if execution is not None and execution.pre_approval_tool_input_guardrails:
            # Guardrails run twice then, and what is asked is charged: it is asked when the tool is invoked.
            return ToolGuardrailFunctionOutput.allow()
        decision = await self._decide(context, context.tool_arguments)
        if not isinstance(decision, Allowed):
            return ToolGuardrailFunctionOutput.reject_content(explain(self._tool.name, decision))
        self._decided[context] = decision
        return ToolGuardrailFunctionOutput.allow()

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:  # noqa: ANN401  the tool's result
        """Invokes the tool on the answer that was given for this call, once; without one it asks now."""
        decision = self._decided.pop(context, None) or await self._decide(context, arguments)
        if not isinstance(decision, Allowed):
            return explain(self._tool.name, decision)
        return await self._guard.acarry_out(
            decision,
            lambda: self._observed.on_invoke_tool(context, arguments),
            judge=lambda result: self._judge(context, result),
        )

    def prepare_arguments(self, arguments: str, tool_name: str) -> Any:  # noqa: ANN401  the SDK's own type
        """What the SDK asks an invoker to look at arguments before an approval of its own."""
        prepare = getattr(self._observed.on_invoke_tool, "prepare_arguments", None)
        return None if prepare is None else prepare(arguments, tool_name)

    async def _decide(self, context: ToolContext[Any], arguments: str) -> Decision:
        return await self._guard.adecide(context.tool_name, _parsed(arguments), wait=self._wait)

    async def _failed(self, context: Any, error: Exception) -> str:  # noqa: ANN401  as the SDK declares it
        """Notes the error that the SDK turns into a text for the model, and lets it do so."""
        self._errors[context] = error
        text = await words_for(self._tool, context, error)
        if text is None:
            raise error
        return text

    def _judge(self, context: ToolContext[Any], result: object) -> Verdict:
        error = self._errors.pop(context, None)
        return success(result) if error is None else outcome_of_error(error)


def _parsed(arguments: str) -> Any:  # noqa: ANN401  any JSON
    """The arguments as the model gave them; what is no JSON stays a text, and the tool will not take it."""
    try:
        return json.loads(arguments) if arguments else {}
    except ValueError:
        return arguments
