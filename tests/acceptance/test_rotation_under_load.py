"""A tenant's signing key is rotated three times while two server processes are busy with it and another one.

Guard requests with their outcomes, traces, events and spans by OTLP arrive at both processes all the time.
No answer is another than without a rotation; what was acknowledged is on record once; everything verifies
before, meanwhile and afterwards, exported chains by the guides' own verifier and the first public key; and
of each chain a retired key signs nothing after the record that hands it over.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg
import httpx2
import msgspec

from tests.support.cli import run_trails, verify
from tests.support.faults import rounds
from tests.support.pages import noted
from tests.support.server import MASTER_KEY, ServerProcess, service_environment
from tests.support.spans import Sent, protobuf

TENANT: Final = "acme"
ROTATIONS: Final = ("--lazily", "--at-once", "--lazily")[: rounds(2, 3)]
MOST_ROUNDS: Final = 1_500
"""Of one client and rotation: each chain has its new key long before."""

WRITTEN: Final = frozenset({"asks", "traces", "tells", "svc"})
"""The agents that are written to all the time; the last by OTLP, under the name of its service."""

PAUSE_SECS: Final = 0.1
"""Between two rounds of a client: what is looked at is the rotation, not how much there may be at once."""

PATIENCE: Final = 5
BUSY: Final = "other requests on this agent wait for the database"

POLICY: Final = {"budget": 2**40, "scar_limit": 1_000, "tools": {"search": {"cost": 1}}}
VERIFIER: Final = Path(__file__).parents[1] / "verifiers" / "verify.mjs"

_LAST_KEYS: Final = """
SELECT (SELECT r.key_id FROM trails.agent_audit_trails r
        WHERE (r.tenant_id, r.log_uuid) = (a.tenant_id, a.log_uuid) ORDER BY r.seq DESC LIMIT 1) AS key_id
