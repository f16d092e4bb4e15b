"""The shapes of the API, for its description only: bodies are read by ``app.guard.bodies``, exactly.

Each struct becomes one schema of the OpenAPI document; its docstring and the members' descriptions are what
readers of ``/schema`` see.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

_DATE_TIME = {"format": "date-time"}

AgentId = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$", description="Id of an agent, never used again.")
]
ActionId = Annotated[str, Meta(pattern="^act-[1-9][0-9]{0,18}$", description="Id of an action of one agent.")]
Hex64 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Cost = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ToolName = Annotated[str, Meta(min_length=1, max_length=128)]
PersonName = Annotated[str, Meta(min_length=1, max_length=256)]
ClaimedName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        description="Kept as `approver_claimed`; on record the approver is the key that is used.",
    ),
]
Uuid = Annotated[str, Meta(pattern="^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$")]
SessionId = Annotated[Uuid, Meta(description="Id of a session: the run that several agents may share.")]
Severity = Annotated[
    Literal["minor", "moderate", "severe", "fatal"], Meta(description="Weights 1, 3, 10 and 4294967295.")
]


class FeedEvent(Struct):
    """A record as a CloudEvents 1.0 event."""

    specversion: Literal["1.0"]
    id: Annotated[str, Meta(description="`<log_uuid>/<seq>`: the same whenever the record is told.")]
    source: Annotated[str, Meta(description="`urn:lineage-trails:tenant:<tenant_id>`.")]
    type: Annotated[str, Meta(description="`trails.record.` and the record's kind.")]
    subject: Annotated[str, Meta(description="Id of the agent whose chain it is.")]
    time: Annotated[str, Meta(description="The record's time.", extra_json_schema=_DATE_TIME)]
    datacontenttype: Literal["application/json"]
    data: Annotated[
        Any, Meta(description="The record as it was signed, with hash and signature: an export line.")
    ]
    quarantined: Annotated[
        Literal[True] | UnsetType,
        Meta(description="The process that answers knows that the record's chain does not verify."),
    ] = UNSET
    damaged: Annotated[
        Literal[True] | UnsetType,
        Meta(description="What stands in the table is not what was hashed; `data` is a string."),
    ] = UNSET


class FeedPage(Struct):
    """Records in the order in which they were committed, of each agent by `seq`."""

    events: list[FeedEvent]
    next: Annotated[str, Meta(description="The `after` to go on with, also when `events` is empty.")]
    more: Annotated[bool, Meta(description="Whether there is more already; else wait before you ask again.")]


WebhookId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="Visible id of a webhook; no secret.")]
_Kind = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,63}$")]
_Kinds = Annotated[list[_Kind], Meta(min_length=1, max_length=20)]
_Agents = Annotated[list[AgentId], Meta(min_length=1, max_length=20)]


class NewWebhook(Struct, forbid_unknown_fields=True):
    """Where to tell records."""

    name: Annotated[str, Meta(min_length=1, max_length=64, description="What people call it.")]
    url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2000,
            description="HTTPS, to a public address; others the installation allows (TRAILS_WEBHOOK_ALLOW).",
        ),
    ]
    kinds: Annotated[_Kinds | None, Meta(description="Records of these kinds alone.")] = None
    agents: Annotated[_Agents | None, Meta(description="Records of these agents alone.")] = None


class WebhookReason(Struct, forbid_unknown_fields=True):
    """Why it is switched on again; on record."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class WebhookTrial(Struct, forbid_unknown_fields=True):
    """Nothing has to be said."""


class WebhookEntry(Struct):
    """A webhook. Its address is told without path and query, which often are a secret."""

    webhook_id: WebhookId
    name: str
    target: Annotated[str | None, Meta(description="Scheme and host; null: its row was changed.")]
    kinds: list[str] | None
    agents: list[str] | None
    enabled: bool
    created_at: Annotated[str, Meta(extra_json_schema=_DATE_TIME)]
    delivered: Annotated[int, Meta(ge=0, description="Events that were taken.")]
    failures: Annotated[int, Meta(ge=0, description="Attempts in a row that were not.")]
    failing_since: Annotated[str | None, Meta(extra_json_schema=_DATE_TIME)]
    problem: Annotated[str | None, Meta(description="Why the last one was not.")]


