"""Two and four server processes race on the same agents (cases C16, G11): one order, exact budgets."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.integration.http.client import Client
from tests.support.aftermath import POLICY, Request, Work, ask
from tests.support.faults import FULL, rounds
from tests.support.postgres import Database
from tests.support.server import StartServer

CLIENTS = 6
TURNS = rounds(8, 50)
COST = 2

_CHAINS = """
SELECT count(*), max(seq) + 1, count(DISTINCT prev_hash) FROM trails.agent_audit_trails
 GROUP BY tenant_id, log_uuid
"""


@pytest.mark.parametrize("processes", [2, 4] if FULL else [2])
def test_c16_g11_all_are_served_in_one_order_and_no_budget_is_overspent(
    processes: int, database: Database, start_server: StartServer
) -> None:
    servers = [start_server() for _ in range(processes)]
    clients = [Client(server.base_url, server.operator_token) for server in servers]
    turn = itertools.cycle(clients)
    work = Work(database.admin_url, lambda: next(turn))
    budget = CLIENTS * TURNS * COST // 2
    work.client().create("hot", {**POLICY, "budget": budget})
    spread = [f"agent-{number}" for number in range(3)]
    for agent in spread:
        work.client().create(agent, POLICY)

    def client(number: int) -> list[Request]:
        """Half of them ask the one agent, the others go round the three; each has one server."""
        own = clients[number % processes]
        made = []
        for step in range(TURNS):
            agent = "hot" if number < CLIENTS else spread[(number + step) % len(spread)]
            request = ask(agent)
            request.answer = request.send(own)
            assert request.answer is not None, "told to try later"
            made.append(request)
        return made

    mixed = work.prepare(agents=processes)
    with ThreadPoolExecutor(2 * CLIENTS + 1) as threads:
        sending = threads.submit(work.send, mixed)
        made = list(threads.map(client, range(2 * CLIENTS)))
        sending.result()
    work.requests += [request for requests in made for request in requests]
    assert work.unanswered == 0
    for each in clients:
        status = each.get("/v1/agents/hot").json
        assert (status["spent"], status["remaining"]) == (budget, 0)
    with psycopg.connect(database.admin_url) as connection:
        for records, length, links in connection.execute(_CHAINS):
            assert records == length == links
    work.check()
