"""What a span counts: tokens and cost, under the names that conventions have given them over the years."""

from __future__ import annotations

from typing import Final

from app.chain.strict import JsonObject
from app.trace.otlp.convention import MODELS, PROVIDERS

_TOKENS: Final = {
    "input": (
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.token_count.prompt",
        "llm.usage.prompt_tokens",
    ),
    "output": (
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.token_count.completion",
        "llm.usage.completion_tokens",
    ),
    "total": ("gen_ai.usage.total_tokens", "llm.token_count.total", "llm.usage.total_tokens"),
}
_COSTS: Final = ("gen_ai.usage.cost", "gen_ai.usage.total_cost", "llm.cost.total", "operation.cost")

_MOST_TOKENS: Final = 2**53

_ALL: Final = frozenset((*_COSTS, *MODELS, *PROVIDERS)).union(*_TOKENS.values())


def measures_nothing(attributes: JsonObject) -> bool:
    """Whether there is neither a model nor a count nor a cost in it, as in most spans: asked at once."""
    return _ALL.isdisjoint(attributes)


def tokens_of(attributes: JsonObject) -> JsonObject | None:
    """``{input, output, total}`` as far as they were sent; None when none was."""
    tokens: JsonObject = {}
    for name, keys in _TOKENS.items():
        for key in keys:
            count = attributes.get(key)
            if type(count) is int and 0 <= count <= _MOST_TOKENS:
                tokens[name] = count
                break
    return tokens or None


def cost_of(attributes: JsonObject) -> int | float | None:
    """The cost where one was sent, in the currency of the sender."""
    for key in _COSTS:
        cost = attributes.get(key)
        if type(cost) in (int, float):
            return cost  # type: ignore[return-value]  # a number, as was just asked
    return None