class CreatedWebhook(Struct):
    """A webhook, and the secret that signs its events, shown once."""

    webhook: WebhookEntry
    secret: Annotated[str, Meta(pattern="^whsec_[A-Za-z0-9+/]{43}=$")]


class WebhookList(Struct):
    """The tenant's webhooks, oldest first."""

    webhooks: list[WebhookEntry]


class DeletedWebhook(Struct):
    """It is none any more."""

    deleted: Literal[True]


class WebhookTried(Struct):
    """How one attempt went."""

    delivered: bool
    status: Annotated[int | None, Meta(description="Of the receiver's answer; null: there was none.")]
    problem: str | None


class ToolRule(Struct, forbid_unknown_fields=True):
    """What one tool may do."""

    cost: Annotated[Cost, Meta(description="Least cost of a call.")]
    requires_approval: bool = False
    max_calls: Cost | None = None
    approval_ttl_secs: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)] | None,
        Meta(description="Seconds after the request until which an approval counts."),
    ] = None
    approvers: Annotated[
        Annotated[int, Meta(ge=1, le=10)] | None, Meta(description="How many different keys must approve.")
    ] = None


class RateLimit(Struct, forbid_unknown_fields=True):
    """At most so many allowed actions in any window of so many seconds."""

    max_actions: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    window_secs: Annotated[int, Meta(ge=1, le=2**53)]


class Policy(Struct, forbid_unknown_fields=True):
    """What an agent may do, fixed for its life."""

    budget: Cost
    scar_limit: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    tools: dict[ToolName, ToolRule]
    rate_limit: RateLimit | None = None
    default_rule: Annotated[
        ToolRule | None, Meta(description="Rule of every tool not listed; null denies them.")
    ] = None


class NewAgent(Struct, forbid_unknown_fields=True):
    """An agent to create."""

    agent_id: AgentId
    policy: Annotated[
        Policy | None, Meta(description="Required; null makes an observed agent without a guard.")
    ]


class NewAction(Struct, forbid_unknown_fields=True):
    """What an agent wants to do."""

    tool: ToolName
    input: Annotated[Any, Meta(description="What the tool is called with, recorded exactly.")] = None
    cost: Annotated[Cost | None, Meta(description="Raises the charge above the rule's, never lowers it.")] = (
        None
    )
    session_id: Uuid | None = None
    parent_id: Annotated[Uuid | None, Meta(description="Node of the session's trace tree that asks.")] = None
    thought_process: str | None = None


class Approval(Struct, forbid_unknown_fields=True):
    """A person's yes to a pending action."""

    approver: ClaimedName
    note: str | None = None


class Rejection(Struct, forbid_unknown_fields=True):
    """A person's no to a pending action, with a scar when asking was wrong."""

    approver: ClaimedName
    reason: str
    scar: Severity | None = None


class Outcome(Struct, forbid_unknown_fields=True):
    """How an allowed action went. ``harmful`` is for operators; ``unknown`` may be followed by one other."""

    status: Literal["success", "failure", "harmful", "unknown"]
    detail: str | None = None


class NewClaim(Struct, forbid_unknown_fields=True):
    """What a backend is about to carry out."""

    tool: ToolName
    input: Annotated[Any, Meta(description="As a JSON value exactly what was allowed.")] = None


class NewScar(Struct, forbid_unknown_fields=True):
    """A mark for what a person or a monitor saw."""

    severity: Severity
    reason: str
    action_id: ActionId | None = None


class Termination(Struct, forbid_unknown_fields=True):
    """The kill switch."""

    reason: str
    by: PersonName


NodeName = Annotated[str, Meta(min_length=1, max_length=1024)]
NodeType = Annotated[
    str, Meta(pattern="^[A-Z][A-Z0-9_]{0,63}$", description="PLANNING, TOOL_CALL, SELF_CORRECTION, OUTPUT, …")
]
Instant = Annotated[
    str, Meta(description="RFC 3339 with a zone; cut to microseconds.", extra_json_schema=_DATE_TIME)
]
Lines = Annotated[str, Meta(description="One JSON document a line, at most 1,000 of them.")]
ResultLines = Annotated[
    str,
    Meta(
        description="One line for each that came in: its receipt, or status, code and error of its refusal."
    ),
]


