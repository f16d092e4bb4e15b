"""Guarded requests (two signed records each, durable) against one plain INSERT of the same JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.bench import agents, load
from tests.bench.cpu import Meter
from tests.bench.form import Form
from tests.bench.rows import Row, Timed, interleaved
from tests.bench.stage import OPERATOR_TOKEN, PROCESSES, served, service
from tests.support.postgres import Database

KEY = "guard"
AGENTS = 64
TURNS = (2, 40)
SINGLE_TURNS = (20, 600)
ROUNDS = (1, 7)
BODY = json.dumps({"tool": "search", "input": {"q": "refund policy", "top": 5}, "cost": 2}).encode()
POLICY = {"budget": 10**15, "scar_limit": 10, "tools": {"search": {"cost": 1}}}
ALLOWED = b'"decision":"allowed"'


def rows(database: Database, form: Form) -> Iterator[Row]:
    """Both guard rows: 64 agents at once, and one agent's requests one after another."""
    floor_env = {"TRAILS_BENCH_FLOOR_URL": database.admin_url}
    with service(database) as ours, served("tests.bench.floor:app", floor_env, "/") as floor:
        names = [f"bench-{number}" for number in range(AGENTS)]
        agents.create(ours, names, POLICY)
        many = [load.post(f"/v1/agents/{name}/actions", BODY, OPERATOR_TOKEN) for name in names]
        bench = _Bench(database, ours, floor, form)
        yield bench.row("guard, 64 agents at once", many, form.pick(*TURNS), bound=0.9, aim=1.3)
        yield bench.row("guard, one after another", many[:1], form.pick(*SINGLE_TURNS), bound=0.6, aim=0.9)


class _Bench:
    """Both servers of the rows."""

    def __init__(self, database: Database, ours: int, floor: int, form: Form) -> None:
        self._url = database.admin_url
        self._ours = ours
        self._floor = floor
        self._rounds = form.pick(*ROUNDS)

    def row(self, name: str, requests: list[bytes], turns: int, *, bound: float, aim: float) -> Row:
        def measure(port: int) -> Timed:
            return load.rate(port, requests, turns, expect=ALLOWED)

        measure(self._ours), measure(self._floor)  # warm both up
        ours, floor = interleaved(
            lambda: measure(self._ours),
            lambda: measure(self._floor),
            self._rounds,
            units=len(requests) * turns,
            meters=(Meter(PROCESSES[self._ours], self._url), Meter(PROCESSES[self._floor], self._url)),
        )
        return Row(
            KEY, name, "req/s", ours, floor, "plain INSERT a request, same server", bound=bound, aim=aim
        )
