"""The documents that trails are made of here: trace trees of ten nodes and about 5.8 kB, no two alike."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

NODES = 10
TEXT_WORDS = 16
"""Words of one text: two or three texts a node give the size that the design measures with."""

_VOCABULARY = """
agent answer api ask balance before build call cancel check city code confirm cost customer data date
delay deny error escalate evidence field file find flight follow found give hold human id input invoice
item ledger limit list look mail match meeting model more name need next note number offer open order
passenger pay person plan policy price query read reason record refund report request reservation
result return review rule search send session status step sum support task ticket tool total trace
transfer update user value verify wait weather work write
"""
_WORDS = tuple(_VOCABULARY.split())
_TOOLS = ("search", "send_email", "read_file", "get_balance", "update_reservation", "query_database")


def tree(rng: random.Random, *, failing: bool = False) -> dict[str, Any]:
    """A run of one agent: a plan, model calls, tool calls (the last failed, if ``failing``), an answer."""
    nodes = [_node(rng, position) for position in range(NODES)]
    for node in nodes[1:]:
        node["parent_id"] = nodes[0]["node_id"]
    if failing:
        nodes[NODES - 2]["outputs"] = {
            "status": "failed",
            "error": {"message": _text(rng), "type": "timeout"},
        }
    return {"session_id": _uuid(rng), "total_nodes": NODES, "trace_tree": nodes}


def trees(rng: random.Random, count: int) -> list[str]:
    """``count`` trees as JSON text, one line each, as a client sends them."""
    return [json.dumps(tree(rng)) for _ in range(count)]


def _node(rng: random.Random, position: int) -> dict[str, Any]:
    is_call = position % 2 == 0 and 0 < position < NODES - 1
    kind = "PLANNING" if position == 0 else "TOOL_CALL" if is_call else "LLM_CALL"
    if position == NODES - 1:
        kind = "OUTPUT"
    return {
        "node_id": _uuid(rng),
        "parent_id": None,
        "node_type": kind,
        "name": rng.choice(_TOOLS) if is_call else kind.lower(),
        "inputs": {"q": _text(rng), "top": rng.randrange(1, 50)},
        "thought_process": None if is_call else _text(rng, TEXT_WORDS // 2),
        "outputs": {"status": "success", "value": _text(rng)} if is_call else {"value": _text(rng)},
        "metadata": {
            "timestamp": f"2026-09-{rng.randrange(1, 31):02}T08:27:{rng.randrange(60):02}.423031Z",
            "duration_ms": round(rng.random() * 900, 3),
            "model": "gpt-4o",
            "tokens": {"input": rng.randrange(2000), "output": rng.randrange(400)},
        },
    }


def _text(rng: random.Random, words: int = TEXT_WORDS) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