class Node(Struct):
    """A node of a trace tree. Members that are not listed are kept as sent."""

    node_id: Uuid
    node_type: NodeType
    name: NodeName
    parent_id: Annotated[Uuid | None, Meta(description="May be a node that is not in this fragment.")] = None
    inputs: Any = None
    thought_process: str | None = None
    outputs: Annotated[Any, Meta(description="A TOOL_CALL's `status` here says how it ended.")] = None
    metadata: Annotated[
        dict[str, Any] | None, Meta(description="timestamp, duration_ms, model, tokens, cost, …")
    ] = None


class NewTrace(Struct):
    """A compiled trace tree, or any part of one. Members that are not listed are kept as sent."""

    session_id: Uuid
    total_nodes: Annotated[int, Meta(ge=1, le=10_000, description="The number of nodes in trace_tree.")]
    trace_tree: Annotated[list[Node], Meta(min_length=1, max_length=10_000)]


class NewEvent(Struct, forbid_unknown_fields=True):
    """Anything that belongs on the record."""

    type: Annotated[str, Meta(min_length=1, max_length=128)]
    data: Any
    session_id: Uuid | None = None
    occurred_at: Annotated[Instant | None, Meta(description="The sender's own time, if it matters.")] = None


class NewEvents(Struct, forbid_unknown_fields=True):
    """Several events, recorded together."""

    events: Annotated[list[NewEvent], Meta(min_length=1, max_length=1_000)]


class TraceReceipt(Struct):
    """Where a fragment stands: its record's place, hash and time are signed."""

    agent_id: AgentId
    seq: int
    hash: Hex64
    timestamp: str
    session_id: Uuid
    nodes: int


class EventReceipt(Struct):
    """Where an event stands: its record's place, hash and time are signed."""

    agent_id: AgentId
    seq: int
    hash: Hex64
    timestamp: str
    type: str
    clock_skewed: Annotated[
        bool | UnsetType, Meta(description="Whether occurred_at is too far from the record's time.")
    ] = UNSET


class EventReceipts(Struct):
    """Where several events stand, in the order in which they were sent."""

    receipts: list[EventReceipt]


class Head(Struct):
    """The last record of a chain."""

    seq: int
    hash: Hex64


class Scar(Struct):
    """One scar of an agent."""

    seq: int
    severity: Severity
    reason: str
    action_id: ActionId | None


class Status(Struct):
    """An agent's standing, folded from its verified records."""

    agent_id: AgentId
    alive: bool
    termination_reason: str | None
    budget: Cost | None
    spent: Cost
    remaining: Cost | None
    scar_score: int
    scar_limit: int | None
    scars: list[Scar]
    actions_allowed: int
    actions_denied: int
    actions_pending: int
    head: Head
    public_key: Hex64
    guarded: Annotated[bool, Meta(description="False: traces and events only.")]
    log_uuid: Annotated[
        Uuid, Meta(description="The node of an action has the id uuid5(log_uuid, action_id).")
    ]


class CreatedAgent(Struct):
    """A new agent and its token."""

    agent: Status
    token: Annotated[str, Meta(description="Bearer token of this agent alone.")]


class AgentToken(Struct):
    """An agent's token, the same each time until it is revoked."""

    token: str


class AgentEntry(Struct):
    """One agent of a list: its status, or why it is quarantined."""

    agent_id: AgentId
    state: Literal["active", "quarantined"]
    status: Status | UnsetType = UNSET
    error: str | UnsetType = UNSET


class AgentList(Struct):
    """Agents of the tenant, by id."""

    agents: list[AgentEntry]


class Allowed(Struct, tag_field="decision", tag="allowed"):
    """Do it; the cost is charged."""

    action_id: ActionId
    cost: Cost
    remaining: Cost


class Reason(Struct):
    """Why an action was denied, with what belongs to the code."""

    code: Literal[
        "terminated",
        "tool_not_allowed",
        "tool_call_limit",
        "rate_limited",
        "insufficient_budget",
        "rejected",
        "approval_expired",
    ]


