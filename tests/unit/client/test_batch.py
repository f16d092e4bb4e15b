"""What is sent at once, and what an answer means."""

from __future__ import annotations

import json

import msgspec
import pytest

from app.client.batch import (
    MAX_BATCH_BYTES,
    SERVER_FAULTS,
    Again,
    Entry,
    Fixed,
    No,
    Settled,
    TooMuch,
    ndjson,
    next_lines,
    verdict,
)
from app.client.transport import NDJSON, PROBLEM, Answer


def entry(number: int, session: str = "a", **more: object) -> Entry:
    body = b'{"n":%d}' % number
    return msgspec.structs.replace(Entry(number, body, session, f"node-{number}"), **more)


def ids(lines: list[list[Entry]]) -> list[list[int]]:
    return [[found.id for found in line] for line in lines]


def test_nodes_of_a_session_share_a_line_in_order() -> None:
    mixed = [entry(1), entry(2, "b"), entry(3), entry(4, "b"), entry(5, "c")]
    assert ids(next_lines(mixed, 10)) == [[1, 3], [2, 4], [5]]
    assert ids(next_lines(mixed, 3)) == [[1, 3], [2]]


def test_a_line_holds_no_id_twice_and_a_lone_node_alone() -> None:
    again = [entry(1), entry(2, node_id="node-1"), entry(3, alone=True), entry(4), entry(5)]
    assert ids(next_lines(again, 10)) == [[1], [2], [3], [4, 5]]


def test_a_whole_request_goes_alone_and_in_its_turn() -> None:
    whole = Entry(2, b"{}", path="/v1/x", content_type="application/json", key="k")
    assert ids(next_lines([entry(1), whole, entry(3)], 10)) == [[1]]
    assert ids(next_lines([whole, entry(3)], 10)) == [[2]]
    assert next_lines([], 10) == []


def test_a_batch_is_bounded_in_bytes_but_never_empty() -> None:
    large = b"x" * (MAX_BATCH_BYTES // 2 + 1)
    assert ids(next_lines([entry(n, body=large) for n in range(3)], 10)) == [[0]]
    assert ids(next_lines([entry(n, body=large * 3) for n in range(3)], 10)) == [[0]]


def test_no_more_of_the_queue_is_read_than_is_taken_and_one() -> None:
    read = []
    next_lines((read.append(n) or entry(n) for n in range(100)), 5)  # type: ignore[func-returns-value]
    assert len(read) == 6


def test_lines_are_fragments() -> None:
    lines = ndjson(next_lines([entry(1), entry(2, "b"), entry(3)], 10)).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"session_id": "a", "total_nodes": 2, "trace_tree": [{"n": 1}, {"n": 3}]},
        {"session_id": "b", "total_nodes": 1, "trace_tree": [{"n": 2}]},
    ]


BATCH = Fixed("/v1/agents/a/traces", NDJSON, "k", b"", ((1, 3), (2,)))
SINGLE = Fixed("/v1/agents/a/traces", NDJSON, "k", b"", ((1,),))
WHOLE = Fixed("/v1/agents/a/actions/act-1/outcome", "application/json", "k", b"{}", ((7,),))


def lines(*statuses: int, content_type: str = NDJSON) -> Answer:
    told = [{"line": n, "status": status, "code": "c", "error": "e"} for n, status in enumerate(statuses, 1)]
    return Answer(200, content_type, b"\n".join(map(msgspec.json.encode, told)))


def refusal(status: int, code: str | None = "c", retry_after: float | None = None) -> Answer:
    body = b"<html>" if code is None else msgspec.json.encode({"code": code, "error": "e"})
    return Answer(status, "text/html" if code is None else PROBLEM, body, retry_after)


@pytest.mark.parametrize(
    ("sent", "answer", "expected"),
    [
        (BATCH, lines(200, 200), Settled((1, 3, 2))),
        (BATCH, lines(200, 400), Settled((1, 3), (No((2,), 400, "400 c: e"),))),
        # Which of the two nodes it is shows when they are sent alone.
        (BATCH, lines(400, 200), Settled((2,), (), (1, 3))),
        (BATCH, lines(200, 503), Again("503 c: e")),
        (BATCH, lines(400, 429), Again("429 c: e")),
        (WHOLE, Answer(200, "application/json", b"{}"), Settled((7,))),
        (WHOLE, Answer(204, "", b""), Settled((7,))),
        (BATCH, refusal(503, retry_after=7.0), Again("503 c: e", 7.0)),
        (BATCH, refusal(429, retry_after=1.0), Again("429 c: e", 1.0)),
        (WHOLE, refusal(500), Again("500 c: e")),
        (BATCH, refusal(401), Again("401 c: e", slowly=True)),
        (BATCH, refusal(403), Again("403 c: e", slowly=True)),
        (WHOLE, refusal(404, "not_found"), Again("404 not_found: e", slowly=True)),
        (WHOLE, refusal(404, "unknown_action"), Settled(refused=(No((7,), 404, "404 unknown_action: e"),))),
        (WHOLE, refusal(409, "invalid_state"), Settled(refused=(No((7,), 409, "409 invalid_state: e"),))),
        (BATCH, refusal(413), TooMuch("413 c: e")),
        (BATCH, refusal(400), TooMuch("400 c: e")),
        (SINGLE, refusal(413), Settled(refused=(No((1,), 413, "413 c: e"),))),
        (SINGLE, refusal(400), Settled(refused=(No((1,), 400, "400 c: e"),))),
    ],
)
def test_an_answer_means(sent: Fixed, answer: Answer, expected: object) -> None:
    assert verdict(sent, answer) == expected


@pytest.mark.parametrize(
    "answer",
    [
        lines(200),
        lines(200, 200, 200),
        lines(200, 200, content_type="text/html"),
        Answer(200, NDJSON, b"<html>\n<html>"),
        Answer(200, NDJSON, b'{"line":1,"status":200}\n{"line":3,"status":200}'),
        Answer(200, NDJSON, b'{"line":1,"status":200}\n{"line":2,"status":true}'),
        Answer(200, NDJSON, b"\xff\n\xff"),
        Answer(302, "text/html", b""),
        refusal(400, None),
        refusal(404, None),
        refusal(410, None),
    ],
)
def test_what_is_no_answer_of_the_service_settles_nothing(answer: Answer) -> None:
    found = verdict(BATCH, answer)
    assert isinstance(found, Again)
    assert found.slowly


def test_what_the_service_cannot_digest_is_set_aside_in_the_end() -> None:
    def tried(sent: Fixed, times: int) -> Fixed:
        return msgspec.structs.replace(sent, attempts=times)

    assert isinstance(verdict(tried(BATCH, SERVER_FAULTS - 1), refusal(500)), Again)
    assert isinstance(verdict(tried(BATCH, SERVER_FAULTS), refusal(500)), TooMuch)
    assert isinstance(verdict(tried(SINGLE, SERVER_FAULTS), refusal(500)), Settled)
    assert verdict(tried(BATCH, SERVER_FAULTS), lines(200, 500)) == Settled(
        (1, 3), (No((2,), 500, "500 c: e"),)
    )
    assert isinstance(verdict(tried(SINGLE, 10_000), refusal(503)), Again), "unavailable is not about it"
