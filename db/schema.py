"""The tables, in one definition.

Alembic compares this metadata with the migrated database (``alembic check`` finds no difference), and a
test compares the catalog of both. What metadata cannot say (triggers, policies, grants) is in the SQL of
the migrations alone, and ``db.checks`` compares it with the catalog snapshot at every start.

Every key begins with ``tenant_id``, so that the tables can be distributed by tenant. Text in keys is
compared bytewise (collation "C"): no order depends on the locale of a machine.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from db.comments import ABOUT, MEANINGS

SCHEMA: Final = "trails"
"""The PostgreSQL schema that holds every object of ours."""

OWNER_ROLE: Final = "trails_owner"
"""Owns schema, tables and functions; runs the migrations; nobody logs in as it."""

APP_ROLE: Final = "trails_app"
"""The service: SELECT and INSERT, and DELETE of what has been decided from the index of what waits."""

AUDITOR_ROLE: Final = "trails_auditor"
"""Group of the read-only SQL logins."""

REVISIONS: Final = tuple(f"{number:04}" for number in range(1, 22))
"""All migrations that this program knows, oldest first; a test compares them with ``alembic/versions``."""

REVISION: Final = REVISIONS[-1]
"""The migration that this program needs."""

DEFAULT_TENANT_ID: Final = UUID("7261696c-7300-4000-8000-000000000001")
"""The tenant that exists from the first start on; the service makes it, not a migration."""

DEFAULT_TENANT_SLUG: Final = "default"
"""Slug of the default tenant."""

GUARD_ACTION_KINDS: Final = (
    "action_requested",
    "approval_required",
    "action_allowed",
    "action_denied",
    "action_rejected",
    "outcome",
)
"""Kinds of records that make up one action; the index that finds an action's records covers these."""

_C: Final = "C"
_HEX64: Final = "'^[0-9a-f]{64}$'"
_ACTION_KINDS_SQL: Final = ", ".join(f"'{kind}'" for kind in GUARD_ACTION_KINDS)

_FAILED_TOOL_CALL: Final = '{"trace_tree": [{"outputs": {"status": "failed"}, "node_type": "TOOL_CALL"}]}'


metadata = MetaData(schema=SCHEMA)
"""All tables of the product."""


def _key_text(name: str) -> Column[str]:
    return Column(name, Text(collation=_C), nullable=False)


def _created_at() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False)


tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    _key_text("slug"),
    Column("name", Text, nullable=False),
    _created_at(),
    PrimaryKeyConstraint("tenant_id", name="tenants_pkey"),
    UniqueConstraint("slug", name="tenants_slug_key"),
    CheckConstraint("slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'", name="tenants_slug_format"),
    CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="tenants_name_length"),
)
"""Who shares this database; no tenant ever sees another's rows."""

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    _key_text("key_id"),
    _key_text("public_key"),
    Column("sealed_secret", LargeBinary, nullable=False),
    _created_at(),
    PrimaryKeyConstraint("tenant_id", "key_id", name="signing_keys_pkey"),
    CheckConstraint("key_id ~ '^[0-9a-f]{16}$'", name="signing_keys_key_id_format"),
    CheckConstraint(f"public_key ~ {_HEX64}", name="signing_keys_public_key_format"),
)
"""The tenants' Ed25519 keys; the secret half is sealed under the master key."""

agents = Table(
    "agents",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    _key_text("agent_id"),
    Column("log_uuid", Uuid, nullable=False),
    Column("guarded", Boolean, nullable=False),
    _created_at(),
    PrimaryKeyConstraint("tenant_id", "agent_id", name="agents_pkey"),
    UniqueConstraint("tenant_id", "log_uuid", name="agents_log_uuid_key"),
    CheckConstraint("agent_id ~ '^[A-Za-z0-9_-]{1,64}$'", name="agents_agent_id_format"),
)
"""The registry of chains: verification starts here, so that a chain that vanished is an error."""

