"""What holds for each framework alike: the model's words after a denial, and that nothing runs unasked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from agents import Agent as OpenAIAgent
from agents import RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from mcp.client import Client
from mcp.server import MCPServer
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from app.client.adapters.langchain import GuardMiddleware as LangChainGuard
from app.client.adapters.mcp import GuardMiddleware as McpGuard
from app.client.adapters.openai_agents import guarded_tools
from app.client.adapters.pydantic_ai import GuardCapability
from app.client.backend import Outcome, Refusal, Standing
from app.client.decisions import ALREADY_CLAIMED, UNAVAILABLE, Allowed, Decision, Denied, Pending, explain
from app.client.gate import Gate
from app.client.guard import Guard
from app.client.worker import Worker
from tests.support.scripted import Reply, scripted

Run = Callable[[Gate, list[str]], Awaitable[str]]
"""Lets a model call ``search`` once, with the query ``rates``; what the model got for it."""


async def openai_agents(guard: Gate, ran: list[str]) -> str:
    @function_tool
    def search(query: str) -> str:
        """Finds."""
        ran.append(query)
        return f"found {query}"

    said = [function_call("search", {"query": "rates"}, call_id="call-0")]
    model = ScriptedModel([said, [assistant_message("done")]])
    agent = OpenAIAgent(name="worker", tools=guarded_tools([search], guard), model=model)
    result = await Runner.run(agent, "hello", run_config=RunConfig(tracing_disabled=True))
    [text] = [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
    return text


class _Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> _Model:  # noqa: ARG002  as the base class has it
        return self


async def langchain(guard: Gate, ran: list[str]) -> str:
    @langchain_tool
    def search(query: str) -> str:
        """Finds."""
        ran.append(query)
        return f"found {query}"

    call = {"name": "search", "args": {"query": "rates"}, "id": "call-0"}
    says = [AIMessage(content="", tool_calls=[call]), AIMessage(content="done")]
    agent: Any = create_agent(_Model(messages=iter(says)), [search], middleware=[LangChainGuard(guard)])
    answer = await agent.ainvoke({"messages": [("user", "hello")]})
    [text] = [str(found.text) for found in answer["messages"] if isinstance(found, ToolMessage)]
    return text


async def pydantic_ai(guard: Gate, ran: list[str]) -> str:
    def search(query: str) -> str:
        """Finds."""
        ran.append(query)
        return f"found {query}"

    def says(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("search", {"query": "rates"})])

    agent = PydanticAgent(FunctionModel(says), tools=[search], capabilities=[GuardCapability(guard)])
    answer = await agent.run("hello")
    requests = [found for found in answer.all_messages() if isinstance(found, ModelRequest)]
    parts = [part for found in requests for part in found.parts]
    [text] = [str(part.content) for part in parts if part.part_kind == "tool-return"]
    return text


async def mcp(guard: Gate, ran: list[str]) -> str:
    server = MCPServer("files", middleware=[McpGuard(guard)])

    @server.tool()
    def search(query: str) -> str:
        """Finds."""
        ran.append(query)
        return f"found {query}"

    async with Client(server) as client:
        result = await client.call_tool("search", {"query": "rates"})
        return "".join(getattr(part, "text", "") for part in result.content)


ADAPTERS: list[Run] = [openai_agents, langchain, pydantic_ai, mcp]
every_adapter = pytest.mark.parametrize("run", ADAPTERS, ids=lambda run: run.__name__)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")


class Ledger:
    """A guard that decides as a test says. An error is raised; ``held`` holds the answer back."""

    keeps = False

    def __init__(self, decision: Decision | Exception) -> None:
        self.decision = decision
        self.asked = threading.Event()
        self.held: threading.Event | None = None
        self.reported: list[Outcome] = []

    async def ask(self, body: bytes, key: str) -> Decision:
        del body, key
        self.asked.set()
        if self.held is not None:
            await asyncio.to_thread(self.held.wait, 20)
        if isinstance(self.decision, Exception):
            raise self.decision
        return self.decision

    async def standing(self, action_id: str) -> Standing:
        return Standing(action_id, "pending_approval", 1)

    async def claim(self, action_id: str, body: bytes, key: str) -> Allowed:
        raise AssertionError((action_id, body, key))

    async def report(self, outcome: Outcome) -> None:
        self.reported.append(outcome)

    async def log_uuid(self) -> UUID:
        raise Refusal.unavailable("not here")

    def how_to_approve(self, action_id: str) -> str:
        return action_id

    def keep(self, outcome: Outcome) -> bool:
        del outcome
        return False

    async def close(self) -> None:
        """Nothing is open."""


Make = Callable[..., tuple[Ledger, Gate]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes ledgers that decide as told, and their guards; closed at the end."""
    gates: list[Gate] = []

    def made(decision: Decision | Exception, **options: Any) -> tuple[Ledger, Gate]:
        ledger = Ledger(decision)

        async def start() -> Ledger:
            return ledger

        gates.append(Gate(Worker(start, Ledger.close, "ledger"), **options))  # type: ignore[arg-type]  # a backend
        return ledger, gates[-1]

    yield made
    for gate in gates:
        gate.close()


