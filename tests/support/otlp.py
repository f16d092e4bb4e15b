"""A sender of OTLP, and what is on record of it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.integration.http.client import Client, Reply

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class Told(msgspec.Struct, frozen=True):
    """A 200: how many spans were rejected, and the message; the receipts by agent."""

    rejected: int
    message: str
    receipts: dict[str, tuple[int, str]]


def send(
    client: Client, body: bytes, media_type: str = PROTOBUF, *, zipped: bool = False, **headers: str
) -> Reply:
    """Posts an export as it is."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if zipped:
        body, named = gzip.compress(body), {**named, "Content-Encoding": "gzip"}
    return client.send("POST", "/v1/traces", body, {"Content-Type": media_type, **named})


def post(client: Client, body: bytes, media_type: str = PROTOBUF, *, zipped: bool = False) -> Told:
    """Posts an export that must be accepted."""
    reply = send(client, body, media_type, zipped=zipped)
    assert reply.status == 200, (reply.status, reply.raw)
    assert reply.headers["content-type"] == media_type
    return told(reply)


def told(reply: Reply) -> Told:
    """What an answer says, decoded as an SDK does."""
    receipts = {}
    for part in filter(None, (reply.headers["trails-receipt"] or "").split(", ")):
        fields = dict(field.split("=") for field in part.split(";"))
        receipts[fields["agent"]] = (int(fields["seq"]), fields["hash"])
    if reply.headers["content-type"] == JSON:
        partial = json.loads(reply.raw).get("partialSuccess", {})
        return Told(int(partial.get("rejectedSpans", "0")), partial.get("errorMessage", ""), receipts)
    response = ExportTraceServiceResponse.FromString(reply.raw)
    return Told(response.partial_success.rejected_spans, response.partial_success.error_message, receipts)


def records(operator: Client, agent: str, kind: str = "trace") -> list[Any]:
    """The records of one kind in an agent's chain, which must be sound."""
    reply = operator.get(f"/v1/agents/{agent}/verify")
    assert reply.json["ok"] is True, reply.raw
    log: list[Any] = operator.get(f"/v1/agents/{agent}/log?limit=5000").json["records"]
    return [record for record in log if record["kind"] == kind]


def nodes(operator: Client, agent: str) -> list[Any]:
    """All nodes of an agent's trace records, in order."""
    return [node for record in records(operator, agent) for node in record["payload"]["trace_tree"]]


def agents(operator: Client) -> list[str]:
    return [entry["agent_id"] for entry in operator.get("/v1/agents").json["agents"]]