agent_audit_trails = Table(
    "agent_audit_trails",
    metadata,
    Column(
        "id",
        BigInteger,
        # A stable identifier without a sequence: it tells nobody another tenant's volume.
        Computed("((('x'::text || substr(hash, 1, 16)))::bit(64) >> 1)::bigint", persisted=True),
        nullable=False,
    ),
    Column("tenant_id", Uuid, nullable=False),
    _key_text("agent_id"),
    Column("log_uuid", Uuid, nullable=False),
    Column("seq", BigInteger, nullable=False),
    _key_text("kind"),
    Column("actor", Text, nullable=False),
    Column("session_id", Uuid, nullable=False),
    _created_at(),
    _key_text("prev_hash"),
    _key_text("hash"),
    _key_text("signature"),
    _key_text("key_id"),
    Column("idempotency_key", Text(collation=_C), nullable=True),
    Column("signed_text", Text, nullable=False),
    Column(
        "trace_data",
        JSONB,
        Computed("((signed_text)::jsonb -> 'payload'::text)", persisted=True),
        nullable=False,
    ),
    PrimaryKeyConstraint("tenant_id", "log_uuid", "seq", name="trail_pkey"),
    # The hash fixes its own format, and with it that of every prev_hash (link trigger).
    CheckConstraint(
        "hash = encode(sha256(convert_to(E'lineage-audit-v1\\n' || signed_text, 'UTF8')), 'hex')",
        name="trail_hash",
    ),
    # As text, since making JSONB of it again took a tenth of a row's cost; in a function, since PostgreSQL
    # reads the expression of a CHECK anew for every statement.
    CheckConstraint(
        "trails.mirrors_v1(signed_text, actor, kind, prev_hash, seq, created_at) IS TRUE",
        name="trail_mirror",
    ),
    # What a row has to be besides: ten rules in one function, for the same reason. An error names the rule
    # that is broken as its constraint: trail_session_id, trail_trace_tree …
    CheckConstraint(
        "trails.well_formed_v1(seq, kind, created_at, signature, session_id, log_uuid, idempotency_key, "
        "trace_data) IS TRUE",
        name="trail_well_formed",
    ),
    Index(
        "trail_idempotency_key",
        "tenant_id",
        "log_uuid",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index("trail_tenant_created_at", "tenant_id", "created_at"),
    Index("trail_sessions", "tenant_id", "session_id", "created_at", "log_uuid", "seq"),
    Index(
        "trail_failed_tool_calls",
        "tenant_id",
        "created_at",
        postgresql_where=text(f"trace_data @> '{_FAILED_TOOL_CALL}'::jsonb"),
    ),
    Index(
        "trail_actions",
        "tenant_id",
        "log_uuid",
        text("(trace_data ->> 'action_id')"),
        postgresql_where=text(f"kind IN ({_ACTION_KINDS_SQL})"),
    ),
    Index(
        "trail_claims",
        "tenant_id",
        "log_uuid",
        text("(trace_data ->> 'action_id')"),
        postgresql_where=text("kind = 'action_claimed'"),
    ),
    Index("trail_scars", "tenant_id", "log_uuid", "seq", postgresql_where=text("kind = 'scar'")),
    Index("trail_snapshots", "tenant_id", "log_uuid", "seq", postgresql_where=text("kind = 'snapshot'")),
    Index(
        "trail_marks",
        "tenant_id",
        "kind",
        "created_at",
        postgresql_where=text(
            "kind IN ('approval_required', 'scar', 'terminated', 'action_claimed', 'claim_refused')"
        ),
    ),
)
"""The trail: one row a record, append-only, kept honest by CHECKs and triggers."""

spans = Table(
    "spans",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("trace_id", LargeBinary, nullable=False),
    Column("span_id", LargeBinary, nullable=False),
    Column("log_uuid", Uuid, nullable=False),
    Column("seq", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant_id", "trace_id", "span_id", "log_uuid", name="spans_pkey"),
    CheckConstraint("octet_length(trace_id) = 16", name="spans_trace_id_length"),
    CheckConstraint("octet_length(span_id) = 8", name="spans_span_id_length"),
    CheckConstraint("seq >= 0", name="spans_seq_range"),
)
"""Which record of a chain holds a span: an index and no evidence, checked against the signed record."""

sendings = Table(
    "sendings",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("session_id", Uuid, nullable=False),
    Column("node_id", Uuid, nullable=False),
    Column("log_uuid", Uuid, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("guarded", Boolean, nullable=False),
    Column("tool", Text, nullable=True),
    Column("status", Text, nullable=True),
    PrimaryKeyConstraint("tenant_id", "session_id", "node_id", "log_uuid", "seq", name="sendings_pkey"),
    CheckConstraint("seq >= 0", name="sendings_seq_range"),
    Index(
        "sendings_guarded",
        "tenant_id",
        "session_id",
        "node_id",
        "log_uuid",
        "seq",
        postgresql_where=text("guarded"),
    ),
)
"""Which records of a session hold a node: an index and no evidence, written by a trigger of the trail."""

waiting_actions = Table(
    "waiting_actions",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("log_uuid", Uuid, nullable=False),
    _key_text("action_id"),
    Column("seq", BigInteger, nullable=False),
    Column("held_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("tenant_id", "log_uuid", "action_id", name="waiting_actions_pkey"),
    CheckConstraint("seq >= 0", name="waiting_actions_seq_range"),
)
"""Which actions wait for a person: an index and no evidence, kept by a trigger of the trail."""

api_keys = Table(
    "api_keys",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    _key_text("key_id"),
    _key_text("role"),
    Column("agent_id", Text(collation=_C)),
    Column("name", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("seal", LargeBinary, nullable=False),
    _created_at(),
    Column("expires_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("tenant_id", "key_id", name="api_keys_pkey"),
    CheckConstraint("key_id ~ '^[0-9a-f]{16}$'", name="api_keys_key_id_format"),
    CheckConstraint("role IN ('operator', 'auditor', 'writer', 'agent')", name="api_keys_role"),
    CheckConstraint("(role = 'agent') = (agent_id IS NOT NULL)", name="api_keys_agent"),
    CheckConstraint("agent_id ~ '^[A-Za-z0-9_-]{1,64}$'", name="api_keys_agent_id_format"),
    CheckConstraint("char_length(name) BETWEEN 1 AND 64", name="api_keys_name_length"),
    CheckConstraint("octet_length(secret_hash) = 32", name="api_keys_secret_hash_length"),
    CheckConstraint("octet_length(seal) = 32", name="api_keys_seal_length"),
)
"""API keys; ``seal`` is an HMAC over the row, so that one written by SQL is no key."""

api_key_revocations = Table(
    "api_key_revocations",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    _key_text("key_id"),
    Column("revoked_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("tenant_id", "key_id", name="api_key_revocations_pkey"),
)
"""Keys that are none any more."""

api_key_uses = Table(
    "api_key_uses",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    _key_text("key_id"),
    Column("used_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("tenant_id", "key_id", "used_at", name="api_key_uses_pkey"),
)
"""When keys were used, to ten minutes."""

console_visits = Table(
    "console_visits",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("visit_hash", LargeBinary, nullable=False),
    _created_at(),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("tenant_id", "visit_hash", name="console_visits_pkey"),
    CheckConstraint("octet_length(visit_hash) = 32", name="console_visits_hash_length"),
)
"""Who signed in to the console: hashes of visits, neither keys nor cookies."""

console_visit_ends = Table(
    "console_visit_ends",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("visit_hash", LargeBinary, nullable=False),
    Column("ended_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("tenant_id", "visit_hash", name="console_visit_ends_pkey"),
)
"""Visits to the console that were ended by signing out."""

tenant_suspensions = Table(
    "tenant_suspensions",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False),
    Column("suspended", Boolean, nullable=False),
    PrimaryKeyConstraint("tenant_id", "changed_at", name="tenant_suspensions_pkey"),
)
"""The newest row says whether a tenant is suspended."""

sql_logins = Table(
    "sql_logins",
    metadata,
    _key_text("login"),
    Column("tenant_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    _created_at(),
    PrimaryKeyConstraint("login", name="sql_logins_pkey"),
    CheckConstraint("login ~ '^[a-z][a-z0-9_]{0,62}$'", name="sql_logins_login_format"),
    CheckConstraint("char_length(name) BETWEEN 1 AND 64", name="sql_logins_name_length"),
)
"""Which tenant an auditor's SQL login sees. Its key is no tenant's, since roles are the cluster's."""

webhooks = Table(
    "webhooks",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    _key_text("webhook_id"),
    Column("name", Text, nullable=False),
    Column("kinds", ARRAY(Text)),
    Column("agents", ARRAY(Text)),
    Column("sealed", LargeBinary, nullable=False),
    _created_at(),
    PrimaryKeyConstraint("tenant_id", "webhook_id", name="webhooks_pkey"),
    CheckConstraint("webhook_id ~ '^[0-9a-f]{16}$'", name="webhooks_webhook_id_format"),
    CheckConstraint("char_length(name) BETWEEN 1 AND 64", name="webhooks_name_length"),
)
"""Where records are told to; address and secret are sealed with what they belong to."""

webhook_progress = Table(
    "webhook_progress",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    _key_text("webhook_id"),
    Column("cursor", Text, nullable=False),
    Column("told_at", DateTime(timezone=True), nullable=False),
    Column("delivered", BigInteger, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("failing_since", DateTime(timezone=True)),
    Column("problem", Text),
    Column("next_at", DateTime(timezone=True), nullable=False),
    Column("lease_until", DateTime(timezone=True), nullable=False),
    Column("holder", Uuid),
    PrimaryKeyConstraint("tenant_id", "webhook_id", name="webhook_progress_pkey"),
    Index("webhook_progress_due", "next_at"),
)
"""How far each webhook is: no evidence, and the one table whose rows the service changes."""

for _name, _about in ABOUT.items():
    _table = metadata.tables[f"{SCHEMA}.{_name}"]
    _table.comment = _about
    for _column, _meaning in MEANINGS.get(_name, {}).items():
        _table.c[_column].comment = _meaning