class Denied(Struct, tag_field="decision", tag="denied"):
    """Do not do it. No error: the answer is 200."""

    action_id: ActionId
    reason: Reason


class Pending(Struct, tag_field="decision", tag="pending_approval"):
    """Wait: a person decides. The answer to one approval of several says how many there are."""

    action_id: ActionId
    approvals: int | UnsetType = UNSET
    approvers: int | UnsetType = UNSET


Decision = Allowed | Denied | Pending

ExpiresAt = Annotated[
    str | UnsetType, Meta(description="Until when an approval counts, where the policy says so.")
]
Expired = Annotated[bool | UnsetType, Meta(description="True once that time is over.")]


class Approved(Struct):
    """A key that approved."""

    approved_by: str
    by_key: str


class Action(Struct):
    """One action as it stands."""

    action_id: ActionId
    tool: ToolName
    input: Any
    cost: Cost
    status: Literal["requested", "pending_approval", "allowed", "denied", "completed"]
    outcome: Literal["success", "failure", "harmful", "unknown"] | None
    session_id: str | UnsetType = UNSET
    parent_id: str | UnsetType = UNSET
    requested_with: Annotated[
        str | UnsetType, Meta(description="The key that asked, unless it was the agent's own token.")
    ] = UNSET
    approved_by: Annotated[str | UnsetType, Meta(description="Name of the key that approved.")] = UNSET
    approver_claimed: Annotated[
        str | UnsetType, Meta(description="Whom the body of the decision named; nothing proves it.")
    ] = UNSET
    also_approved_by: list[Approved] | UnsetType = UNSET
    claimed_by: Annotated[str | UnsetType, Meta(description="Name of the key that claimed it.")] = UNSET
    approvals: int | UnsetType = UNSET
    approvers: int | UnsetType = UNSET
    expires_at: ExpiresAt = UNSET
    expired: Expired = UNSET
    reason: Reason | UnsetType = UNSET


class Claim(Struct):
    """The action is the caller's to carry out."""

    claimed: Literal[True]
    action_id: ActionId
    tool: ToolName
    input: Any
    cost: Cost


class Requested(Struct):
    """The request of a pending action, as recorded."""

    action_id: ActionId
    tool: ToolName
    input: Any
    cost: Cost


class PendingEntry(Struct):
    """One action that waits for a person."""

    requested_at: str
    seq: int
    action: Requested
    approvals: int | UnsetType = UNSET
    approvers: int | UnsetType = UNSET
    expires_at: ExpiresAt = UNSET
    expired: Expired = UNSET


class QueueEntry(PendingEntry, kw_only=True):
    """One action of the tenant that waits for a person."""

    agent_id: AgentId
    requested_by: list[str]


class QuarantinedQueue(Struct):
    """An agent whose chain does not verify: what waits in it nobody can say, and nothing is decided."""

    agent_id: AgentId
    error: str
    action_ids: list[str]


class ApprovalQueue(Struct):
    """What waits for a person in the whole tenant, oldest first; ``next`` continues the list (``after``)."""

    approvals: list[QueueEntry]
    quarantined: list[QuarantinedQueue]
    next: str | None


class PendingList(Struct):
    """What waits for a person, oldest first."""

    pending: list[PendingEntry]


class Record(Struct):
    """An export line: the signed text with ``hash`` and ``signature`` put before its last brace."""

    actor: str
    kind: str
    payload: dict[str, Any]
    prev_hash: Hex64
    seq: int
    timestamp: str
    hash: Hex64
    signature: Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]


class Log(Struct):
    """A page of an agent's log and the head of its whole chain."""

    records: list[Record]
    head: Head


class Failure(Struct):
    """The first record that does not verify."""

    line: int
    seq: int | None
    reason: str


class Verification(Struct):
    """The result of verifying a whole chain."""

    ok: bool
    records: int
    public_key: Hex64 | UnsetType = UNSET
    head: Head | UnsetType = UNSET
    failure: Failure | UnsetType = UNSET


