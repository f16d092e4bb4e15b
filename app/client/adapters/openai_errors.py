"""Errors of tools in the OpenAI Agents SDK, which turns them into texts for the model before others see them.

The SDK has no public way to learn that a tool's error became such a text: its hooks, output guardrails and
results all get the text alone. So two functions of ``agents.tool`` are used that its documentation does not
name. This is the one place that knows them; a release of the SDK that changes them is refused on import.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any, Final

import agents.tool
from agents import FunctionTool

_NEEDED: Final = {
    "set_function_tool_failure_error_function": {"function_tool", "failure_error_function"},
    "maybe_invoke_function_tool_failure_error_function": {"function_tool", "context", "error"},
}
"""The functions, and the parameters by which they are called."""


def check(module: ModuleType) -> None:
    """Looks whether the SDK has what is needed.

    Raises:
        ImportError: it has not; says which release does.
    """
    for name, parameters in _NEEDED.items():
        function = getattr(module, name, None)
        if function is None or not parameters <= set(inspect.signature(function).parameters):
            raise ImportError(
                f"openai-agents {version('openai-agents')} has no {module.__name__}.{name}"
                f"({', '.join(sorted(parameters))}), by which a failed tool is told from one that succeeded; "
                "use openai-agents 0.24, or another release of lineage-trails"
            )


check(agents.tool)


def observed(tool: FunctionTool, failed: Callable[[Any, Exception], Awaitable[str]]) -> FunctionTool:
    """A copy of the tool whose errors come to ``failed``, which says what the model reads or raises."""
    return agents.tool.set_function_tool_failure_error_function(copy.copy(tool), failed)


async def words_for(tool: FunctionTool, context: Any, error: Exception) -> str | None:  # noqa: ANN401  the SDK's
    """What the tool itself would tell the model of the error; None when it would raise it."""
    return await agents.tool.maybe_invoke_function_tool_failure_error_function(
        function_tool=tool, context=context, error=error
    )
