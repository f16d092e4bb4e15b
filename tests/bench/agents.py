"""Agents for the rows: made over HTTP, several at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench import load
from tests.bench.stage import OPERATOR_TOKEN

CONNECTIONS = 4


def create(port: int, names: Sequence[str], policy: Mapping[str, Any] | None) -> None:
    """Creates agents with a policy, or with None observed ones."""
    requests = [
        load.post("/v1/agents", json.dumps({"agent_id": name, "policy": policy}).encode(), OPERATOR_TOKEN)
        for name in names
    ]
    load.drive(port, [requests[first::CONNECTIONS] for first in range(CONNECTIONS)], len(names))
