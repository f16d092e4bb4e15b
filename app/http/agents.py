"""Agents: creating them, listing them, their standing, their tokens."""

from __future__ import annotations

from litestar import get, post

from app.errors import AgentExistsError, IdempotencyConflictError, InvalidPolicyError, NameInUseError
from app.guard.bodies import NewAgent
from app.http import documents, examples
from app.http.access import check_agent_id, grant_further, granted
from app.http.bodies import read_json
from app.http.exchange import Call, Services, services_of
from app.http.operation import AGENT_ID, ON_AGENT, Field, describe
from app.http.query import page_of
from app.http.responses import Answer, answer
from app.http.why import reason_of
from app.principal import Grant, Permission

MAX_AGENTS = 5_000
"""Agents in one answer."""


@post(
    "/v1/agents",
    status_code=200,
    summary="Create an agent",
    opt=describe(
        Permission.CREATE_AGENT,
        body=(documents.NewAgent, examples.NEW_AGENT),
        answer=documents.CreatedAgent,
        example=examples.CREATED,
        errors=(AgentExistsError, IdempotencyConflictError, InvalidPolicyError, NameInUseError),
    ),
)
async def create_agent(request: Call) -> Answer:
    """Begins the agent's chain. The policy is fixed for life; null: an observed agent. Operators only."""
    grant = granted(request)
    body = await read_json(request, grant)
    new = NewAgent.parse(body.value)
    agent_id = check_agent_id(new.agent_id)
    grant = grant_further(request, Permission.CREATE_AGENT, agent_id)
    services = services_of(request)
    status = await services.ledger.create_agent(grant, new.policy, body.stamp("agents"))
    return answer({"agent": status, "token": await _token(services, grant)})


@get(
    "/v1/agents",
    summary="List agents",
    opt=describe(
        Permission.LIST_AGENTS,
        answer=documents.AgentList,
        example=examples.AGENTS,
        query=(
            Field("after", AGENT_ID, "List agents with an id above this one."),
            Field("limit", {"type": "integer", "minimum": 1, "default": MAX_AGENTS}, "Most agents to list."),
        ),
    ),
)
async def list_agents(request: Call) -> Answer:
    """The tenant's agents by id, each with its status or its fault. Operators and auditors."""
    grant = granted(request)
    page = page_of(request, default=MAX_AGENTS, most=MAX_AGENTS)
    after = None if page.after is None else check_agent_id(page.after)
    agents = await services_of(request).ledger.agents(grant, after=after, limit=page.limit)
    return answer({"agents": [*agents]})


@get(
    "/v1/agents/{agent_id:str}",
    summary="An agent's status",
    opt=describe(Permission.READ_STATUS, answer=documents.Status, example=examples.STATUS, errors=ON_AGENT),
)
async def agent_status(request: Call) -> Answer:
    """The agent's standing, no older than the request."""
    return answer(await services_of(request).ledger.status(granted(request)))


@get(
    "/v1/agents/{agent_id:str}/token",
    summary="An agent's token",
    opt=describe(
        Permission.ISSUE_TOKEN,
        answer=documents.AgentToken,
        example={"token": examples.TOKEN},
        errors=ON_AGENT,
    ),
)
async def agent_token(request: Call) -> Answer:
    """The token that acts for this agent alone, the same each time until it is revoked. Operators only."""
    services = services_of(request)
    grant = granted(request)
    await services.ledger.require_agent(grant)
    return answer({"token": await _token(services, grant)})


@post(
    "/v1/agents/{agent_id:str}/token/revoke",
    status_code=200,
    summary="Revoke an agent's token",
    opt=describe(
        Permission.REVOKE_TOKEN,
        body=(documents.Why, examples.REASON),
        answer=documents.AgentToken,
        example={"token": examples.NEXT_TOKEN},
        errors=(*ON_AGENT, IdempotencyConflictError),
    ),
)
async def revoke_token(request: Call) -> Answer:
    """Ends the agent's token, on every server process within a second; answers with its next one.

    API keys of the role ``agent`` are revoked as keys. Operators only.
    """
    services = services_of(request)
    grant = granted(request)
    body = await read_json(request, grant)
    stamp = body.stamp(f"agents/{grant.agent_id}/token/revoke")
    administration = services.ledger.administration
    epoch = await administration.revoke_token(grant, reason_of(body.value), stamp)
    return answer({"token": services.tokens.issue(grant.tenant_id, grant.agent_id or "", epoch)})


async def _token(services: Services, grant: Grant) -> str:
    agent_id = grant.agent_id or ""
    return services.tokens.issue(grant.tenant_id, agent_id, await services.ledger.token_epoch(grant))
