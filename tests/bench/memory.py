"""What one server process holds with 10,000 agents of 100 records each in memory, all of them used.

The process is a fresh one: it reads, verifies and folds each chain when its agent asks. Memory is what the
system says of the process: resident (RSS), and its share of what others map too (PSS).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench import chains, load
from tests.bench.cpu import memory
from tests.bench.form import Form
from tests.bench.guard import ALLOWED, BODY
from tests.bench.rows import Kind, Row, Side
from tests.bench.stage import OPERATOR_TOKEN, PROCESSES, analyze, service
from tests.support.postgres import Database

KEY = "memory"
AGENTS = (16, 10_000)
RECORDS = 100
CONNECTIONS = 8
MIB = 1024 * 1024
MOST_MIB, AIM_MIB = 600, 300


def rows(database: Database, form: Form) -> Iterator[Row]:
    """The memory row: one measurement, since one process grows once."""
    names = [f"agent-{number}" for number in range(form.pick(*AGENTS))]
    chains.fill(database, names, RECORDS)
    analyze(database)
    requests = [load.post(f"/v1/agents/{name}/actions", BODY, OPERATOR_TOKEN) for name in names]
    streams = [requests[first::CONNECTIONS] for first in range(CONNECTIONS)]
    with service(database) as port:
        empty = memory(PROCESSES[port])
        timed = load.drive(port, streams, len(names), expect=ALLOWED)
        full = memory(PROCESSES[port])
    each = (full.rss - empty.rss) / len(names) / 1024
    note = (
        f"PSS {full.pss / MIB:,.0f}, peak {full.peak / MIB:,.0f} MiB; {each:.1f} KiB an agent; "
        f"{timed.figure:,.0f} agents/s opened"
    )
    yield Row(
        KEY,
        f"RSS, {len(names):,} agents touched",
        "MiB",
        Side((full.rss / MIB,), generator=timed.generator),
        Side((empty.rss / MIB,)),
        "the server as it starts",
        Kind.LIMIT,
        MOST_MIB,
        AIM_MIB,
        note,
    )