class SessionEntry(Struct):
    """One session of a list, as SQL counts it; reading it verifies its records."""

    session_id: Uuid
    agents: list[AgentId]
    records: int
    nodes: int
    tool_calls: int
    failed_tool_calls: int
    first_recorded_at: str
    last_recorded_at: str


class SessionList(Struct):
    """Sessions, newest first."""

    sessions: list[SessionEntry]
    next: Annotated[str | None, Meta(description="Send it as ``after`` to go on; null at the end.")]


class NodeRecord(Struct):
    """The record that a node is read from."""

    agent_id: AgentId
    seq: int
    hash: Hex64


class TreeNode(Struct):
    """A node as it was sent, and its place in the tree."""

    node_id: Uuid
    parent_id: Uuid | None
    node_type: str
    name: str
    inputs: Any
    thought_process: str | None
    outputs: Any
    metadata: dict[str, Any] | None
    depth: Annotated[int | None, Meta(description="1 at a root or an orphan; null in a cycle or below one.")]
    orphan: Annotated[bool, Meta(description="Its parent never came.")]
    cyclic: Annotated[bool, Meta(description="No root leads to it.")]
    sendings: Annotated[int, Meta(description="How often its agent sent it; the latest is shown.")]
    conflict: Annotated[bool, Meta(description="Its sendings differ, or another agent sent the same id.")]
    recorded_at: str
    record: NodeRecord
    further: Annotated[dict[str, Any] | UnsetType, Meta(description="Members that are not of a node.")] = (
        UNSET
    )


class OutlineNode(Struct):
    """A node of the nested outline."""

    node_id: Uuid
    name: str
    node_type: str
    status: str | None
    children: list[OutlineNode]
    cut: Annotated[bool | UnsetType, Meta(description="It has children below the last level shown.")] = UNSET


class Unverified(Struct):
    """A record of the session that does not verify; its nodes are left out."""

    agent_id: str
    log_uuid: Uuid
    seq: int
    reason: str


class Session(Struct):
    """A session's tree: its nodes flat, each parent before its children, and nested as an outline."""

    session_id: Uuid
    agents: list[AgentId]
    records: int
    total_nodes: int
    depth: int
    roots: int
    orphans: int
    nodes: list[TreeNode]
    tree: Annotated[list[OutlineNode] | None, Meta(description="Null where not all nodes are in the answer.")]
    unverified: list[Unverified]
    unverified_records: int
    next: Annotated[str | None, Meta(description="Send it as ``after`` to go on; null at the end.")]


class SpanExport(Struct):
    """An ``ExportTraceServiceRequest`` in OTLP/JSON, as every exporter writes it."""

    resourceSpans: Annotated[  # noqa: N815  OTLP's spelling
        list[Any] | None,
        Meta(
            description=(
                "Spans by resource and by scope; ids in hex. One that cannot be read is named in the "
                "answer's partialSuccess, and the others are kept."
            )
        ),
    ] = None


class PartialSuccess(Struct):
    """Spans that were not kept, or a warning."""

    rejectedSpans: Annotated[str, Meta(description="How many, as OTLP/JSON writes 64 bits.")]  # noqa: N815
    errorMessage: Annotated[str, Meta(description="Which spans, and why.")]  # noqa: N815  as above


class SpanExportAnswer(Struct):
    """An ``ExportTraceServiceResponse``: empty when all is well."""

    partialSuccess: PartialSuccess | UnsetType = UNSET  # noqa: N815  as above


ProtobufExport = Annotated[str, Meta(description="An ExportTraceServiceRequest in protobuf.")]
ProtobufExportAnswer = Annotated[str, Meta(description="An ExportTraceServiceResponse in protobuf.")]


class RpcStatus(Struct):
    """An error as OTLP tells it (``google.rpc.Status``), in the encoding of the request."""

    code: Annotated[int, Meta(description="A google.rpc.Code.")]
    message: str


ProtobufStatus = Annotated[str, Meta(description="A google.rpc.Status in protobuf.")]


class SigningKey(Struct):
    """A key that a tenant has or had. What a retired one signed while it was in force verifies for ever."""

    key_id: str
    public_key: Hex64
    created_at: Annotated[str, Meta(description="RFC 3339.")]
    retired: bool


