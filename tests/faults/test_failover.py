"""A primary is lost and its standby takes over: what was acknowledged is there, or the service tells.

With synchronous replication nothing that was acknowledged is lost. With asynchronous replication a tail may
be: a service that has seen it refuses to extend those chains, and goes on with the rest.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import httpx2
import pytest
from sqlalchemy import make_url

from tests.integration.http.client import Client, Reply
from tests.support.cluster import Cluster, Replica, running_cluster, until
from tests.support.load import Load, check_load
from tests.support.postgres import Database
from tests.support.proxy import Proxy
from tests.support.server import OPERATOR_TOKEN, ServerProcess

ENV = {"TRAILS_COMMAND_TIMEOUT_SECS": "1.5", "TRAILS_LOG_LEVEL": "warning"}


@pytest.fixture
def primary() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def standby(primary: Cluster) -> Iterator[Replica]:
    with Replica(primary) as replica:
        yield replica


def both(primary: Cluster, standby: Replica) -> str:
    """The service's URL that names both servers, as an administrator writes it."""
    url = make_url(primary.database.app_url)
    text = url.render_as_string(hide_password=False)
    here, there = f"127.0.0.1:{primary.port}", f"127.0.0.1:{standby.port}"
    assert here in text
    return text.replace(here, f"{here},{there}")


@pytest.mark.parametrize("commit", ["on", "remote_apply"])
async def test_a_synchronous_standby_takes_over_with_all_that_was_acknowledged(
    primary: Cluster, standby: Replica, start_server: Callable[..., ServerProcess], commit: str
) -> None:
    primary.execute(
        f"ALTER SYSTEM SET synchronous_standby_names = '{standby.name}'",
        f"ALTER SYSTEM SET synchronous_commit = '{commit}'",
        "SELECT pg_reload_conf()",
    )
    server = await asyncio.to_thread(start_server, database_url=both(primary, standby), env=ENV)
    load = Load([server.base_url], [f"{commit}-{n}" for n in range(3)])
    await asyncio.to_thread(load.create)
    async with load.running(callers=6):
        await load.until(60)
        await asyncio.to_thread(primary.end, signal.SIGKILL)
        await asyncio.to_thread(standby.promote)
        # The new primary has no standby of its own yet.
        await load.until(60)
    await asyncio.to_thread(check_load, load, server.base_url, standby.admin_url)


async def test_chains_whose_tail_was_lost_are_refused_and_the_others_go_on(
    primary: Cluster, standby: Replica, start_server: Callable[..., ServerProcess]
) -> None:
    server = await asyncio.to_thread(start_server, database_url=both(primary, standby), env=ENV)
    operator = Client(server.base_url, OPERATOR_TOKEN)
    for agent in ("behind", "read", "whole"):
        operator.create(agent, None)
        _note(operator, agent)
    [(sent,)] = primary.execute("SELECT pg_current_wal_lsn()::text")
    until(lambda: primary.execute(f"SELECT replay_lsn >= '{sent}' FROM pg_stat_replication") == [(True,)])
    os.kill(standby.sender(), signal.SIGSTOP)
    for agent in ("behind", "read"):
        _note(operator, agent)  # acknowledged, and never sent to the standby
    primary.end(signal.SIGKILL)
    standby.promote()
    until(lambda: httpx2.get(f"{server.base_url}/readyz", timeout=10).status_code == 200)

    _note(operator, "whole")
    for _ in range(2):
        refused = _post(operator, "behind")
        assert (refused.status, refused.json["code"]) == (503, "quarantined")
        assert "no longer in the table" in refused.json["error"]
    told = operator.get("/v1/agents/read")
    assert (told.status, told.json["code"]) == (503, "quarantined")
    listed = {entry["agent_id"]: entry["state"] for entry in operator.get("/v1/agents").json["agents"]}
    assert listed == {"behind": "quarantined", "read": "quarantined", "whole": "active"}
    assert operator.get("/v1/agents/whole").json["head"]["seq"] == 2


async def test_a_primary_that_dies_without_a_word_is_passed_by(
    route: tuple[Proxy, str], database: Database, start_server: Callable[..., ServerProcess]
) -> None:
    """Nothing is refused, nothing is reset: only time tells, and the second server gets its share of it."""
    proxy, url = route
    through, direct = make_url(url), make_url(database.app_url)
    first = f"127.0.0.1:{through.port}"
    named = url.replace(first, f"{first},{direct.host}:{direct.port}")
    server = await asyncio.to_thread(start_server, database_url=named, env=ENV)
    load = Load([server.base_url], ["mute-1", "mute-2"])
    await asyncio.to_thread(load.create)
    async with load.running(callers=4):
        await load.until(10)
        passed = proxy.executed
        proxy.silent = True
        await load.until(10)
    assert passed > 0
    await asyncio.to_thread(check_load, load, server.base_url, database.admin_url)


def _note(operator: Client, agent: str) -> None:
    until(lambda: _post(operator, agent).status == 200)


def _post(operator: Client, agent: str) -> Reply:
    return operator.post(f"/v1/agents/{agent}/events", {"type": "note", "data": 1})
