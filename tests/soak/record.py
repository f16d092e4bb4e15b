"""What callers were told is on record, and whether the table holds each of it once and nothing else.

Every request that records something carries a mark of its own. Its answer makes the mark an acknowledged one;
at the end the marks are read out of the signed payloads and compared.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

import psycopg

from tests.bench.spans import SPANS
from tests.soak.report import Verdict

_MARKS = {
    "ask": "SELECT trace_data->'input'->>'q', 1 FROM {trail} WHERE kind = 'action_requested'",
    "approve": "SELECT trace_data->>'note', 1 FROM {trail} WHERE kind = 'action_allowed'",
    "outcome": "SELECT trace_data->>'detail', 1 FROM {trail} WHERE kind = 'outcome'",
    "event": "SELECT trace_data->'data'->>'mark', 1 FROM {trail} WHERE kind = 'event'",
    "trace": "SELECT session_id::text, 1 FROM {trail} WHERE kind = 'trace' AND agent_id LIKE 'tracing-%'",
    "otlp": f"""
        SELECT node->'metadata'->'otel'->>'trace_id' AS mark,
               CASE WHEN count(*) = {SPANS} AND count(DISTINCT node->>'node_id') = {SPANS} THEN 1 ELSE 2 END
          FROM {{trail}}, jsonb_array_elements(trace_data->'trace_tree') AS node
         WHERE kind = 'trace' AND node->'metadata'->'otel' IS NOT NULL
         GROUP BY mark""",
}
"""Of each kind of request, the query that reads its marks, each with how often it is there."""


class Record:
    """The marks that were given out and those that were acknowledged."""

    def __init__(self) -> None:
        self._numbers = count()
        self._acknowledged: dict[str, list[str]] = {kind: [] for kind in _MARKS}

    def mark(self) -> str:
        """A new mark."""
        return f"m{next(self._numbers)}"

    def acknowledge(self, kind: str, mark: str) -> None:
        """Somebody was told that what carries this mark is on record."""
        self._acknowledged[kind].append(mark)

    def verdict(self, admin_url: str) -> Verdict:
        """Compares with the table; PostgreSQL is asked as a superuser."""
        lost = doubled = untold = total = 0
        with psycopg.connect(admin_url) as admin:
            for kind, told in self._acknowledged.items():
                found: Counter[str] = Counter()
                statement = _MARKS[kind].format(trail="trails.agent_audit_trails")
                for mark, times in admin.execute(statement.encode()):
                    if mark is not None:  # what no person approved has no note
                        found[mark] += times
                total += len(told)
                lost += len(set(told) - set(found))
                doubled += sum(times > 1 for times in found.values())
                untold += len(set(found) - set(told))
        seen = f"{total:,} acknowledged, {lost} lost, {doubled} doubled, {untold} that nobody was told of"
        return Verdict("records", not (lost or doubled or untold), f"each there once: {seen}")
