"""Real runs of five sources as trace trees, posted over HTTP: every count equals the manifest.

Counted per file and in total, by three roads that share nothing: the SQL views, the classic auditor's query
on the table, and the tree that the API assembles from verified records. Once each tree comes whole, once many
to a batch, once in pieces of which the last comes first. At the end every chain verifies.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from tests.acceptance.test_real_runs import CLASSIC_QUERY
from tests.support.runs.collection import CONVERTERS, RunFile, run_files
from tests.support.runs.counts import TOOL_CALL, Counts, total
from tests.support.runs.tree import Json
from tests.support.server import ServerProcess

PIECE = 7
"""Nodes of a piece: small enough that most trees come in several."""

BATCH_BYTES = 3_000_000
"""Of one NDJSON request, below the service's limit."""

SENT = ("parent_id", "node_type", "name", "inputs", "thought_process", "outputs", "metadata")

NODES = "SELECT session_id, node_type, thought_process IS NOT NULL AS thought FROM trails.trace_nodes"
CALLS = "SELECT session_id, tool, status FROM trails.tool_calls"
FAILED = "SELECT session_id, tool FROM trails.failed_tool_calls"
PATHS = "SELECT session_id, node_id, parent_id, depth, orphan, cyclic FROM trails.session_paths"
SESSIONS = """
SELECT session_id, nodes, tool_calls, failed_tool_calls, depth, orphans, total_tokens, agents
  FROM trails.sessions
"""
EVERY_NODE = """
SELECT session_id, x.*
FROM agent_audit_trails,
     jsonb_to_recordset(trace_data->'trace_tree')
         AS x(node_id text, parent_id text, node_type text, name text, thought_process text, outputs jsonb)
"""


def whole(trees: list[Json]) -> list[list[Json]]:
    """One tree a request."""
    return [[tree] for tree in trees]


def batched(trees: list[Json]) -> list[list[Json]]:
    """As many trees a request as fit."""
    batches: list[list[Json]] = [[]]
    size = 0
    for tree in trees:
        length = len(json.dumps(tree))
        if batches[-1] and size + length > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(tree)
        size += length
    return batches


def in_pieces(trees: list[Json]) -> list[list[Json]]:
    """Each tree in fragments of a few nodes, the last nodes first: children come before their parents."""
    return batched([piece for tree in trees for piece in _pieces(tree)])


def _pieces(tree: Json) -> Iterator[Json]:
    nodes = tree["trace_tree"]
    for start in reversed(range(0, len(nodes), PIECE)):
        part = nodes[start : start + PIECE]
        yield {"session_id": tree["session_id"], "total_nodes": len(part), "trace_tree": part}


def post_all(
    client: httpx2.Client, files: list[RunFile], ways: Callable[[list[Json]], list[list[Json]]]
) -> None:
    """Posts every tree, an agent a format; a request of one tree is JSON, any other NDJSON."""
    for kind in CONVERTERS:
        agent = {"agent_id": kind, "policy": None}
        client.post("/v1/agents", json=agent).raise_for_status()
        for trees in ways([tree for file in files if file.format == kind for tree in file.trees]):
            receipts = _post(client, f"/v1/agents/{kind}/traces", trees)
            assert [receipt["nodes"] for receipt in receipts] == [tree["total_nodes"] for tree in trees]


def _post(client: httpx2.Client, path: str, trees: list[Json]) -> list[Json]:
    if len(trees) == 1:
        return [client.post(path, json=trees[0]).raise_for_status().json()]
    lines = "\n".join(map(json.dumps, trees))
    answer = client.post(path, content=lines, headers={"Content-Type": "application/x-ndjson"})
    return [json.loads(line) for line in answer.raise_for_status().text.splitlines()]


class Road:
    """What one road tells of each session."""

    def __init__(self) -> None:
        self.sessions: dict[str, Counts] = {}

    def check(self, files: list[RunFile]) -> None:
        """Compares it with the manifest, file by file and all in all."""
        found = [self._of(file) for file in files]
        for file, counts in zip(files, found, strict=True):
            assert counts == file.expected, file.name
        assert total(found) == total(file.expected for file in files)
        assert len(self.sessions) == sum(len(file.trees) for file in files)

    def _of(self, file: RunFile) -> Counts:
        return total(self.sessions[tree["session_id"]] for tree in file.trees)


async def through_views(admin: asyncpg.Connection) -> Road:
    nodes = await _by_session(admin, NODES)
    calls = await _by_session(admin, CALLS)
    failed = await _by_session(admin, FAILED)
    paths = await _by_session(admin, PATHS)
    road = Road()
    for row in await admin.fetch(SESSIONS):
        key = row["session_id"]
        found = Counts(
            traces=1,
            nodes=len(nodes[key]),
            by_type=Counter(node["node_type"] for node in nodes[key]),
            roots=sum(path["depth"] == 1 and path["parent_id"] is None for path in paths[key]),
            leaves=len({p["node_id"] for p in paths[key]} - {p["parent_id"] for p in paths[key]}),
            depth=max(path["depth"] for path in paths[key]),
            with_thought=sum(node["thought"] for node in nodes[key]),
            calls=Counter(call["tool"] for call in calls[key]),
            failed=Counter(call["tool"] for call in failed[key]),
            tokens=int(row["total_tokens"] or 0),
            most_nodes=row["nodes"],
        )
        assert not any(path["orphan"] or path["cyclic"] for path in paths[key])
        assert len(paths[key]) == row["nodes"] == found.nodes
        assert (row["depth"], row["orphans"]) == (found.depth, 0)
        assert (row["tool_calls"], row["failed_tool_calls"]) == (found.calls.total(), found.failed.total())
        assert Counter(c["tool"] for c in calls[key] if c["status"] == "failed") == found.failed
        road.sessions[str(key)] = found
    return road


