"""Cases that schemathesis makes of the API's own description, sent to a running service in every role.

A case keeps whatever is wrong with it; what is right with it is pointed at things that exist (an agent, its
actions, a key, a tenant), since what is drawn finds nothing. What does not hold is collected, not raised:
the service has a memory, so that a case cannot be tried again to make it smaller.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import requests
import schemathesis
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from schemathesis import Case, GenerationMode, SerializationContext
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import FailureGroup
from schemathesis.core.parameters import ParameterLocation
from schemathesis.core.transport import Response
from schemathesis.openapi.checks import RejectedPositiveData

from app.http.operation import JSON, LINES
from app.http.otlp_body import PROTOBUF
from app.principal import PERMISSIONS, Role
from tests.support.postgres import Database
from tests.support.server import ServerProcess

ROOT_TOKEN: Final = "root-token-of-the-tests-0123456789abcdefghij"  # noqa: S105  of throw-away servers

TIMEOUT_SECS: Final = 30

ANONYMOUS: Final = "anonymous"
FORGED: Final = "forged"
"""Callers beside those of a role: without a token, and with an operator's of which one character is wrong."""

CALLERS: Final = (*(str(role) for role in Role), ANONYMOUS, FORGED)

AGENT: Final = "fuzzed"
TENANT: Final = "elsewhere"
"""A tenant that may be suspended and resumed without end."""

SESSION: Final = "3f2a8c4e-0c57-4f6e-9b0a-5f6f0d1f5a11"

POLICY: Final[dict[str, Any]] = {
    "budget": 2**53,
    "scar_limit": 2**32 - 1,
    "tools": {"search": {"cost": 1}, "send": {"cost": 1, "requires_approval": True}},
    "default_rule": {"cost": 0},
}

REFUSED: Final = ("400", "401", "403", "404", "405", "409", "413", "415", "429")
"""How a request that breaks its description may be answered."""

UNSAYABLE: Final = (
    r": must be an integer >= \d+$",  # 1.0, which is no integer here (case G13)
    r"^total_nodes: must be the number of nodes",
    r": stands twice: ",
    r": leads in a cycle: ",
    r": needs requires_approval: true$",
    r"^agent_id: is required for role agent, and for no other$",
    r"^name: must have 1 to 64 letters, digits, spaces",
    r"^name: must be printable$",
    r"^expires_at: must be in the future, and before the year 9000$",
    r"^paths\[\d+\]: ",
    r"^url: (must|is) ",
    r"^after: must be the next of an earlier answer",
    r"^until: must be later than since$",
    r"^format: a bundle holds whole chains",
    r"is recorded by the service alone; choose another$",
    r"^the character U\+0000, which cannot be stored",
    r"^(from|since|until|expires_at|(events\[\d+\]\.)?occurred_at): is no time that exists",
    r"^(from|since|until|expires_at|(events\[\d+\]\.)?occurred_at): is not within the years",
)
"""Rules beyond JSON Schema's words: why a request that has the described form may be refused after all."""

_CONFIG: Final[dict[str, Any]] = {
    "seed": 1,
    "generation": {"deterministic": True, "with-security-parameters": False},
    "checks": {"negative_data_rejection": {"expected-statuses": list(REFUSED)}},
}

CHECKED: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "positive_data_acceptance",
    "unsupported_method",
    "allow_header_conformance",
)
"""Schemathesis's checks that are made.

Not its ``ignored_auth``, ``missing_required_header`` (no header of ours is required but ``Authorization``),
``use_after_free``, ``ensure_resource_availability`` and ``object_level_authorization``: they guess from one
caller's answers, and here every case is sent by callers of whom it is known what they may do.
"""


@schemathesis.serializer(LINES)
def _lines(_: SerializationContext, value: object) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.serializer(PROTOBUF.decode())
def _protobuf(_: SerializationContext, value: object) -> bytes:
    """A span of the name that was drawn; what is no text is no protobuf either."""
    if not isinstance(value, str):
        return json.dumps(value).encode()
    export = ExportTraceServiceRequest()
    span = export.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = b"\x01" * 16, b"\x02" * 8, value
    span.start_time_unix_nano = span.end_time_unix_nano = 1
    return bytes(export.SerializeToString())


