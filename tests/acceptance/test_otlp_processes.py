"""Two server processes, one truth: a span that comes to both is on record once."""

from __future__ import annotations

import threading

from tests.integration.http.client import Client
from tests.support.otlp import nodes, post, records
from tests.support.server import ServerProcess
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