FROM trails.agents a JOIN trails.tenants t USING (tenant_id)
WHERE t.slug = $1 AND a.agent_id = ANY ($2)
"""
_RECORDS: Final = """
SELECT t.slug, r.agent_id, r.seq, r.kind, r.key_id, r.trace_data
FROM trails.agent_audit_trails r JOIN trails.tenants t USING (tenant_id)
ORDER BY t.slug, r.agent_id, r.seq
"""


class Load:
    """Clients of one tenant that go on until they are stopped, and what they were promised."""

    def __init__(self, slug: str, token: str, servers: Iterable[ServerProcess]) -> None:
        self.slug = slug
        self.headers = {"Authorization": f"Bearer {token}"}
        self.acknowledged: set[str] = set()
        self.going = True
        self._servers = [server.base_url for server in servers]
        self._numbers = itertools.count()

    async def make_agents(self) -> None:
        """The agents that are written to: one by each kind of client, and all by two."""
        async with self._client(0) as http:
            for agent in sorted(WRITTEN - {"svc"}):
                await _sound(http, "POST", "/v1/agents", json={"agent_id": agent, "policy": POLICY})

    def clients(self) -> list[Awaitable[int]]:
        """Two of each kind, one at each process, and one that verifies."""
        kinds = (self._ask, self._trace, self._tell, self._export)
        return [self._run(kind, place) for kind in kinds for place in (0, 1)] + [self._run(self._verify, 1)]

    async def _run(self, kind: Callable[[httpx2.AsyncClient, str], Awaitable[None]], place: int) -> int:
        async with self._client(place) as http:
            for done in range(MOST_ROUNDS):
                if not self.going:
                    return done
                await kind(http, f"{self.slug}-{next(self._numbers)}")
                await asyncio.sleep(PAUSE_SECS)
        raise AssertionError(f"{MOST_ROUNDS} rounds, and a chain still has its old key")

    @asynccontextmanager
    async def _client(self, place: int) -> AsyncIterator[httpx2.AsyncClient]:
        url = self._servers[place % len(self._servers)]
        async with httpx2.AsyncClient(base_url=url, headers=self.headers, timeout=60) as http:
            yield http

    async def _ask(self, http: httpx2.AsyncClient, name: str) -> None:
        asked = {"tool": "search", "input": name}
        told = (await _sound(http, "POST", "/v1/agents/asks/actions", json=asked)).json()
        assert told["decision"] == "allowed", told
        self.acknowledged.add(f"asked {name}")
        path = f"/v1/agents/asks/actions/{told['action_id']}/outcome"
        await _sound(http, "POST", path, json={"status": "success", "detail": name})
        self.acknowledged.add(f"ended {name}")

    async def _trace(self, http: httpx2.AsyncClient, name: str) -> None:
        node = {"node_id": str(uuid4()), "node_type": "PLANNING", "name": name}
        body = {"session_id": str(uuid4()), "total_nodes": 1, "trace_tree": [node]}
        await _sound(http, "POST", "/v1/agents/traces/traces", json=body)
        self.acknowledged.add(f"traced {name}")

    async def _tell(self, http: httpx2.AsyncClient, name: str) -> None:
        await _sound(http, "POST", "/v1/agents/tells/events", json={"type": "told", "data": name})
        self.acknowledged.add(f"told {name}")

    async def _export(self, http: httpx2.AsyncClient, name: str) -> None:
        protobuf_type = {"Content-Type": "application/x-protobuf"}
        body = protobuf(Sent(name=name))
        answer = await _sound(http, "POST", "/v1/traces", content=body, headers=protobuf_type)
        assert answer.content == b"", answer.content
        self.acknowledged.add(f"traced {name}")

    async def _verify(self, http: httpx2.AsyncClient, _name: str) -> None:
        told = (await _sound(http, "GET", "/v1/agents/asks/verify")).json()
        assert told["ok"] is True, told


class Record(msgspec.Struct, frozen=True):
    """A row, and what a client knows it by."""

    seq: int
    kind: str
    key_id: str
    names: tuple[str, ...]


async def _sound(http: httpx2.AsyncClient, method: str, path: str, **what: Any) -> httpx2.Response:
    """The answer, 200. Where two processes are busy with one chain, one of them may ask for patience."""
    headers = {"Idempotency-Key": uuid4().hex, **what.pop("headers", {})}
    for _ in range(PATIENCE):
        answer = await http.request(method, path, headers=headers, **what)
        if answer.status_code != 503 or BUSY not in answer.text:
            break
    assert answer.status_code == 200, (answer.status_code, answer.text)
    return answer


async def trails(server: ServerProcess, *arguments: str) -> str:
    """Runs a command in a process of its own; it must succeed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "app.cli",
        *arguments,
        env=service_environment(server.database_url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (arguments, out, err)
    return out.decode()


async def keys_in_force(admin: asyncpg.Connection) -> set[str]:
    """The keys of the last records of the rotated tenant's chains that are written to."""
    rows = await admin.fetch(_LAST_KEYS, TENANT, list(WRITTEN))
    return {row["key_id"] for row in rows}


async def rotate(server: ServerProcess, how: str, loads: list[Load], admin: asyncpg.Connection) -> None:
    """Rotates under load, which goes on until every chain that is written to has the new key."""
    for load in loads:
        load.going = True
    clients = asyncio.gather(*(client for load in loads for client in load.clients()))
    try:
        before = await keys_in_force(admin)
        told = json.loads(await trails(server, "key", "rotate-signing", "--tenant", TENANT, how, "--json"))
        assert told["problems"] == {}
        while not clients.done():
            if not before & await keys_in_force(admin):
                break
            await asyncio.sleep(0.05)
        # Verified while it is written to; the clients' next records come after the hand-over.
        await trails(server, "verify", "--quiet")
    finally:
        for load in loads:
            load.going = False
        rounds = await clients
    assert all(rounds), rounds


async def records(admin: asyncpg.Connection) -> dict[tuple[str, str], list[Record]]:
    """All records by tenant and agent, in their order."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for row in await admin.fetch(_RECORDS):
        data = json.loads(row["trace_data"])
        record = Record(row["seq"], row["kind"], row["key_id"], tuple(_names(row["kind"], data)))
        found[row["slug"], row["agent_id"]].append(record)
    return found


def _names(kind: str, data: dict[str, Any]) -> Iterable[str]:
    if kind == "action_requested":
        yield f"asked {data['input']}"
    elif kind == "outcome":
        yield f"ended {data['detail']}"
    elif kind == "event":
        yield f"told {data['data']}"
    elif kind == "trace":
        yield from (f"traced {node['name']}" for node in data["trace_tree"])


def check_keys(chain: list[Record]) -> None:
    """A key that was handed over from signs nothing more, and its last record is the one that says so."""
    runs = [(key, list(run)) for key, run in itertools.groupby(chain, key=lambda record: record.key_id)]
    assert len({key for key, _ in runs}) == len(runs)
    for _, run in runs[:-1]:
        assert run[-1].kind == "key_rotated"
    assert sum(record.kind == "key_rotated" for record in chain) == len(runs) - 1


async def test_c24_keys_are_rotated_under_load(
    servers: list[ServerProcess], admin: asyncpg.Connection, tmp_path: Path
) -> None:
    server = servers[0]
    made = await trails(server, "tenant", "create", TENANT, "--name", "Acme", "--operator", "Ada", "--json")
    loads = [
        Load(TENANT, json.loads(made)["token"], servers),
        Load("default", server.operator_token, servers),
    ]
    first_key = httpx2.get(f"{server.base_url}/v1/public-key", headers=loads[0].headers).json()["public_key"]
    for load in loads:
        await load.make_agents()
    await trails(server, "verify", "--quiet")

    for how in ROTATIONS:
        await rotate(server, how, loads, admin)

    await trails(server, "verify", "--quiet")
    chains = await records(admin)
    for load in loads:
        names = [
            name
            for (slug, _), chain in chains.items()
            if slug == load.slug
            for r in chain
            for name in r.names
        ]
        assert sorted(names) == sorted(load.acknowledged)
    for (slug, agent), chain in chains.items():
        assert [record.seq for record in chain] == list(range(len(chain)))
        check_keys(chain)
        keys = len({record.key_id for record in chain})
        assert keys == (1 + len(ROTATIONS) if slug == TENANT and agent in WRITTEN else keys)
        assert slug == TENANT or keys == 1
    for agent in sorted(WRITTEN):
        await asyncio.to_thread(check_export, server, agent, first_key, tmp_path / f"{agent}.jsonl")


def check_export(server: ServerProcess, agent: str, first_key: str, path: Path) -> None:
    """An exported chain verifies by the key that it began with: by us, by the guides, in another language."""
    env = {"TRAILS_DATABASE_URL": server.database_url, "TRAILS_MASTER_KEY": MASTER_KEY}
    exported = run_trails("export", agent, "--tenant", TENANT, "--out", path, env=env)
    assert exported.code == 0, exported
    assert verify(path, "--public-key", first_key).code == 0
    program = noted("python verifier")
    for command in ([sys.executable, "-c", program, str(path), first_key], *_in_node(path, first_key)):
        proof = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert proof.returncode == 0, proof.stderr


def _in_node(path: Path, key: str) -> list[list[str]]:
    node = shutil.which("node")
    return [] if node is None else [[node, str(VERIFIER), str(path), "--public-key", key]]