class Failure(msgspec.Struct, frozen=True):
    """Something that does not hold, and how to see it again."""

    operation: str
    caller: str
    told: str

    def __str__(self) -> str:
        return f"{self.operation} as {self.caller}: {self.told}"


class Fuzzed:
    """A service with something of everything in it, and what was found out about it."""

    def __init__(self, server: ServerProcess, database: Database) -> None:
        load_all_checks()
        self.server = server
        self.database = database
        self.failures: list[Failure] = []
        self.sent: Counter[str] = Counter()
        self.reached: set[str] = set()
        self._http = requests.Session()
        self._http.trust_env = False
        document = self._http.get(f"{server.base_url}/schema/openapi.json", timeout=TIMEOUT_SECS).json()
        self.schema = schemathesis.openapi.from_dict(document, config=schemathesis.Config.from_dict(_CONFIG))
        self.document: dict[str, Any] = document
        self._checks = [CHECKS.get_one(name) for name in CHECKED]
        self._turn = itertools.count(1)
        self.tokens = self._callers()
        self.secrets = [
            token for caller, token in self.tokens.items() if token and caller not in (Role.AGENT, FORGED)
        ]
        self.known: dict[str, list[str]] = {}

    def close(self) -> None:
        """Ends its connection."""
        self._http.close()

    # --- what there is to find ---------------------------------------------------------------------------

    def _callers(self) -> dict[str, str | None]:
        root = self.post("/v1/tenants", ROOT_TOKEN, slug=TENANT, name="Else", operator="Else")
        assert root["tenant"]["slug"] == TENANT
        keys = {
            str(role): self._new_key(role, f"the {role}")["token"]
            for role in (Role.OPERATOR, Role.AUDITOR, Role.WRITER)
        }
        forged = keys[Role.OPERATOR][:-1] + ("0" if keys[Role.OPERATOR][-1] != "0" else "1")
        return {str(Role.ROOT): ROOT_TOKEN, **keys, str(Role.AGENT): None, ANONYMOUS: None, FORGED: forged}

    def _new_key(self, role: str, name: str) -> Any:
        return self.post("/v1/keys", self.server.operator_token, role=role, name=name)

    def renew(self, name: str) -> None:
        """A fresh agent with actions of every kind, and a key to revoke: what came before may be used up."""
        self._turn = itertools.count(1)
        own = self.server.operator_token
        agent = f"{AGENT}-{name}"
        made = self.post("/v1/agents", own, agent_id=agent, policy=POLICY)
        self.tokens[Role.AGENT] = made["token"]
        # What waits already is not asked for twice, so each has an input of its own.
        asked = [pair for number in range(12) for pair in (("search", None), ("send", number))]
        actions = [
            self.post(f"/v1/agents/{agent}/actions", own, tool=tool, input=value, session_id=SESSION)
            for tool, value in asked
        ]
        self.post(f"/v1/agents/{agent}/actions/{actions[0]['action_id']}/outcome", own, status="failure")
        keys = [self._new_key("auditor", f"to revoke {name} {n}")["key"]["key_id"] for n in range(4)]
        hooks = [self._new_webhook(f"{name} {n}") for n in range(3)]
        self.known = {
            "agent_id": [agent],
            "action_id": [action["action_id"] for action in actions],
            "session_id": [SESSION],
            "slug": [TENANT],
            "key_id": keys,
            "webhook_id": hooks,
        }

    def _new_webhook(self, name: str) -> str:
        """One that leads nowhere, unless there are as many as there may be."""
        listed = self._http.get(f"{self.server.base_url}/v1/webhooks", headers=self.server.headers).json()
        if len(listed["webhooks"]) > 10:
            return str(listed["webhooks"][-1]["webhook_id"])
        made = self.post(
            "/v1/webhooks",
            self.tokens[Role.OPERATOR],
            name=name,
            url="https://hooks.invalid/",
            kinds=["none"],
        )
        return str(made["webhook"]["webhook_id"])

    def post(self, path: str, token: str, **body: object) -> Any:
        """Posts what must be taken."""
        answer = self._http.post(
            self.server.base_url + path,
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_SECS,
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def point(self, case: Case) -> None:
        """Points the case at what exists, in all that it has right."""
        if _is_right(case, ParameterLocation.PATH):
            turn = next(self._turn)
            for name in case.path_parameters or {}:
                known = self.known[name]
                case.path_parameters[name] = known[turn % len(known)]
        body = case.body
        if _is_right(case, ParameterLocation.BODY) and isinstance(body, dict):
            if case.operation.path.endswith("/claim"):
                body["tool"] = "search"
                body.pop("input", None)
            if "trace_tree" in body:
                body["total_nodes"] = len(body["trace_tree"])

    def as_lines(self, case: Case) -> list[Case]:
        """The case's body as one line of a batch, where the operation takes lines."""
        known = case.operation.get_request_payload_content_types()
        if case.media_type != JSON or not isinstance(case.body, dict) or LINES not in known:
            return []
        line = json.dumps(case.body)
        parameters = dict(case.path_parameters or {})
        return [case.operation.Case(path_parameters=parameters, body=f"{line}\n{line}", media_type=LINES)]

    # --- sending and looking -----------------------------------------------------------------------------

    def send(self, case: Case, caller: str, permission: str | None) -> None:
        """Sends a case as a caller, and notes what does not hold of the answer."""
        token = self.tokens[caller]
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = case.call(
            base_url=self.server.base_url, session=self._http, headers=headers, timeout=TIMEOUT_SECS
        )
        self.sent[caller] += 1
        label = case.operation.label
        if 200 <= answer.status_code < 300 and case.method == case.operation.method.upper():
            self.reached.add(label)
            if permission is not None and permission not in _may(caller):
                self._note(label, caller, f"answered {answer.status_code} to who may not: {_shown(case)}")
        self._look_for_secrets(answer, label, caller)
        try:
            # Anything is a line, and what is no protobuf could not be drawn as text.
            text = case.media_type in (LINES, PROTOBUF.decode())
            excluded = [CHECKS.get_one("negative_data_rejection")] if text else []
            case.validate_response(answer, checks=self._checks, excluded_checks=excluded, headers=headers)
        except FailureGroup as found:
            if not _only_what_no_schema_says(found, answer):
                self._note(label, caller, str(found))

    def _look_for_secrets(self, answer: Response, label: str, caller: str) -> None:
        told = answer.content.decode("utf-8", "replace") + json.dumps(dict(answer.headers))
        own = self.tokens[caller]
        if any(secret in told for secret in self.secrets) or (own is not None and own in told):
            self._note(label, caller, f"a token is in the answer: {told[:500]}")

    def _note(self, operation: str, caller: str, told: str) -> None:
        self.failures.append(Failure(operation, caller, told))

    def coverage(self, path: str, method: str) -> Iterator[Case]:
        """The boundary cases of an operation: each member missing, of each wrong type, at its limits."""
        operation = self.schema[path][method]
        yield from self.schema.iter_coverage_cases(
            operation,
            generation_modes=list(GenerationMode),
            generation_config=self.schema.config.generation_for(operation=operation),
        )


def _is_right(case: Case, location: ParameterLocation) -> bool:
    return case.meta is None or not case.meta.is_negative_at(location)


def _only_what_no_schema_says(found: FailureGroup, answer: Response) -> bool:
    if not all(isinstance(failure, RejectedPositiveData) for failure in found.exceptions):
        return False
    return any(re.search(rule, answer.json()["error"]) for rule in UNSAYABLE)


def _may(caller: str) -> frozenset[str]:
    return PERMISSIONS[Role(caller)] if caller in set(Role) else frozenset()


def _shown(case: Case) -> str:
    return f"{case.method} {case.formatted_path} {case.query} {case.body!r}"[:500]


def service(database: Database, folder: Path) -> ServerProcess:
    """The service to fuzz, with a root."""
    return ServerProcess(database.app_url, folder, env={"TRAILS_ROOT_TOKEN": ROOT_TOKEN})