class PublicKey(Struct):
    """The key that new chains of the tenant begin with, and all that it has had, oldest first."""

    public_key: Hex64
    algorithm: Literal["ed25519"]
    keys: list[SigningKey]


class Ok(Struct):
    """All is well."""

    ok: Literal[True]


class Problem(Struct):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    error: Annotated[str, Meta(description="The same as ``detail``.")]
    request_id: Annotated[str, Meta(description="Also in the header X-Request-Id and in the service's log.")]
    field: Annotated[str | UnsetType, Meta(description="Member of the body or policy at fault.")] = UNSET
    place: Annotated[str | UnsetType, Meta(description="Where the JSON is broken.")] = UNSET


# --- keys and tenants ----------------------------------------------------------------------------------

KeyName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        description=(
            "What records call who acts with the key: letters and digits of any script, spaces, . @ + - _; "
            "the first a letter or digit, the last no space."
        ),
    ),
]
KeyId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="Visible id of a key; no secret.")]
KeyRole = Literal["operator", "auditor", "writer", "agent"]
Slug = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}$", description="Short name of a tenant.")]
Moment = Annotated[str, Meta(description="RFC 3339.", extra_json_schema=_DATE_TIME)]


class NewApiKey(Struct, forbid_unknown_fields=True):
    """A key to issue."""

    role: KeyRole
    name: KeyName
    agent_id: Annotated[AgentId | None, Meta(description="For role agent, and for no other.")] = None
    expires_at: Annotated[Moment | None, Meta(description="From then on it is no key; null: never.")] = None


class ApiKey(Struct):
    """A key without its secret."""

    key_id: KeyId
    role: KeyRole
    agent_id: AgentId | None
    name: KeyName
    created_at: Moment
    expires_at: Moment | None


class ApiKeyEntry(ApiKey):
    """A key, and what became of it."""

    revoked_at: Moment | None
    last_used_at: Annotated[Moment | None, Meta(description="To ten minutes.")]


class IssuedApiKey(Struct):
    """A new key; ``token`` is shown here and never again."""

    key: ApiKey
    token: str


class ApiKeyList(Struct):
    """The tenant's keys, oldest first."""

    keys: list[ApiKeyEntry]


PatternName = Literal[
    "secret_members", "bearer_tokens", "cloud_keys", "private_keys", "url_passwords", "card_numbers"
]
RulePath = Annotated[
    str,
    Meta(
        max_length=256,
        description="A JSONPath into inputs, outputs, metadata or data of events: $.a.b, $..ssn, $.a[*].b.",
    ),
]


class NewRedactionRules(Struct, forbid_unknown_fields=True):
    """What is to be taken out of what agents send, before it is recorded; empty lists take out nothing."""

    patterns: Annotated[list[PatternName], Meta(max_length=6)]
    paths: Annotated[list[RulePath], Meta(max_length=100)]


class RedactionPattern(Struct):
    """A built-in pattern."""

    name: PatternName
    meaning: str


class RedactionRules(Struct):
    """What is taken out, and which patterns there are. Version 0 is what every tenant begins with."""

    version: Annotated[int, Meta(ge=0)]
    patterns: list[PatternName]
    paths: list[RulePath]
    available: list[RedactionPattern]


class NewTenant(Struct, forbid_unknown_fields=True):
    """A tenant to make."""

    slug: Slug
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    operator: Annotated[KeyName, Meta(description="Name of the first operator's key.")]


class Tenant(Struct):
    """One tenant."""

    tenant_id: Uuid
    slug: Slug
    name: str
    created_at: Moment


class CreatedTenant(Struct):
    """A new tenant, and its first operator's key, which is shown here and never again."""

    tenant: Tenant
    key: ApiKey
    token: str


class TenantEntry(Tenant):
    """A tenant, and whether it is suspended."""

    suspended: bool


class TenantList(Struct):
    """Tenants by slug."""

    tenants: list[TenantEntry]


class Why(Struct, forbid_unknown_fields=True):
    """Why; it stands on the record."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class TenantStanding(Struct):
    """Whether a tenant is suspended."""

    slug: Slug
    suspended: bool
