"""What of a client's work is on record: read from the table itself, past the service."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.support.postgres import Database

_TRACES = (
    "SELECT trace_data FROM trails.agent_audit_trails WHERE kind = 'trace' AND agent_id = %s ORDER BY seq"
)


def fragments(database: Database, agent: str) -> list[dict[str, Any]]:
    """The trace fragments of an agent, in the order of the record."""
    with psycopg.connect(database.admin_url) as connection:
        return [row[0] for row in connection.execute(_TRACES, (agent,))]


def recorded(database: Database, agent: str) -> list[dict[str, Any]]:
    """The nodes of an agent, in the order of the record, each with its ``session_id``."""
    return [
        {**node, "session_id": fragment["session_id"]}
        for fragment in fragments(database, agent)
        for node in fragment["trace_tree"]
    ]


def recorded_names(database: Database, agent: str) -> list[str]:
    """The names of these nodes."""
    return [node["name"] for node in recorded(database, agent)]
