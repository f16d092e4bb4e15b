"""A trail of 200,000 records for the rows that read it: trace trees sent over HTTP, 1 % with failures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from uuid import UUID

from app.chain.canonical import canonical
from tests.bench import agents, documents, load
from tests.bench.form import Form
from tests.bench.stage import OPERATOR_TOKEN, analyze, service
from tests.support.postgres import Database

RECORDS = (2_000, 200_000)
FAILING_EVERY = 100
"""1 % of the records have a failed call."""

_CHAINS = 4
_BATCH = 100
_TEMPLATES = 50
_IDS = "00000000-0000-4000-8000-"
"""Beginning of every id in a template; each record has another one."""


def fill(database: Database, form: Form) -> int:
    """Fills the default tenant's trail; returns how many records hold a tree."""
    records = form.pick(*RECORDS)
    with service(database) as port:
        names = [f"trail-{number}" for number in range(_CHAINS)]
        agents.create(port, names, None)
        load.drive(port, [_requests(name, records // _CHAINS) for name in names], records)
    analyze(database)
    return records


def _requests(name: str, records: int) -> Iterator[bytes]:
    rng = random.Random(name)  # noqa: S311  the same in every run
    sound, failing = ([_template(rng, failing=bad) for _ in range(_TEMPLATES)] for bad in (False, True))
    for first in range(0, records, _BATCH):
        lines = [
            _document(rng, sound if number % FAILING_EVERY else failing)
            for number in range(first, min(first + _BATCH, records))
        ]
        body = "\n".join(lines).encode()
        yield load.post(f"/v1/agents/{name}/traces", body, OPERATOR_TOKEN, "application/x-ndjson")


def _document(rng: random.Random, templates: list[str]) -> str:
    ids = str(UUID(int=rng.getrandbits(128), version=4))[: len(_IDS)]
    return rng.choice(templates).replace(_IDS, ids)


def _template(rng: random.Random, *, failing: bool) -> str:
    tree = documents.tree(rng, failing=failing)
    tree["session_id"] = f"{_IDS}{0:012x}"
    for number, node in enumerate(tree["trace_tree"], 1):
        node["node_id"] = f"{_IDS}{number:012x}"
        node["parent_id"] = None if number == 1 else f"{_IDS}{1:012x}"
    return canonical(tree)
