"""Two server processes, one truth: a span that comes to both is on record once, in each agent's chain."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.integration.http.client import Client
from tests.support.cli import verify
from tests.support.otlp import nodes, post, records
from tests.support.server import MASTER_KEY, ServerProcess
from tests.support.spans import Sent, child, protobuf

COUNT = 40


def test_spans_that_come_to_two_processes_at_once_are_stored_once(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    clients = [Client(server.base_url, server.operator_token) for server in servers] * 2
    root = Sent(name="root")
    spans = [root, *[child(Sent(name=f"s{n}"), root) for n in range(COUNT - 1)]]
    failures: list[BaseException] = []

    def deliver(client: Client, first: int) -> None:
        order = spans[first:] + spans[:first]
        try:
            for start in range(0, COUNT, 7):
                post(client, protobuf(*order[start : start + 7]))
        except BaseException as error:  # noqa: BLE001  a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=deliver, args=(client, 5 * n)) for n, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    stored = [node["name"] for node in nodes(clients[0], "svc")]
    assert sorted(stored) == sorted(span.name for span in spans)
    assert not records(clients[0], "svc", "event")


def test_the_index_of_spans_is_sound_where_two_agents_sent_the_same_ids(
    server: ServerProcess, tmp_path: Path
) -> None:
    operator = Client(server.base_url, server.operator_token)
    span = Sent(name="run")
    for agent in ("first", "second"):
        client = operator.create(agent, None)
        for _ in range(2):
            post(client, protobuf(span, child(Sent(name="below", span_id=b"\x01" * 8), span)))
        assert len(nodes(operator, agent)) == 2
    verified = verify(
        env={
            "TRAILS_DATABASE_URL": server.database_url,
            "TRAILS_DATA_DIR": str(tmp_path / "data"),
            "TRAILS_MASTER_KEY": MASTER_KEY,
        }
    )
    assert verified.code == 0, verified.out + verified.err
