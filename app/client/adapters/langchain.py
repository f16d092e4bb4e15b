"""LangChain: a middleware for ``create_agent`` that asks the guard before each tool call.

::

    from langchain.agents import create_agent

    agent = create_agent(model, tools, middleware=[GuardMiddleware(guard)])

Put it last in the list: middleware that stands behind it could still change the arguments. Tools that the
model's provider runs itself never come by here; only the provider can withhold them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from app.client.decisions import Allowed, Denied, Pending, explain
from app.client.gate import Gate
from app.client.verdicts import Verdict, outcome_of_error

Answer = ToolMessage | Command[Any]


class GuardMiddleware(AgentMiddleware[Any, Any]):
    """Lets a tool run only when the guard allows the call; else the model reads why it did not.

    Args:
        guard: whom to ask.
        wait: whether a call that needs a person waits for the approval; else it is not run.
    """

    def __init__(self, guard: Gate, *, wait: bool = True) -> None:
        super().__init__()
        self._guard = guard
        self._wait = wait

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]
    ) -> Answer:
        """Asks, runs the tool when allowed, reports."""
        call = request.tool_call
        decision = self._guard.decide(
            call["name"], call["args"], thought_process=_thought(request), wait=self._wait
        )
        if not isinstance(decision, Allowed):
            return _refusal(request, decision)
        return self._guard.carry_out(decision, lambda: handler(request), judge=_judge, blame=_blame)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        """As ``wrap_tool_call``."""
        call = request.tool_call
        decision = await self._guard.adecide(
            call["name"], call["args"], thought_process=_thought(request), wait=self._wait
        )
        if not isinstance(decision, Allowed):
            return _refusal(request, decision)
        return await self._guard.acarry_out(decision, lambda: handler(request), judge=_judge, blame=_blame)


def _refusal(request: ToolCallRequest, decision: Denied | Pending) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(
        explain(call["name"], decision), tool_call_id=call["id"], name=call["name"], status="error"
    )


def _judge(answer: Answer) -> Verdict:
    """Errors that the tool's node caught came back as a message."""
    if isinstance(answer, ToolMessage) and answer.status == "error":
        return "failure", str(answer.text)
    return "success", ""


def _blame(error: BaseException) -> Verdict:
    """An interrupt of the graph is no failure; on resuming, the call is asked for anew."""
    if isinstance(error, GraphBubbleUp):
        return "unknown", f"interrupted: {type(error).__name__}"
    return outcome_of_error(error)


def _thought(request: ToolCallRequest) -> str | None:
    """What the model said beside this call."""
    state = request.state
    messages = state.get("messages", ()) if isinstance(state, dict) else ()
    last = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    if last is None or all(call["id"] != request.tool_call["id"] for call in last.tool_calls):
        return None
    return str(last.text) or None
