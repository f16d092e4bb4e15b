"""Two tenants that have everything a tenant can have, and the ids of a third that does not exist.

Of the ids, those of one tenant are those of another with one letter changed, or random: they are as long, and
sort the same among all others.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
import psycopg

from app.principal import Role
from app.settings import Secrets
from db import sql_logins
from db.sql_logins import SqlLogin
from tests.integration.console.browser import Visit
from tests.integration.http.client import POLICY, Client
from tests.integration.http.posting import event, node
from tests.integration.http.serving import Running, serve
from tests.support.postgres import Database

SECRETS: Final = Secrets("operator-" * 5, b"\x5e" * 32, "root-" * 8)
"""Of every service on the world's databases."""

PASSWORD: Final = "the password of an auditor"  # noqa: S105  of a throw-away server

COMMON: Final = "common"
"""An agent that both tenants have."""

TABLES_OF_ALL: Final = frozenset({"alembic_version"})
"""Tables whose rows are no tenant's."""


class Ids(msgspec.Struct, frozen=True):
    """What a request may name of a tenant; ``of_nobody`` makes some that nothing has."""

    tenant_id: str
    slug: str
    agent_id: str
    observed: str
    ended: str
    spanned: str
    session_id: str
    key_id: str
    revoked_key_id: str
    webhook_id: str
    trace_id: str
    span_id: str
    idempotency_key: str
    login: str
    action_id: str = "act-3"
    """The one that waits for an approval."""

    @classmethod
    def named(cls, slug: str, **known: str) -> Ids:
        """The ids of a tenant: what can be chosen after its slug, the rest random, or as it is known."""
        chosen = {
            "tenant_id": str(uuid4()),
            "slug": slug,
            "agent_id": f"{slug}-guarded",
            "observed": f"{slug}-observed",
            "ended": f"{slug}-ended",
            "spanned": f"{slug}-spanned",
            "session_id": str(uuid4()),
            "key_id": secrets.token_hex(8),
            "revoked_key_id": secrets.token_hex(8),
            "webhook_id": secrets.token_hex(8),
            "trace_id": secrets.token_hex(16),
            "span_id": secrets.token_hex(8),
            "idempotency_key": f"{slug}-once",
            "login": sql_logins.new_login(),
        }
        return cls(**{**chosen, **known})

    def export(self) -> dict[str, Any]:
        """Spans of an agent by OTLP: one call of a tool."""
        span = {
            "traceId": self.trace_id,
            "spanId": self.span_id,
            "name": "execute_tool search",
            "startTimeUnixNano": "1791016055000000000",
            "endTimeUnixNano": "1791016055250000000",
            "attributes": [
                {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
                {"key": "gen_ai.tool.name", "value": {"stringValue": "search"}},
            ],
        }
        service = {"key": "service.name", "value": {"stringValue": self.spanned}}
        return {"resourceSpans": [{"resource": {"attributes": [service]}, "scopeSpans": [{"spans": [span]}]}]}


class Tenant(msgspec.Struct, frozen=True):
    """One tenant: its ids, a token of each role in it, and where its chains are."""

    ids: Ids
    tokens: dict[str, str]
    log_uuids: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """What nobody else's rows and answers may hold."""
        ids = self.ids
        return (
            ids.tenant_id,
            UUID(ids.tenant_id).hex,
            ids.slug,
            ids.session_id,
            ids.key_id,
            ids.revoked_key_id,
            ids.webhook_id,
            ids.trace_id,
            ids.span_id,
            ids.login,
            *self.log_uuids,
        )


class World(msgspec.Struct, frozen=True):
    """Who asks, whose objects are asked for, and ids that nobody has."""

    mine: Tenant
    theirs: Tenant
    nobody: Ids


def served(database_url: str, **settings: object) -> Any:
    """The service on a database of the world (a context manager of ``Running``)."""
    return serve(database_url, known=SECRETS, **settings)  # type: ignore[arg-type]  # fields of Settings


def populate(database: Database) -> World:
    """Makes both tenants in an empty database."""
    with served(database.app_url) as running:
        mine, theirs = (_tenant(running, database, slug) for slug in ("tenant-1", "tenant-2"))
    with psycopg.connect(database.admin_url) as connection:  # nobody delivers while rows are compared
        connection.execute("UPDATE trails.webhook_progress SET next_at = '8000-01-01'")
    return World(mine, theirs, Ids.named("tenant-3"))


def _tenant(running: Running, database: Database, slug: str) -> Tenant:
    root = Client(running.url, running.root_token)
    made = _sent(root.post("/v1/tenants", {"slug": slug, "name": slug.title(), "operator": f"Ada {slug}"}))
    operator = root.as_(made["token"])
    ids = Ids.named(slug, tenant_id=made["tenant"]["tenant_id"])
    _act(operator, ids)
    tokens, key_id, revoked = _keys(operator, ids)
    for verb in ("suspend", "resume"):
        _sent(root.post(f"/v1/tenants/{slug}/{verb}", {"reason": "a drill"}))
    login = SqlLogin(ids.login, f"auditor of {slug}", datetime.now(UTC))
    sql_logins.create(database.admin_url, login, UUID(ids.tenant_id), PASSWORD)
    agents = _sent(operator.get("/v1/agents"))["agents"]
    visit = Visit(running.url).sign_in(made["token"])
    assert visit.post("/sign-out", {"csrf": visit.csrf("/approvals")}).status == 303
    return Tenant(
        msgspec.structs.replace(
            ids, key_id=key_id, revoked_key_id=revoked, webhook_id=_webhook(operator, ids)
        ),
        {Role.OPERATOR.value: made["token"], **tokens},
        tuple(agent["status"]["log_uuid"] for agent in agents),
    )


def _act(operator: Client, ids: Ids) -> None:
    agent = operator.create(ids.agent_id, POLICY)
    actions = f"/v1/agents/{ids.agent_id}/actions"
    search = {"tool": "search", "input": {"q": ids.slug}, "session_id": ids.session_id}
    mail = {"tool": "send_email", "input": {"to": ids.slug}, "session_id": ids.session_id}
    for body in (search, search, mail, {**mail, "input": 4}, {**mail, "input": 5}):
        _sent(agent.post(actions, body))
    _sent(agent.post(f"{actions}/act-1/claim", {"tool": "search", "input": {"q": ids.slug}}))
    _sent(agent.post(f"{actions}/act-2/outcome", {"status": "failure", "detail": ids.slug}))
    _sent(operator.post(f"{actions}/act-4/approve", {"approver": "Ada"}))
    _sent(operator.post(f"{actions}/act-5/reject", {"approver": "Ada", "reason": ids.slug, "scar": "minor"}))
    _sent(operator.post(f"/v1/agents/{ids.agent_id}/scars", {"severity": "minor", "reason": ids.slug}))
    operator.create(ids.observed, None)
    tree = {"session_id": ids.session_id, "total_nodes": 4, "trace_tree": _tree()}
    _sent(operator.post(f"/v1/agents/{ids.observed}/traces", tree))
    once = {"Idempotency_Key": ids.idempotency_key}
    _sent(operator.post(f"/v1/agents/{ids.observed}/events", event(data={"of": ids.slug}), **once))
    operator.create(ids.ended)
    _sent(operator.post(f"/v1/agents/{ids.ended}/terminate", {"reason": ids.slug, "by": "Ada"}))
    operator.create(COMMON)
    _sent(operator.post(f"/v1/agents/{COMMON}/events", event(data={"of": ids.slug})))
    _sent(operator.post("/v1/traces", ids.export()))


def _tree() -> list[dict[str, Any]]:
    """A call that failed, what put it right, and a call of a model."""
    failed = node(2, 1, outputs={"status": "failed", "error": "timeout"})
    model = {"model": "some-model", "input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    asked = node(4, 1, node_type="LLM_CALL", metadata=model)
    return [node(1), failed, node(3, 2, node_type="SELF_CORRECTION"), asked]


def _keys(operator: Client, ids: Ids) -> tuple[dict[str, str], str, str]:
    """Tokens of the roles below the operator's, a spare key's id, and a revoked one's; all were used."""
    tokens = {}
    for role in (Role.AUDITOR, Role.WRITER, Role.AGENT):
        wanted = {"role": role.value, "name": f"{role.value} of {ids.slug}"}
        if role is Role.AGENT:
            wanted["agent_id"] = ids.agent_id
        tokens[role.value] = _sent(operator.post("/v1/keys", wanted))["token"]
    spare, gone = (
        _sent(operator.post("/v1/keys", {"role": "auditor", "name": f"{name} of {ids.slug}"}))
        for name in ("spare", "gone")
    )
    for issued in (spare, gone):
        _sent(operator.as_(issued["token"]).get("/v1/agents"))
    key_ids = spare["key"]["key_id"], gone["key"]["key_id"]
    _sent(operator.send("DELETE", f"/v1/keys/{key_ids[1]}"))
    return tokens, *key_ids


def _webhook(operator: Client, ids: Ids) -> str:
    """One that leads nowhere: nothing has this name (RFC 2606)."""
    wanted = {"name": f"webhook of {ids.slug}", "url": f"https://{ids.slug}.invalid/"}
    return str(_sent(operator.post("/v1/webhooks", wanted))["webhook"]["webhook_id"])


def _sent(reply: Any) -> Any:
    assert reply.status == 200, reply.raw
    return reply.json
