"""What HTTP tells one tenant of another: every route, every role, its ids as those of nobody (case H14).

The matrix is made from the route table. It is gone through twice from the same state, once with the ids of
another tenant and once with ids that nobody has; the answers must be the same, word for word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

from app.http.routes import ROUTES
from app.principal import Role
from tests.integration.http.client import Client
from tests.integration.http.posting import event
from tests.isolation.conftest import Filled
from tests.isolation.matrix import ROLES, Request, Told, client_of, requests, told, work
from tests.isolation.world import COMMON, Ids, Tenant, World, served
from tests.support.pgbouncer import running_pooler
from tests.support.postgres import Database, Server, fresh_database
from tests.support.proxy import proxied

QUIET: Final[dict[str, Any]] = {"log_requests": False, "failures_per_peer": 0, "command_timeout_secs": 20.0}

LATE_BYTES: Final = 100
"""What the database may answer late, to a connection's return to the pool; a record has far more."""


@contextmanager
def copy(filled: Filled, postgres: Server) -> Iterator[Database]:
    """One more database with the world."""
    with fresh_database(postgres, filled.database.name) as found:
        yield found


def walked(url: str, world: World, asked: Ids, roles: tuple[Role | None, ...] = ROLES) -> list[Told]:
    """The answers to the whole matrix, by a process that keeps of the other tenant all that it may."""
    warm(url, world.theirs)
    answers = []
    for role in roles:
        client = client_of(url, world.mine, role)
        made = requests(world.mine.ids, asked)
        answers += [told(request, request.sent(client), asked) for request in made]
    return answers


def warm(url: str, tenant: Tenant) -> None:
    """Reads everything of a tenant, with its own key; without what would be put on record."""
    client = client_of(url, tenant, Role.OPERATOR)
    for request in requests(tenant.ids, tenant.ids):
        on_record = "/verify" in request.path or "/export" in request.path
        if request.method == "GET" and "everywhere" in request.what and not on_record:
            request.sent(client)


def holdings(database: Database, tenant: Tenant) -> dict[str, tuple[int, str]]:
    """Of every table with rows of tenants: how many are this one's, and a digest of them."""
    with psycopg.connect(database.admin_url) as connection:
        tables = connection.execute(
            "SELECT c.relname FROM pg_class c"
            "  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'"
            " WHERE c.relnamespace = 'trails'::regnamespace AND c.relkind IN ('r', 'p')"
        ).fetchall()
        return {
            table: connection.execute(
                "SELECT count(*), md5(string_agg(x::text, '' ORDER BY x::text))"
                f"  FROM trails.{table} AS x WHERE tenant_id = %s",
                (tenant.ids.tenant_id,),
            ).fetchone()  # type: ignore[misc]  # one row
            for (table,) in tables
        }


# --- the matrix ------------------------------------------------------------------------------------------


def test_h14_the_matrix_holds_every_route_and_every_way_to_name_something(world: World) -> None:
    made = list(requests(world.mine.ids, world.theirs.ids))
    named = {(request.method, request.what.split()[1]) for request in made}
    assert named == {(next(iter(h.http_methods)), path) for h in ROUTES for path in h.paths}
    for request in made:
        if "{" in request.what and "everywhere" in request.what:
            assert any(mark in request.path for mark in (*world.theirs.marks, "tenant-2")), request
    assert len(made) > 2 * len(ROUTES)


@pytest.mark.parametrize("through", ["directly", "pgbouncer"])
def test_h14_p15_another_tenants_ids_are_answered_as_those_of_nobody(
    filled: Filled, postgres: Server, through: str
) -> None:
    """Status, headers and body; nothing is written into the other tenant, and nothing of it is told."""
    world = filled.world
    answers = {}
    for asked in (world.theirs.ids, world.nobody):
        with copy(filled, postgres) as database:
            before = holdings(database, world.theirs)
            assert all(count for count, _ in before.values())
            answers[asked.slug] = _through(database, world, asked, through)
            assert holdings(database, world.theirs) == before
    theirs, nobodys = answers[world.theirs.ids.slug], answers[world.nobody.slug]
    assert len(theirs) == len(nobodys) > len(ROLES) * len(ROUTES)
    for one, other in zip(theirs, nobodys, strict=True):
        assert one == other
    assert {one.status for one in theirs} >= {200, 403, 404, 409}
    assert [one for one in theirs if one.status >= 500] == []


def _through(database: Database, world: World, asked: Ids, through: str) -> list[Told]:
    if through == "directly":
        with served(database.app_url, **QUIET) as running:
            return walked(running.url, world, asked)
    with (
        running_pooler(database) as pooler,
        served(pooler.app_url, pooler="transaction", **QUIET) as running,
    ):
        return walked(running.url, world, asked, (Role.AUDITOR, Role.OPERATOR))


