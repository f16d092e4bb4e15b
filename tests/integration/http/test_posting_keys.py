"""An Idempotency-Key on traces and events names the whole request, in whatever form it comes (case P21)."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any

import msgspec
import pytest

from tests.integration.http.client import Client, Reply
from tests.integration.http.posting import (
    EVENTS,
    TRACES,
    event,
    fragment,
    head,
    node,
    post_lines,
    recorded,
    results,
)
from tests.integration.http.serving import Running
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

Json = dict[str, Any]
Send = Callable[[Client, Sequence[Json], str], Reply]


def as_lines(path: str) -> Send:
    return lambda client, documents, key: post_lines(client, path, documents, Idempotency_Key=key)


def as_one(path: str) -> Send:
    return lambda client, documents, key: client.post(path, documents[0], Idempotency_Key=key)


def as_array(client: Client, documents: Sequence[Json], key: str) -> Reply:
    return client.post(EVENTS, {"events": [*documents]}, Idempotency_Key=key)


class Form(msgspec.Struct, frozen=True):
    """A form in which documents are sent: how, where to, and how many it can hold."""

    name: str
    send: Send
    kind: str = "event"
    holds_many: bool = True

    def documents(self, *numbers: int) -> list[Json]:
        """Different ones, by number."""
        if self.kind == "event":
            return [event(data=number) for number in numbers]
        return [fragment(node(number)) for number in numbers]


FORMS = [
    Form("event", as_one(EVENTS), holds_many=False),
    Form("events", as_array),
    Form("event lines", as_lines(EVENTS)),
    Form("trace", as_one(TRACES), "trace", holds_many=False),
    Form("trace lines", as_lines(TRACES), "trace"),
]
PAIRS = [
    (first, then)
    for first in FORMS
    for then in FORMS
    if first.kind == then.kind
]  # fmt: skip


@pytest.fixture
def agent(operator: Client) -> Client:
    return operator.create("mailer", None)


def receipts(reply: Reply) -> list[Json]:
    """The receipts of an answer of any form, without the numbers of lines."""
    assert reply.status == 200, reply.raw
    if reply.headers["Content-Type"] == "application/x-ndjson":
        lines = results(reply)
        assert [line.pop("status") for line in lines] == [200] * len(lines), lines
        assert all(line.pop("line") for line in lines)
        return lines
    found = reply.json.get("receipts", [reply.json])
    assert isinstance(found, list)
    return found


def is_conflict(reply: Reply) -> bool:
    return (reply.status, reply.json["code"]) == (409, "idempotency_conflict")


# --- every pair of forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "then"), PAIRS, ids=lambda form: form.name)
def test_p21_the_same_document_in_another_form_is_the_same_request(
    operator: Client, agent: Client, first: Form, then: Form
) -> None:
    sent = first.documents(1)
    receipt = receipts(first.send(agent, sent, "k"))
    assert receipts(then.send(agent, sent, "k")) == receipt
    assert len(recorded(operator, first.kind)) == 1


@pytest.mark.parametrize(("first", "then"), PAIRS, ids=lambda form: form.name)
def test_p21_another_document_in_any_form_is_a_conflict(
    operator: Client, agent: Client, first: Form, then: Form
) -> None:
    first.send(agent, first.documents(1), "k")
    assert is_conflict(then.send(agent, then.documents(2), "k"))
    assert len(recorded(operator, first.kind)) == 1


@pytest.mark.parametrize(
    ("first", "then"),
    [pair for pair in PAIRS if any(form.holds_many for form in pair)],
    ids=lambda form: form.name,
)
def test_p21_more_fewer_or_reordered_documents_are_a_conflict_in_any_form(
    operator: Client, agent: Client, first: Form, then: Form
) -> None:
    numbers = (1, 2, 3) if first.holds_many else (1,)
    receipt = receipts(first.send(agent, first.documents(*numbers), "k"))
    others: list[tuple[int, ...]] = [(1,), (2,), (1, 2), (2, 3), (1, 2, 3, 4), (0, 1, 2, 3), (1, 1, 2, 3)]
    others += [*permutations((1, 2, 3)), *permutations((1, 2))]
    for other in others:
        if other != numbers and (then.holds_many or len(other) == 1):
            assert is_conflict(then.send(agent, then.documents(*other), "k")), other
    assert len(recorded(operator, first.kind)) == len(numbers)
    assert receipts(first.send(agent, first.documents(*numbers), "k")) == receipt


def test_p21_the_routes_and_agents_keys_are_their_own(operator: Client, agent: Client) -> None:
    other = operator.create("other", None)
    assert post_lines(agent, EVENTS, [event()], Idempotency_Key="k").status == 200
    assert post_lines(agent, TRACES, [fragment()], Idempotency_Key="k").status == 200
    assert (
        post_lines(other, EVENTS.replace("mailer", "other"), [event(data=2)], Idempotency_Key="k").status
        == 200
    )
    # What a further record is kept under is no key that anybody can send.
    assert (
        len(results(post_lines(agent, EVENTS, [event(data=n) for n in (1, 2, 3)], Idempotency_Key="2"))) == 3
    )
    assert agent.post(EVENTS, event(data=9), Idempotency_Key="2/2").status == 200


# --- one batch written in several ways ---------------------------------------------------------------------

ONE = b'{"type":"a","data":{"x":1,"y":[2.0,"\xc3\xbc"]}}'
TWO = b'{"type":"b","data":null}'
SAME = {
    "blank lines before, between and behind": b"\n\r\n" + ONE + b"\n \t\n\n" + TWO + b"\n\n",
    "CRLF": ONE + b"\r\n" + TWO + b"\r\n",
    "no line feed at the end": ONE + b"\n" + TWO,
    "white space": b"  " + ONE.replace(b":", b" : ").replace(b",", b",\t") + b" \n " + TWO + b"  \n",
    "members in another order": (
        b'{"data":{"y":[2.0,"\xc3\xbc"],"x":1},"type":"a"}\n{"data":null,"type":"b"}\n'
    ),
    "other spellings": b'{"type":"\\u0061","data":{"x":1,"y":[2e0,"\\u00fc"]}}\n' + TWO,
}


@pytest.mark.parametrize("body", SAME.values(), ids=SAME)
def test_p21_white_space_and_spelling_do_not_make_another_batch(
    operator: Client, agent: Client, body: bytes
) -> None:
    lines = {"Content_Type": "application/x-ndjson", "Idempotency_Key": "k"}
    first = agent.post_raw(EVENTS, ONE + b"\n" + TWO + b"\n", **lines)
    again = agent.post_raw(EVENTS, body, **lines)
    numbers = [n for n, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    assert [line["line"] for line in results(again)] == numbers
    assert receipts(again) == receipts(first)
    back = agent.post_raw(EVENTS, ONE + b"\n" + TWO + b"\n", **lines)
    assert back.raw == first.raw
    assert len(recorded(operator, "event")) == 2


# --- lines that are refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [b"{", b"\xff", b"[]", b"{}", b'{"type":"t","data":1,"type":"t"}', b"1e400"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_p21_refused_lines_are_refused_again_and_count(
    operator: Client, agent: Client, bad: bytes, place: int
) -> None:
    batch: list[Any] = [event(data=1), event(data=2)]
    batch.insert(place, bad)
    first = post_lines(agent, EVENTS, batch, Idempotency_Key="k")
    assert [line["status"] for line in results(first)].count(400) == 1
    assert results(first)[place]["status"] == 400
    assert post_lines(agent, EVENTS, batch, Idempotency_Key="k").raw == first.raw
    corrected = [*batch[:place], event(data=0), *batch[place + 1 :]]
    without = [*batch[:place], *batch[place + 1 :]]
    otherwise = [*batch[:place], b"nothing", *batch[place + 1 :]]
    for other in (corrected, without, otherwise):
        assert is_conflict(post_lines(agent, EVENTS, other, Idempotency_Key="k"))
    assert is_conflict(as_array(agent, without, "k"))
    assert len(recorded(operator, "event")) == 2


def test_p21_what_stored_nothing_leaves_the_key_free(operator: Client, agent: Client) -> None:
    before = head(operator)
    for _ in range(2):
        assert [
            line["status"] for line in results(post_lines(agent, EVENTS, [b"{", b"[]"], Idempotency_Key="k"))
        ] == [400, 400]
    assert as_array(agent, [event(), {"type": "t"}], "k").status == 400
    assert agent.post(EVENTS, {"type": "t"}, Idempotency_Key="k").status == 400
    assert head(operator) == before
    assert agent.post(EVENTS, event(), Idempotency_Key="k").status == 200


def test_p21_a_line_that_only_the_chain_refuses_costs_the_others_nothing(
    operator: Client, agent: Client
) -> None:
    own = operator.get("/v1/agents/mailer").json["log_uuid"]
    batch = [event(session_id=own), event(data=2), event(data=3)]
    first = post_lines(agent, EVENTS, batch, Idempotency_Key="k")
    bad, two, three = results(first)
    assert (bad["status"], bad["code"]) == (400, "bad_request")
    assert (two["seq"], three["seq"]) == (1, 2)
    assert post_lines(agent, EVENTS, batch, Idempotency_Key="k").raw == first.raw
    for other in ([event(data=9)], batch[1:], batch[:2], [event(data=1), *batch[1:]]):
        assert is_conflict(post_lines(agent, EVENTS, other, Idempotency_Key="k"))
    assert as_array(agent, batch, "other").status == 400
    assert head(operator)["seq"] == 2


# --- at once, and lost answers ----------------------------------------------------------------------------


def test_p21_of_many_forms_at_once_one_request_is_recorded_whole(operator: Client, agent: Client) -> None:
    requests: list[tuple[Send, list[Json]]] = [
        (form.send, form.documents(*numbers))
        for form in FORMS
        if form.kind == "event"
        for numbers in ((1,), (2,), (1, 2), (1, 2, 3))
        if form.holds_many or len(numbers) == 1
    ]

    def send(request: tuple[Send, list[Json]]) -> tuple[list[Json] | None, list[Any]]:
        sent, documents = request
        reply = sent(agent, documents, "k")
        return None if is_problem(reply) else receipts(reply), [document["data"] for document in documents]

    def is_problem(reply: Reply) -> bool:
        return reply.status != 200 and is_conflict(reply)

    with ThreadPoolExecutor(8) as senders:
        answers = list(senders.map(send, requests * 3))
    stored = [record["payload"]["data"] for record in recorded(operator, "event")]
    assert stored in [[1], [2], [1, 2], [1, 2, 3]]
    accepted = [(found, sent) for found, sent in answers if found is not None]
    assert [sent for _, sent in answers if sent == stored] == [sent for _, sent in accepted]
    assert all(found == accepted[0][0] for found, _ in accepted)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_p19_a_batch_whose_sender_hung_up_is_stored_once(
    service: Running, operator: Client, agent: Client, form: Form
) -> None:
    documents = form.documents(*((1, 2, 3) if form.holds_many else (1,)))
    path = TRACES if form.kind == "trace" else EVENTS
    lines = "lines" in form.name
    media_type = "application/x-ndjson" if lines else "application/json"
    value = {"events": documents} if form.name == "events" else documents[0]
    body = "\n".join(map(json.dumps, documents)) if lines else json.dumps(value)
    request = (
        f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {agent.token}\r\nIdempotency-Key: k\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(request.encode())
    first = receipts(form.send(agent, documents, "k"))
    assert receipts(form.send(agent, documents, "k")) == first
    assert [receipt["seq"] for receipt in first] == [*range(1, len(documents) + 1)]
    assert len(recorded(operator, form.kind)) == len(documents)
