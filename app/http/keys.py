"""The key that verifies records."""

from __future__ import annotations

from litestar import get

from app.errors import MisdirectedError, TooManyRequestsError, UnauthorizedError
from app.http import documents, examples
from app.http.auth import authenticate_if_given
from app.http.exchange import Call, services_of
from app.http.operation import describe
from app.http.responses import Answer, answer


@get(
    "/v1/public-key",
    summary="The public key",
    opt=describe(
        None,
        answer=documents.PublicKey,
        example=examples.PUBLIC_KEY,
        errors=(UnauthorizedError, MisdirectedError, TooManyRequestsError),
    ),
)
async def public_key(request: Call) -> Answer:
    """The Ed25519 key that signs the records of the token's tenant; of the default tenant without a token.

    ``keys`` lists it with those before it. A verifier pins the one that a chain began with: ``public_key`` of
    the agent's status.
    """
    services = services_of(request)
    principal = authenticate_if_given(request.scope)
    tenant_id = services.tokens.default_tenant if principal is None else principal.tenant_id
    return answer(await services.ledger.public_keys(tenant_id))