async def test_h14_another_tenants_ids_cost_the_same_work(populated: Database, world: World) -> None:
    """What is refused takes as many statements, and as much from the database, as for nobody's ids."""
    async with proxied(populated.app_url) as (proxy, url):

        def compared() -> int:
            count = 0
            # One connection: on each, a statement is described the first time that it is used.
            with served(url, pool_size=1, **QUIET) as running:
                warm(running.url, world.theirs)
                for role in ROLES[1:]:
                    client = client_of(running.url, world.mine, role)
                    pairs = [requests(world.mine.ids, asked) for asked in (world.theirs.ids, world.nobody)]
                    for one, other in zip(*pairs, strict=True):
                        if one.path == other.path or not _refused(one, client):
                            continue
                        count += 1
                        costs = [work(proxy, request, client) for request in (one, other)]
                        assert costs[0][0] == costs[1][0], one.what
                        assert abs(costs[0][1] - costs[1][1]) < LATE_BYTES, one.what
            return count

        assert await asyncio.to_thread(compared) > 40


def _refused(request: Request, client: Client) -> bool:
    """Whether it changes nothing, so that it can be asked again."""
    return request.method == "GET" or request.sent(client).status in {403, 404}


# --- lists and counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.AUDITOR, Role.OPERATOR])
def test_h14_no_answer_to_a_tenant_holds_anything_of_another(
    shared: Database, world: World, role: Role
) -> None:
    """Every route that reads, with its own ids: its lists, counts, logs and trees are its own."""
    with served(shared.app_url, **QUIET) as running:
        client = client_of(running.url, world.mine, role)
        for request in requests(world.mine.ids, world.mine.ids):
            if request.method == "GET" and "everywhere" in request.what:
                reply = request.sent(client)
                text = reply.raw.decode() + str(reply.headers)
                assert not [mark for mark in world.theirs.marks if mark in text], request.what
        listed = client.get("/v1/agents").json["agents"]
        assert [agent["agent_id"] for agent in listed] == sorted(
            [
                COMMON,
                *(getattr(world.mine.ids, name) for name in ("agent_id", "observed", "ended", "spanned")),
            ]
        )
        log = client.get(f"/v1/agents/{COMMON}/log").json["records"]
        assert [record["payload"]["data"] for record in log if record["kind"] == "event"] == [
            {"of": "tenant-1"}
        ]
        administration = client.get("/v1/agents/_administration/log").raw
        assert b"tenant-1" in administration
        assert b"tenant-2" not in administration


# --- tokens ------------------------------------------------------------------------------------------------


def test_h14_no_token_can_be_turned_into_one_of_another_tenant(shared: Database, world: World) -> None:
    """Parts of one tenant's tokens with parts of another's are no token, as with parts that nobody has."""
    mine, theirs, nobody = world.mine, world.theirs, world.nobody
    with served(shared.app_url, **QUIET) as running:
        agent = client_of(running.url, mine, Role.OPERATOR).get(f"/v1/agents/{mine.ids.agent_id}/token")
        tokens = [agent.json["token"], mine.tokens["operator"]]
        for token in tokens:
            said = []
            for other in (theirs.ids, nobody):
                for forged in _forged(token, mine.ids, other):
                    assert forged != token
                    for path in ("/v1/agents", "/v1/public-key", f"/v1/agents/{other.agent_id}"):
                        reply = Client(running.url, forged).get(path)
                        assert reply.status == 401, forged
                        said.append({**reply.json, "request_id": ""})
            assert all(each == said[0] for each in said)


def _forged(token: str, mine: Ids, other: Ids) -> Iterator[str]:
    theirs = other.tenant_id.replace("-", "")
    yield token.replace(mine.tenant_id.replace("-", ""), theirs)
    head, *middle, tail = token.split(".")
    yield ".".join([head, other.agent_id if head.startswith("agt") else other.key_id, *middle[1:], tail])


# --- what is counted ---------------------------------------------------------------------------------------


def test_h14_what_one_tenant_is_shown_does_not_count_what_another_does(
    populated: Database, world: World
) -> None:
    """A hundred writes of another tenant between two of its own: action ids and positions go on by one."""
    with served(populated.app_url, **QUIET) as running:
        mine, theirs = (client_of(running.url, of, Role.OPERATOR) for of in (world.mine, world.theirs))
        path = f"/v1/agents/{world.mine.ids.agent_id}"

        def write() -> tuple[int, int, int]:
            asked = mine.post(f"{path}/actions", {"tool": "search"}).json["action_id"]
            posted = mine.post(f"/v1/agents/{COMMON}/events", event()).json["seq"]
            return int(asked.removeprefix("act-")), posted, mine.get(path).json["head"]["seq"]

        first = write()
        for _ in range(50):
            other = f"/v1/agents/{world.theirs.ids.agent_id}/actions"
            assert theirs.post(other, {"tool": "nobody lists it"}).status == 200
            assert theirs.post(f"/v1/agents/{COMMON}/events", event()).status == 200
        second = write()
    assert [b - a for a, b in zip(first, second, strict=True)] == [1, 1, 2]


def test_h14_no_sequence_is_shared(shared: Database) -> None:
    """Ids of keys, sessions, chains and records are random or hashes: the schema counts nothing."""
    with psycopg.connect(shared.admin_url) as connection:
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'trails'::regnamespace AND relkind = 'S'"
        ).fetchall()
    assert found == []