async def through_the_table(admin: asyncpg.Connection, files: list[RunFile]) -> None:
    """The classic query as it stands, then the same query for further columns."""
    await admin.execute("SET search_path = trails")
    failed = Counter(str(row["session_id"]) for row in await admin.fetch(CLASSIC_QUERY))
    rows = await _by_session(admin, EVERY_NODE)
    for file in files:
        ids = [tree["session_id"] for tree in file.trees]
        nodes = [row for session_id in ids for row in rows[UUID(session_id)]]
        assert sum(failed[session_id] for session_id in ids) == file.expected.failed.total(), file.name
        assert len(nodes) == file.expected.nodes, file.name
        assert Counter(n["node_type"] for n in nodes) == file.expected.by_type, file.name
        assert sum(n["parent_id"] is None for n in nodes) == file.expected.roots, file.name
        assert len({n["node_id"] for n in nodes} - {n["parent_id"] for n in nodes}) == file.expected.leaves
        assert sum(n["thought_process"] is not None for n in nodes) == file.expected.with_thought, file.name
        calls = [n for n in nodes if n["node_type"] == TOOL_CALL]
        assert Counter(n["name"] for n in calls) == file.expected.calls, file.name
        assert Counter(n["name"] for n in calls if _status(n) == "failed") == file.expected.failed, file.name
    assert failed.total() == total(file.expected for file in files).failed.total()


def through_the_api(client: httpx2.Client, files: list[RunFile]) -> Road:
    road = Road()
    for file in files:
        for tree in file.trees:
            answer = client.get(f"/v1/sessions/{tree['session_id']}").raise_for_status().json()
            _check_as_sent(answer, tree, agent=file.format)
            road.sessions[tree["session_id"]] = _counts_of_session(answer)
    return road


def _counts_of_session(answer: Json) -> Counts:
    calls = [node for node in answer["nodes"] if node["node_type"] == TOOL_CALL]
    outline = list(_flat(answer["tree"]))
    assert len(outline) == len(answer["nodes"])
    return Counts(
        traces=1,
        nodes=answer["total_nodes"],
        by_type=Counter(node["node_type"] for node in answer["nodes"]),
        roots=answer["roots"],
        leaves=sum(not node["children"] for node in outline),
        depth=answer["depth"],
        with_thought=sum(node["thought_process"] is not None for node in answer["nodes"]),
        calls=Counter(node["name"] for node in calls),
        failed=Counter(node["name"] for node in calls if node["outputs"]["status"] == "failed"),
        tokens=sum(_tokens(node["metadata"]) for node in answer["nodes"]),
        most_nodes=len(answer["nodes"]),
    )


def _check_as_sent(answer: Json, tree: Json, *, agent: str) -> None:
    """Every node comes back as it was sent, to the last digit: any-agent's ids fit in no float."""
    assert answer["agents"] == [agent]
    assert (answer["orphans"], answer["unverified"], answer["next"]) == (0, [], None)
    found = {node["node_id"]: node for node in answer["nodes"]}
    for sent in tree["trace_tree"]:
        node = found[sent["node_id"]]
        assert {name: node[name] for name in SENT} == {name: sent[name] for name in SENT}
        assert (node["sendings"], node["conflict"], node["record"]["agent_id"]) == (1, False, agent)


def _flat(tree: Iterable[Json]) -> Iterator[Json]:
    for node in tree:
        assert "cut" not in node
        yield node
        yield from _flat(node["children"])


def _status(row: asyncpg.Record) -> Any:
    return json.loads(row["outputs"]).get("status")


def _tokens(metadata: Json | None) -> int:
    tokens = (metadata or {}).get("tokens")
    return sum(count or 0 for count in tokens.values()) if isinstance(tokens, dict) else tokens or 0


async def _by_session(admin: asyncpg.Connection, query: str) -> dict[UUID, list[asyncpg.Record]]:
    rows: defaultdict[UUID, list[asyncpg.Record]] = defaultdict(list)
    for row in await admin.fetch(query):
        rows[row["session_id"]].append(row)
    return rows


@pytest.mark.parametrize("ways", [whole, batched, in_pieces])
async def test_real_traces_give_the_counts_of_the_manifest(
    server: ServerProcess,
    admin: asyncpg.Connection,
    ways: Callable[[list[Json]], list[list[Json]]],
) -> None:
    files = run_files()
    with server.client() as client:
        # Some of the runs hold passwords, and every node is to come back as it was sent.
        client.post("/v1/redaction", json={"patterns": [], "paths": []}).raise_for_status()
        post_all(client, files, ways)

        (await through_views(admin)).check(files)
        await through_the_table(admin, files)
        through_the_api(client, files).check(files)

        for kind in CONVERTERS:
            verdict = client.get(f"/v1/agents/{kind}/verify").raise_for_status().json()
            assert verdict["ok"] is True, (kind, verdict)


async def test_t01_passwords_of_real_runs_are_on_no_record(
    server: ServerProcess, admin: asyncpg.Connection
) -> None:
    files = run_files()
    with server.client() as client:
        post_all(client, files, batched)
        (await through_views(admin)).check(files)
    nodes = [node for file in files for tree in file.trees for node in tree["trace_tree"]]
    secrets = {
        node["inputs"]["password"]
        for node in nodes
        if isinstance(node["inputs"], dict) and isinstance(node["inputs"].get("password"), str)
    }
    assert secrets, "the runs hold passwords"
    for secret in secrets:
        found = await admin.fetchval(
            "SELECT count(*) FROM trails.agent_audit_trails WHERE signed_text LIKE '%' || $1 || '%'", secret
        )
        assert found == 0, "a password of a run is on record"
