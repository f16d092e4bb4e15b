"""Pydantic AI's agents, really run, with a model that says what a test tells it to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import FunctionToolset

from app.client import ActionDenied
from app.client.adapters.pydantic_ai import GuardCapability
from app.client.gate import Gate
from app.client.guard import Guard
from tests.support.guarding import Stage

Call = tuple[str, dict[str, Any]]


class Worker:
    """An agent with tools; what ran is in ``ran``."""

    def __init__(
        self, guard: Gate, *calls: Call, wait: bool = True, others: tuple[AbstractCapability[Any], ...] = ()
    ) -> None:
        self.ran: list[str] = []
        self._calls = list(calls)
        self._agent = Agent(
            FunctionModel(self._says),
            tools=[self.search, self.send_email],
            toolsets=[FunctionToolset([self.rm])],
            capabilities=[GuardCapability(guard, wait=wait), *others],
            retries=1,
        )

    def search(self, query: str) -> str:
        """Finds."""
        self.ran.append(query)
        if query == "bad":
            raise LookupError("no index")
        if query == "again":
            raise ModelRetry("say it in other words")
        return f"found {query}"

    async def send_email(self, to: str) -> str:
        """Sends."""
        self.ran.append(to)
        return "sent"

    def rm(self, path: str) -> str:
        """Removes."""
        self.ran.append(path)
        return "gone"

    async def run(self) -> list[ToolReturnPart]:
        """What the tools gave the model."""
        answer = await self._agent.run("hello")
        return [
            part
            for message in answer.all_messages()
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]

    def _says(self, messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse(parts=[TextPart("done")])
        calls = [ToolCallPart(name, args, f"call-{n}") for n, (name, args) in enumerate(self._calls)]
        return ModelResponse(parts=[TextPart("let me see"), *calls])


async def test_an_allowed_tool_runs_once(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, ("search", {"query": "rates"}))
    [part] = await worker.run()
    assert part.content == "found rates"
    assert worker.ran == ["rates"]
    assert stage.asked() == [("search", {"query": "rates"})]
    assert stage.outcomes() == [("act-1", "success", "")]
    [asked] = stage.records("action_requested")
    assert asked["payload"]["thought_process"] == "let me see"


async def test_a_denied_tool_does_not_run_and_the_model_reads_why(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, ("rm", {"path": "/"}))
    [part] = await worker.run()
    assert worker.ran == []
    assert part.outcome == "failed"
    assert "rm was not run: denied, tool_not_allowed" in str(part.content)
    assert stage.outcomes() == []


async def test_it_does_not_run_when_the_service_is_away(gone: Guard) -> None:
    worker = Worker(gone, ("search", {"query": "rates"}))
    [part] = await worker.run()
    assert worker.ran == []
    assert "unavailable" in str(part.content)


async def test_a_raising_tool_is_a_failure(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, ("search", {"query": "bad"}))
    with pytest.raises(LookupError):
        await worker.run()
    assert worker.ran == ["bad"]
    assert stage.outcomes() == [("act-1", "failure", "LookupError: no index")]


async def test_a_tool_that_asks_for_another_try_has_failed(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, ("search", {"query": "again"}))
    [part] = await worker.run()
    assert part.outcome == "retried"
    [(_, status, detail)] = stage.outcomes()
    assert status == "failure"
    assert "say it in other words" in detail


async def test_parallel_calls_are_each_asked_about(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, *[("search", {"query": str(n)}) for n in range(5)], ("rm", {"path": "/"}))
    assert len(await worker.run()) == 6
    assert sorted(worker.ran) == ["0", "1", "2", "3", "4"]
    assert len(stage.outcomes()) == 5
    assert stage.spent == 5


async def test_an_approval_is_waited_for(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, ("send_email", {"to": "a"}))
    with stage.approver():
        [part] = await worker.run()
    assert part.content == "sent"
    assert worker.ran == ["a"]


async def test_unless_it_is_told_not_to_wait(guard: Guard) -> None:
    worker = Worker(guard, ("send_email", {"to": "a"}), wait=False)
    [part] = await worker.run()
    assert "waits for the approval" in str(part.content)
    assert worker.ran == []


class Changing(AbstractCapability[Any]):
    """Another capability, which changes the arguments on their way, before or after the guard looks."""

    def __init__(self, hook: str) -> None:
        self._hook = hook

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        del ctx, call, tool_def
        return await handler({"query": "changed"} if self._hook == "wrap" else args)

    async def before_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any
    ) -> Any:
        del ctx, call, tool_def
        return {"query": "changed"} if self._hook == "before" else args


async def test_what_is_allowed_is_what_the_tool_gets(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, ("search", {"query": "rates"}), others=(Changing("wrap"),))
    await worker.run()
    assert worker.ran == ["changed"]
    assert stage.asked() == [("search", {"query": "changed"})]


async def test_arguments_that_change_after_the_answer_are_not_run(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, ("search", {"query": "rates"}), others=(Changing("before"),))
    [part] = await worker.run()
    assert worker.ran == []
    assert "not those that were allowed" in str(part.content)
    [(_, status, _)] = stage.outcomes()
    assert status == "failure"


@pytest.mark.parametrize("name", ["search", "rm"])
async def test_an_output_function_is_asked_for_like_a_tool(name: str, guard: Guard, stage: Stage) -> None:
    ran: list[str] = []

    def finish(query: str) -> str:
        ran.append(query)
        return f"did {query}"

    def says(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"query": "rates"})])

    finish.__name__ = name
    agent = Agent(FunctionModel(says), output_type=finish, capabilities=[GuardCapability(guard)])
    if name == "search":
        assert (await agent.run("hello")).output == "did rates"
        assert stage.outcomes() == [("act-1", "success", "")]
    else:
        with pytest.raises(ActionDenied, match="tool_not_allowed"):
            await agent.run("hello")
    assert ran == (["rates"] if name == "search" else [])
    assert [tool for tool, _ in stage.asked()] == [name]
