"""MCP servers of the official SDK, really called by its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from app.client.adapters.mcp import GuardMiddleware
from app.client.gate import Gate
from app.client.guard import Guard
from tests.support.guarding import Stage

Call = tuple[str, dict[str, Any]]

AnyServer = MCPServer | Server[Any]
Make = Callable[[list[str], GuardMiddleware], AnyServer]


def _high(ran: list[str], guarding: GuardMiddleware) -> AnyServer:
    """A server of the comfortable kind."""
    server = MCPServer("files", middleware=[guarding])

    @server.tool()
    def search(query: str) -> str:
        """Finds."""
        ran.append(query)
        if query == "bad":
            raise LookupError("no index")
        return f"found {query}"

    @server.tool()
    async def send_email(to: str) -> str:
        """Sends."""
        ran.append(to)
        return "sent"

    @server.tool()
    async def rm(path: str) -> str:
        """Removes."""
        ran.append(path)
        return "gone"

    return server


def _low(ran: list[str], guarding: GuardMiddleware) -> AnyServer:
    """A server of the bare kind, which answers errors itself."""

    async def list_tools(_: ServerRequestContext[Any], __: Any) -> types.ListToolsResult:
        names = ("search", "send_email", "rm")
        return types.ListToolsResult(
            tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in names]
        )

    async def call_tool(
        _: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        [value] = (params.arguments or {"": ""}).values()
        ran.append(value)
        failed = value == "bad"
        said = {"search": f"found {value}", "send_email": "sent", "rm": "gone"}[params.name]
        content = [types.TextContent(type="text", text="no index" if failed else said)]
        return types.CallToolResult(content=list(content), is_error=failed)

    server: Server[Any] = Server("files", on_list_tools=list_tools, on_call_tool=call_tool)
    server.middleware.append(guarding)
    return server


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    """Which of the protocol's two ways of speaking."""
    return str(request.param)


@pytest.fixture(params=[_high, _low], ids=["MCPServer", "Server"])
def make(request: pytest.FixtureRequest) -> Make:
    """Either kind of server."""
    found: Make = request.param
    return found


@pytest.fixture
def ran() -> list[str]:
    """What ran."""
    return []


async def _call(server: AnyServer, *calls: Call, mode: str = "auto") -> list[tuple[bool, str]]:
    """Whether each call is an error to the client, and what it says. All at once."""
    async with Client(server, mode=mode) as client:
        results = await asyncio.gather(*(client.call_tool(name, arguments) for name, arguments in calls))
    return [(bool(result.is_error), str(getattr(result.content[0], "text", ""))) for result in results]


async def test_an_allowed_tool_runs_once(
    make: Make, mode: str, guard: Guard, stage: Stage, ran: list[str]
) -> None:
    server = make(ran, GuardMiddleware(guard))
    assert await _call(server, ("search", {"query": "rates"}), mode=mode) == [(False, "found rates")]
    assert ran == ["rates"]
    assert stage.asked() == [("search", {"query": "rates"})]
    assert stage.outcomes() == [("act-1", "success", "")]


async def test_a_denied_tool_does_not_run_and_the_client_reads_why(
    make: Make, mode: str, guard: Guard, stage: Stage, ran: list[str]
) -> None:
    server = make(ran, GuardMiddleware(guard))
    [(is_error, said)] = await _call(server, ("rm", {"path": "/"}), mode=mode)
    assert is_error
    assert "rm was not run: denied, tool_not_allowed" in said
    assert ran == []
    assert stage.outcomes() == []


async def test_it_does_not_run_when_the_service_is_away(make: Make, gone: Guard, ran: list[str]) -> None:
    server = make(ran, GuardMiddleware(gone))
    [(is_error, said)] = await _call(server, ("search", {"query": "rates"}))
    assert is_error
    assert "unavailable" in said
    assert ran == []


async def test_a_raising_tool_is_a_failure(make: Make, guard: Guard, stage: Stage, ran: list[str]) -> None:
    server = make(ran, GuardMiddleware(guard))
    [(is_error, _)] = await _call(server, ("search", {"query": "bad"}))
    assert is_error
    assert ran == ["bad"]
    [(action_id, status, detail)] = stage.outcomes()
    assert (action_id, status) == ("act-1", "failure")
    assert detail


async def test_parallel_calls_are_each_asked_about(
    make: Make, guard: Guard, stage: Stage, ran: list[str]
) -> None:
    server = make(ran, GuardMiddleware(guard))
    calls: list[Call] = [("search", {"query": str(number)}) for number in range(5)]
    results = await _call(server, *calls, ("rm", {"path": "/"}))
    assert results[:5] == [(False, f"found {number}") for number in range(5)]
    assert results[5][0]
    assert sorted(ran) == ["0", "1", "2", "3", "4"]
    assert len(stage.outcomes()) == 5


async def test_an_approval_is_waited_for(make: Make, guard: Guard, stage: Stage, ran: list[str]) -> None:
    server = make(ran, GuardMiddleware(guard))
    with stage.approver():
        assert await _call(server, ("send_email", {"to": "a"})) == [(False, "sent")]
    assert ran == ["a"]


async def test_unless_it_is_told_not_to_wait(make: Make, guard: Guard, ran: list[str]) -> None:
    server = make(ran, GuardMiddleware(guard, wait=False))
    [(is_error, said)] = await _call(server, ("send_email", {"to": "a"}))
    assert is_error
    assert "waits for the approval" in said
    assert ran == []


async def test_everything_else_passes(make: Make, gone: Gate, ran: list[str]) -> None:
    async with Client(make(ran, GuardMiddleware(gone))) as client:
        listed = await client.list_tools()
    assert {tool.name for tool in listed.tools} == {"search", "send_email", "rm"}
