"""LangChain's agents, really run, with a model that says what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException, tool

from app.client.adapters.langchain import GuardMiddleware
from app.client.gate import Gate
from app.client.guard import Guard
from tests.support.guarding import Stage

Call = tuple[str, dict[str, Any]]


class Model(GenericFakeChatModel):
    """Says what it was given."""

    def bind_tools(self, tools: Any, **_: Any) -> Model:  # noqa: ARG002  as the base class has it
        return self


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")


@pytest.fixture
def ran() -> list[str]:
    """What ran."""
    return []


@pytest.fixture
def tools(ran: list[str]) -> list[BaseTool]:
    """Tools of an agent."""

    @tool
    def search(query: str) -> str:
        """Finds."""
        ran.append(query)
        if query == "bad":
            raise LookupError("no index")
        if query == "wrong":
            raise ToolException("wrong query")
        return f"found {query}"

    @tool
    def send_email(to: str) -> str:
        """Sends."""
        ran.append(to)
        return "sent"

    @tool
    def rm(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "gone"

    search.handle_tool_error = True
    return [search, send_email, rm]


def _agent(guard: Gate, tools: list[BaseTool], *calls: Call, wait: bool = True) -> Any:
    told = [{"name": name, "args": args, "id": f"call-{number}"} for number, (name, args) in enumerate(calls)]
    says: Iterator[AIMessage] = iter(
        [AIMessage(content="let me see", tool_calls=told), AIMessage(content="done")]
    )
    return create_agent(Model(messages=says), tools, middleware=[GuardMiddleware(guard, wait=wait)])


Run = Callable[..., Any]

ASK = {"messages": [{"role": "user", "content": "hello"}]}


async def _sync(agent: Any) -> list[ToolMessage]:
    answer = await asyncio.to_thread(agent.invoke, ASK)
    return [message for message in answer["messages"] if isinstance(message, ToolMessage)]


async def _async(agent: Any) -> list[ToolMessage]:
    answer = await agent.ainvoke(ASK)
    return [message for message in answer["messages"] if isinstance(message, ToolMessage)]


@pytest.fixture(params=[_sync, _async], ids=["invoke", "ainvoke"])
def run(request: pytest.FixtureRequest) -> Run:
    """Either way of running an agent."""
    found: Run = request.param
    return found


async def test_an_allowed_tool_runs_once(
    run: Run, guard: Guard, tools: list[BaseTool], ran: list[str], stage: Stage
) -> None:
    [message] = await run(_agent(guard, tools, ("search", {"query": "rates"})))
    assert (message.content, message.status) == ("found rates", "success")
    assert ran == ["rates"]
    assert stage.asked() == [("search", {"query": "rates"})]
    assert stage.outcomes() == [("act-1", "success", "")]
    [asked] = stage.records("action_requested")
    assert asked["payload"]["thought_process"] == "let me see"


async def test_a_denied_tool_does_not_run_and_the_model_reads_why(
    run: Run, guard: Guard, tools: list[BaseTool], ran: list[str], stage: Stage
) -> None:
    [message] = await run(_agent(guard, tools, ("rm", {"path": "/"})))
    assert ran == []
    assert message.status == "error"
    assert message.tool_call_id == "call-0"
    assert "rm was not run: denied, tool_not_allowed" in message.content
    assert stage.outcomes() == []


async def test_it_does_not_run_when_the_service_is_away(
    run: Run, gone: Guard, tools: list[BaseTool], ran: list[str]
) -> None:
    [message] = await run(_agent(gone, tools, ("search", {"query": "rates"})))
    assert ran == []
    assert message.status == "error"
    assert "unavailable" in message.content


async def test_a_raising_tool_is_a_failure(
    run: Run, guard: Guard, tools: list[BaseTool], ran: list[str], stage: Stage
) -> None:
    with pytest.raises(LookupError):
        await run(_agent(guard, tools, ("search", {"query": "bad"})))
    assert ran == ["bad"]
    assert stage.outcomes() == [("act-1", "failure", "LookupError: no index")]


async def test_an_error_that_the_framework_caught_is_a_failure_too(
    run: Run, guard: Guard, tools: list[BaseTool], stage: Stage
) -> None:
    [message] = await run(_agent(guard, tools, ("search", {"query": "wrong"})))
    assert message.status == "error"
    assert stage.outcomes() == [("act-1", "failure", "wrong query")]


async def test_parallel_calls_are_each_asked_about(
    run: Run, guard: Guard, tools: list[BaseTool], ran: list[str], stage: Stage
) -> None:
    calls: list[Call] = [("search", {"query": str(number)}) for number in range(5)]
    messages = await run(_agent(guard, tools, *calls, ("rm", {"path": "/"})))
    assert sorted(ran) == ["0", "1", "2", "3", "4"]
    assert [message.status for message in messages] == ["success"] * 5 + ["error"]
    assert len(stage.outcomes()) == 5
    assert stage.spent == 5


async def test_an_approval_is_waited_for(
    run: Run, guard: Guard, tools: list[BaseTool], ran: list[str], stage: Stage
) -> None:
    with stage.approver():
        [message] = await run(_agent(guard, tools, ("send_email", {"to": "a"})))
    assert message.content == "sent"
    assert ran == ["a"]


async def test_unless_it_is_told_not_to_wait(
    run: Run, guard: Guard, tools: list[BaseTool], ran: list[str]
) -> None:
    [message] = await run(_agent(guard, tools, ("send_email", {"to": "a"}), wait=False))
    assert "waits for the approval" in message.content
    assert ran == []