DENIALS = [
    Denied("act-1", {"code": "tool_not_allowed", "tool": "search"}),
    Denied("act-1", {"code": "rate_limited", "max_actions": 1, "window_secs": 60}, 12.5),
    Denied("act-1", {"code": "insufficient_budget", "cost": 5, "remaining": 2}),
    Denied("act-1", {"code": "rejected", "by": "operator", "reason": "wrong address"}),
    Denied("act-1", {"code": "terminated", "reason": "budget exhausted"}),
    Denied("act-1", {"code": ALREADY_CLAIMED, "by": "worker"}),
    Denied(None, {"code": UNAVAILABLE, "error": "away"}),
    Denied(None, {"code": "a_word_of_another_time"}),
]


@every_adapter
@pytest.mark.parametrize("denied", DENIALS, ids=lambda denied: denied.code)
async def test_the_model_reads_the_same_words_in_each(run: Run, denied: Denied, make: Make) -> None:
    ran: list[str] = []
    _, gate = make(denied)
    said = await run(gate, ran)
    assert said == explain("search", denied)
    assert denied.code in said
    assert "asking again" in said.lower()
    assert ran == []


@every_adapter
async def test_an_allowed_tool_runs(run: Run, make: Make) -> None:
    """So that what is seen below is the guard's doing."""
    ran: list[str] = []
    ledger, gate = make(Allowed("act-1", 1, 1))
    assert await run(gate, ran) == "found rates"
    assert ran == ["rates"]
    assert [outcome.status for outcome in ledger.reported] == ["success"]


@every_adapter
async def test_nobody_decides_in_time(run: Run, make: Make) -> None:
    ran: list[str] = []
    _, gate = make(Pending("act-1"), approval_timeout=0.01)
    said = await run(gate, ran)
    assert said == explain("search", Pending("act-1"))
    assert ran == []


@every_adapter
async def test_an_error_inside_the_guard_runs_nothing(run: Run, make: Make) -> None:
    ran: list[str] = []
    _, gate = make(RuntimeError("a fault of ours"))
    with suppress(Exception):  # what a framework makes of it differs
        assert "found" not in await run(gate, ran)
    assert ran == []


@every_adapter
async def test_the_service_is_killed_in_the_middle_of_a_check(run: Run, tmp_path: Any) -> None:
    ran: list[str] = []
    with scripted() as answering:
        answering.script = [Reply(None)] * 50
        token = f"agt_{'0' * 32}.worker.{'0' * 64}"
        with Guard(answering.url, token, spool=tmp_path, attempts=2) as guard:
            said = await run(guard, ran)
        assert len(answering.got) == 2
    assert "unavailable" in said
    assert ran == []


@every_adapter
async def test_no_answer_in_time(run: Run, make: Make) -> None:
    ran: list[str] = []
    ledger, gate = make(Allowed("act-1", 1, 1), timeout=0.05)
    ledger.held = threading.Event()
    said = await run(gate, ran)
    assert "unavailable" in said
    ledger.held.set()
    gate.close()
    assert ran == []
    assert [outcome.status for outcome in ledger.reported] == ["unknown"]


@every_adapter
async def test_a_run_that_is_cancelled_while_it_asks_runs_nothing(run: Run, make: Make) -> None:
    ran: list[str] = []
    ledger, gate = make(Allowed("act-1", 1, 1))
    ledger.held = threading.Event()
    running = asyncio.ensure_future(run(gate, ran))
    await asyncio.to_thread(ledger.asked.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ledger.held.set()
    await asyncio.to_thread(gate.close)
    assert ran == []
    assert [outcome.status for outcome in ledger.reported] == ["unknown"], "it was allowed, and given up"
