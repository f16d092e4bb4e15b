"""The OpenAI Agents SDK's agents, really run, with a model that says what a test tells it to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import agents
import agents.tool
import pytest
from agents import Agent, RunConfig, Runner, WebSearchTool, function_tool
from agents.run_config import ToolExecutionConfig
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool import FunctionTool
from agents.tool_context import ToolContext

from app.client.adapters.openai_agents import guarded, guarded_tools
from app.client.adapters.openai_errors import check
from app.client.gate import Gate
from app.client.guard import Guard
from tests.support.guarding import Stage

Call = tuple[str, dict[str, Any]]

NO_TRACING = RunConfig(tracing_disabled=True)


class Worker:
    """An agent with tools; what ran is in ``ran``."""

    def __init__(self, guard: Gate, *, wait: bool = True, **search: Any) -> None:
        self.ran: list[str] = []

        @function_tool(**search)
        def search_(query: str) -> str:
            """Finds."""
            self.ran.append(query)
            if query == "bad":
                raise LookupError("no index")
            return f"found {query}"

        @function_tool
        async def send_email(to: str) -> str:
            """Sends."""
            self.ran.append(to)
            return "sent"

        @function_tool
        async def rm(path: str) -> str:
            """Removes."""
            self.ran.append(path)
            return "gone"

        search_.name = "search"
        self.search = search_
        self.tools = guarded_tools([search_, send_email, rm], guard, wait=wait)

    async def run(self, *calls: Call, config: RunConfig = NO_TRACING) -> list[str]:
        """What the tools gave the model."""
        said = [function_call(name, args, call_id=f"call-{n}") for n, (name, args) in enumerate(calls)]
        model = ScriptedModel([said, [assistant_message("done")]])
        agent = Agent(name="worker", tools=[*self.tools], model=model)
        result = await Runner.run(agent, "hello", run_config=config)
        return [
            str(item.output)  # type: ignore[union-attr]  # items of this type have it
            for item in result.new_items
            if item.type == "tool_call_output_item"
        ]


async def test_an_allowed_tool_runs_once(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard)
    assert await worker.run(("search", {"query": "rates"})) == ["found rates"]
    assert worker.ran == ["rates"]
    assert stage.asked() == [("search", {"query": "rates"})]
    assert stage.outcomes() == [("act-1", "success", "")]
    assert stage.spent == 1


async def test_a_denied_tool_does_not_run_and_the_model_reads_why(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard)
    [said] = await worker.run(("rm", {"path": "/"}))
    assert worker.ran == []
    assert "rm was not run: denied, tool_not_allowed" in said
    assert stage.outcomes() == []
    assert len(stage.asked()) == 1


async def test_it_does_not_run_when_the_service_is_away(gone: Guard) -> None:
    worker = Worker(gone)
    [said] = await worker.run(("search", {"query": "rates"}))
    assert worker.ran == []
    assert "unavailable" in said


async def test_an_error_that_the_sdk_turns_into_a_text_is_a_failure(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard)
    [said] = await worker.run(("search", {"query": "bad"}))
    assert "error" in said.lower()
    assert worker.ran == ["bad"]
    assert stage.outcomes() == [("act-1", "failure", "LookupError: no index")]


async def test_so_is_one_that_ends_the_run(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, failure_error_function=None)
    with pytest.raises(Exception, match="no index"):
        await worker.run(("search", {"query": "bad"}))
    assert stage.outcomes() == [("act-1", "failure", "LookupError: no index")]


async def test_a_tools_own_words_for_an_error_are_kept(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard, failure_error_function=lambda _, error: f"sorry: {error}")
    assert await worker.run(("search", {"query": "bad"})) == ["sorry: no index"]
    assert stage.outcomes() == [("act-1", "failure", "LookupError: no index")]


async def test_parallel_calls_are_each_asked_about(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard)
    calls: list[Call] = [("search", {"query": str(number)}) for number in range(5)]
    said = await worker.run(*calls, ("rm", {"path": "/"}))
    assert said[:5] == [f"found {number}" for number in range(5)]
    assert sorted(worker.ran) == ["0", "1", "2", "3", "4"]
    assert len(stage.outcomes()) == 5
    assert stage.spent == 5


async def test_an_approval_is_waited_for(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard)
    with stage.approver():
        assert await worker.run(("send_email", {"to": "a"})) == ["sent"]
    assert worker.ran == ["a"]


async def test_unless_it_is_told_not_to_wait(guard: Guard) -> None:
    worker = Worker(guard, wait=False)
    [said] = await worker.run(("send_email", {"to": "a"}))
    assert "waits for the approval" in said
    assert worker.ran == []


async def test_what_the_tool_cannot_take_is_a_failure(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard)
    await worker.run(("search", {"nothing": 1}))
    assert worker.ran == []
    [(_, status, _)] = stage.outcomes()
    assert status == "failure"


@pytest.mark.parametrize("early", [False, True])
async def test_an_approval_of_the_sdks_own_comes_first_and_charges_nothing(
    early: bool, guard: Guard, stage: Stage
) -> None:
    """With ``pre_approval_tool_input_guardrails`` the guardrails run twice."""
    worker = Worker(guard, needs_approval=True)
    execution = ToolExecutionConfig(pre_approval_tool_input_guardrails=early)
    config = RunConfig(tracing_disabled=True, tool_execution=execution)
    said = [function_call("search", {"query": "rates"}, call_id="call-0")]
    agent = Agent(
        name="worker", tools=[*worker.tools], model=ScriptedModel([said, [assistant_message("done")]])
    )
    held = await Runner.run(agent, "hello", run_config=config)
    assert stage.asked() == []
    state = held.to_state()
    state.approve(held.interruptions[0])
    await Runner.run(agent, state, run_config=config)
    assert worker.ran == ["rates"]
    assert stage.asked() == [("search", {"query": "rates"})]
    assert stage.outcomes() == [("act-1", "success", "")]


Way = Callable[[FunctionTool], FunctionTool]


@pytest.mark.parametrize("way", [lambda tool: tool, copy.copy], ids=["as it is", "copied"])
async def test_whoever_invokes_the_tool_past_the_guardrail_is_asked_too(
    way: Way, guard: Guard, stage: Stage
) -> None:
    worker = Worker(guard)
    made = {tool.name: way(tool) for tool in worker.tools if isinstance(tool, FunctionTool)}

    async def invoke(name: str, arguments: str) -> Any:
        context = ToolContext(None, tool_name=name, tool_call_id="call-0", tool_arguments=arguments)
        return await made[name].on_invoke_tool(context, arguments)

    assert "not run" in str(await invoke("rm", '{"path":"/"}'))
    assert await invoke("search", '{"query":"rates"}') == "found rates"
    assert worker.ran == ["rates"]
    assert stage.outcomes() == [("act-2", "success", "")]


async def test_the_tool_itself_stays_as_it_is(guard: Guard, stage: Stage) -> None:
    worker = Worker(guard)
    context = ToolContext(None, tool_name="search", tool_call_id="call-0", tool_arguments="")
    assert await worker.search.on_invoke_tool(context, '{"query":"rates"}') == "found rates"
    assert worker.search.tool_input_guardrails is None
    assert stage.asked() == []


def test_tools_that_do_not_run_here_are_refused(guard: Guard) -> None:
    with pytest.raises(TypeError, match="does not run here"):
        guarded(WebSearchTool(), guard)


def test_the_sdk_has_what_no_public_name_gives() -> None:
    """Fails when a release of the SDK changes it: then look for a public way first."""
    check(agents.tool)
    for name in (
        "set_function_tool_failure_error_function",
        "maybe_invoke_function_tool_failure_error_function",
    ):
        assert name not in agents.__all__, f"{name} is public now: import it from there"


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"set_function_tool_failure_error_function": lambda function_tool: function_tool},
    ],
    ids=["gone", "another signature"],
)
def test_another_sdk_is_refused_in_words(members: dict[str, Any]) -> None:
    other = ModuleType("agents.tool")
    vars(other).update(members)
    with pytest.raises(ImportError, match=r"openai-agents .* has no agents.tool.set_function_tool_failure"):
        check(other)
