"""What OTLP refuses, and how: the sender's encoding, its limits, its token (cases H01, H02, H09, H14)."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from pytest_postgresql.executors import NoopExecutor

from app.http.documents import RpcStatus, SpanExportAnswer
from app.http.examples import SPAN_EXPORT
from tests.integration.http.client import Client, Reply
from tests.integration.http.serving import Running, serve
from tests.integration.http.wire import SECS, chunked, request
from tests.support.otlp import JSON, PROTOBUF, agents, nodes, post, send
from tests.support.postgres import Server, fresh_database
from tests.support.spans import Sent, as_json, document, protobuf
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

LIMIT = 16 * 1024 * 1024
BOTH = pytest.mark.parametrize("media_type", [PROTOBUF, JSON])


def status_in(reply: Any) -> tuple[int, str]:
    """Code and message of a ``google.rpc.Status``, read by hand as no package of ours has the message."""
    raw: bytes = reply.raw if isinstance(reply, Reply) else reply.body
    if reply.headers["content-type"] == JSON:
        status = msgspec.json.decode(raw, type=RpcStatus, strict=True)
        return status.code, status.message
    assert reply.headers["content-type"] == PROTOBUF
    assert (raw[0], raw[2]) == (0x08, 0x12)
    length, at = raw[3], 4
    if length > 127:
        length, at = length - 128 + raw[4] * 128, 5
    assert len(raw) == at + length
    return raw[1], raw[at:].decode()


def body_of(media_type: str, *spans: Sent) -> bytes:
    return protobuf(*spans) if media_type == PROTOBUF else as_json(*spans)


@BOTH
def test_without_a_token_it_is_401_in_the_senders_encoding(service: Running, media_type: str) -> None:
    for token in (None, "agt_no.such.token"):
        reply = send(Client(service.url, token), body_of(media_type, Sent()), media_type)
        assert reply.status == 401
        assert status_in(reply)[0] == 16
        assert reply.headers["www-authenticate"].startswith("Bearer")


@BOTH
def test_h14_an_agent_that_does_not_exist_is_404(service: Running, operator: Client, media_type: str) -> None:
    token = service.app.services.tokens.issue(uuid4(), "mailer")
    operator.create("mailer", None)
    reply = send(Client(service.url, token), body_of(media_type, Sent()), media_type)
    assert reply.status == 404
    assert status_in(reply) == (5, "agent not found")
    assert nodes(operator, "mailer") == []


@BOTH
@pytest.mark.parametrize("body", [b"{", b"\xff\xff\xff", b"\x0a\x02{}"])
def test_what_cannot_be_decoded_is_400(operator: Client, media_type: str, body: bytes) -> None:
    reply = send(operator, body, media_type)
    assert reply.status == 400
    assert status_in(reply)[0] == 3
    assert agents(operator) == []


def test_c05_a_key_twice_in_the_outermost_object_is_400_and_nothing_is_stored(operator: Client) -> None:
    body = as_json(Sent(), Sent()).replace(b"{", b'{"resourceSpans": [], ', 1)
    reply = send(operator, body, JSON)
    assert reply.status == 400
    assert "duplicate key" in status_in(reply)[1]
    assert agents(operator) == []


def test_c05_a_key_twice_in_a_span_rejects_it_and_no_other(operator: Client) -> None:
    body = as_json(Sent(name="a"), Sent(name="b"))
    told = post(operator, body.replace(b'"kind": 1', b'"kind": 1, "\\u006bind": 2', 1), JSON)
    assert told.rejected == 1
    assert "duplicate key kind" in told.message
    assert [node["metadata"]["span_name"] for node in nodes(operator, "svc")] == ["b"]


def test_h04_a_span_that_is_no_object_is_named_by_its_place(operator: Client) -> None:
    made = document(Sent(name="a"))
    made["resourceSpans"][0]["scopeSpans"][0]["spans"].insert(0, 1)
    told = post(operator, json.dumps(made).encode(), JSON)
    assert told.rejected == 1
    assert "resourceSpans[0].scopeSpans[0].spans[0]: must be an object" in told.message
    assert len(nodes(operator, "svc")) == 1


def test_h06_ids_that_are_not_hex_are_told_as_they_came(operator: Client) -> None:
    made = document(Sent(name="a"))
    made["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] = "q6urq6urq6urq6urq6urQw=="
    told = post(operator, json.dumps(made).encode(), JSON)
    assert told.rejected == 1
    assert "span q6urq6urq6urq6urq6urQw==/" in told.message


def test_h01_millions_of_empty_messages_are_400_and_the_limit_is_named(operator: Client) -> None:
    many = {PROTOBUF: b"\x0a\x00" * (LIMIT // 2), JSON: b'{"x":[' + b"{}," * (LIMIT // 3 - 10) + b"{}]}"}
    for media_type, words in (
        (PROTOBUF, "more than 100000 resourceSpans"),
        (JSON, "more than 1000000 values"),
    ):
        reply = send(operator, many[media_type], media_type, zipped=True)
        assert reply.status == 400
        assert words in status_in(reply)[1]


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/protobuf",
        "application/jsonx",
        "multipart/x",
    ],
)
def test_h09_other_types_are_415(operator: Client, media_type: str) -> None:
    reply = send(operator, protobuf(Sent()), media_type)
    assert (reply.status, reply.json["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["deflate", "br", "gzip, gzip", "zstd"])
@BOTH
def test_other_encodings_are_415(operator: Client, media_type: str, encoding: str) -> None:
    reply = send(operator, body_of(media_type, Sent()), media_type, Content_Encoding=encoding)
    assert reply.status == 415
    assert status_in(reply)[0] == 3


@pytest.mark.parametrize(
    "header", ["application/json; charset=utf-8", "Application/JSON", 'application/json;charset="UTF-8"']
)
def test_a_charset_is_tolerated(operator: Client, header: str) -> None:
    assert send(operator, as_json(Sent()), header).status == 200
    assert send(operator, protobuf(Sent()), f"{PROTOBUF}; charset=utf-8").status == 200
    assert send(operator, protobuf(Sent()), PROTOBUF, Content_Encoding="identity").status == 200


# --- how much ---------------------------------------------------------------------------------------------


def test_h01_an_announced_huge_body_is_refused_before_it_is_read(service: Running) -> None:
    token = f"Authorization: Bearer {service.operator_token}"
    for encoding in ("", "Content-Encoding: gzip\r\n"):
        head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n{token}\r\n{encoding}"
        with socket.create_connection(("127.0.0.1", service.port), timeout=SECS) as connection:
            # Only the headers are sent: an answer at all means that nothing was waited for.
            connection.sendall(f"{head}Content-Length: {LIMIT + 1}\r\n\r\n".encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")


@BOTH
def test_h01_a_body_above_the_limit_is_413_and_its_sender_reads_why(
    service: Running, media_type: str
) -> None:
    headers = [f"Content-Type: {media_type}", f"Authorization: Bearer {service.operator_token}"]
    reply = request(service.port, "POST", "/v1/traces", *headers, body=b"\0" * (LIMIT + 1))
    assert reply.status == 413
    assert str(LIMIT) in status_in(reply)[1]
    assert reply.closed
    stream = chunked(LIMIT + 128 * 1024)
    reply = request(service.port, "POST", "/v1/traces", *headers, "Transfer-Encoding: chunked", body=stream)
    assert reply.status == 413
    assert reply.closed


def test_the_limit_is_a_setting(postgres: Server, template: NoopExecutor) -> None:
    with (
        fresh_database(postgres, template.template_dbname) as own,
        serve(own.app_url, max_otlp_bytes=4096) as service,
    ):
        client = Client(service.url, service.operator_token)
        large = protobuf(Sent(attributes={"x": "x" * 5_000}))
        assert send(client, large).status == 413
        assert send(client, large, zipped=True).status == 413
        assert send(client, protobuf(Sent())).status == 200


def bomb(size: int) -> bytes:
    """Gzip of ``size`` zeros: one block of them over and over, so that its checksum would not fit."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1024 * 1024)
    pieces = [packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)]
    return pieces[0] + pieces[1] * (size // len(block) - 1) + packer.flush()


def memory_of(pid: int) -> int:
    """Resident bytes of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def peak(pid: int, stop: threading.Event) -> Iterator[int]:
    while not stop.is_set():
        yield memory_of(pid)
        stop.wait(0.005)


@pytest.fixture(scope="module")
def bombs() -> list[bytes]:
    made = bomb(1024 * 1024 * 1024)
    return [made, made[:-4] + (17).to_bytes(4, "little")]


def test_h02_a_bomb_is_413_and_memory_stays_flat(
    service: Running, operator: Client, bombs: list[bytes]
) -> None:
    assert len(bombs[0]) < LIMIT, "small as it comes, a gigabyte inflated"
    send(operator, bombs[0], Content_Encoding="gzip")  # what a first one needs is there now
    before, stop, seen = memory_of(os.getpid()), threading.Event(), [0]
    watcher = threading.Thread(target=lambda: seen.extend(peak(os.getpid(), stop)))
    watcher.start()
    replies: list[Reply] = []

    def throw(body: bytes) -> None:
        replies.append(send(operator, body, Content_Encoding="gzip"))

    threads = [threading.Thread(target=throw, args=(bombs[n % 2],)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    watcher.join()
    # One after another is inflated up to the limit; who waits too long for that is told to come again.
    told = {reply.status: reply for reply in replies}
    assert len(replies) == 20
    assert 413 in told
    assert status_in(told[413])[0] == 8
    assert {(reply.status, reply.headers["retry-after"]) for reply in replies} <= {(413, None), (503, "1")}
    assert max(seen) - before < 128 * 1024 * 1024, "twenty gigabytes were never there"
    assert service.app.services.settings.max_otlp_bytes == LIMIT
    post(operator, protobuf(Sent()))


def test_h02_without_a_token_nothing_is_inflated(service: Running, bombs: list[bytes]) -> None:
    reply = send(Client(service.url), bombs[0], Content_Encoding="gzip")
    assert reply.status == 401


def test_h02_what_the_trailer_says_of_the_size_decides_nothing(operator: Client) -> None:
    body = protobuf(Sent())
    forged = gzip.compress(body)[:-4] + (2**32 - 1).to_bytes(4, "little")
    reply = send(operator, forged, Content_Encoding="gzip")
    assert (reply.status, status_in(reply)) == (400, (3, "the body is not gzip, or damaged"))


def test_several_gzip_members_are_one_body(operator: Client) -> None:
    body = protobuf(*[Sent() for _ in range(5)])
    parts = [body[: len(body) // 3], b"", body[len(body) // 3 :]]
    post_raw = send(operator, b"".join(map(gzip.compress, parts)), Content_Encoding="gzip")
    assert post_raw.status == 200
    assert len(nodes(operator, "svc")) == 5


SOUND = gzip.compress(protobuf(Sent()))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (SOUND + b"x", "ends too early"),
        (SOUND + b"trailing", "not gzip"),
        (SOUND + b"\0" * 8, "not gzip"),
        (SOUND[:-1], "ends too early"),
        (SOUND[:20], "ends too early"),
        (b"", "ends too early"),
        (protobuf(Sent()), "not gzip"),
        (SOUND[:-8] + b"\0" * 4 + SOUND[-4:], "not gzip, or damaged"),
        (gzip.compress(b"") * 1_001, "more than 1000 members"),
        (SOUND + SOUND[:4], "ends too early"),
    ],
    ids=range(10),
)
def test_damaged_gzip_is_400(operator: Client, body: bytes, words: str) -> None:
    reply = send(operator, body, Content_Encoding="gzip")
    assert reply.status == 400
    assert words in status_in(reply)[1]
    assert agents(operator) == []


def test_gzip_that_trickles_in_is_read(service: Running, operator: Client) -> None:
    zipped = gzip.compress(protobuf(Sent(attributes={"x": os.urandom(50_000).hex()})))
    pieces = (
        b"%x\r\n%b\r\n" % (len(piece), piece)
        for piece in (zipped[n : n + 777] for n in range(0, len(zipped), 777))
    )
    headers = [
        f"Content-Type: {PROTOBUF}",
        f"Authorization: Bearer {service.operator_token}",
        "Content-Encoding: gzip",
    ]
    reply = request(
        service.port,
        "POST",
        "/v1/traces",
        *headers,
        "Transfer-Encoding: chunked",
        body=(p for p in [*pieces, b"0\r\n\r\n"]),
    )
    assert reply.status == 200
    assert len(nodes(operator, "svc")) == 1


# --- trouble of ours --------------------------------------------------------------------------------------


@BOTH
def test_passing_trouble_is_503_and_the_spans_are_taken_later(
    service: Running, operator: Client, media_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = body_of(media_type, Sent())
    post(operator, body, media_type)
    committer = service.app.services.ledger._committer
    with monkeypatch.context() as patch:
        patch.setattr(committer, "_closed", True)  # as it is while the service stops
        reply = send(operator, body_of(media_type, Sent()), media_type)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert status_in(reply)[0] == 14
    post(operator, body_of(media_type, Sent()), media_type)
    assert len(nodes(operator, "svc")) == 2


def test_other_agents_spans_are_stored_though_one_chain_does_not_verify(
    service: Running, operator: Client, tenant: dict[str, Any]
) -> None:
    post(operator, protobuf(Sent()))
    ours = UUID(tenant["tenant"]["tenant_id"])
    service.app.services.ledger._chains._chains[ours, "svc"].quarantine("for this test")
    other = Sent(attributes={"gen_ai.agent.name": "other"})
    reply = send(operator, protobuf(Sent(), other))
    assert reply.status == 503
    assert status_in(reply)[0] == 14
    assert len(nodes(operator, "other")) == 1


def test_the_description_says_what_is_answered(operator: Client) -> None:
    reply = send(operator, json.dumps(SPAN_EXPORT).encode(), JSON)
    assert msgspec.json.decode(reply.raw, type=SpanExportAnswer) == SpanExportAnswer()
    [node] = nodes(operator, "mailer")
    assert (node["name"], node["outputs"]["status"]) == ("search", "failed")
