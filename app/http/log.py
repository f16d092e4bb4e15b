"""An agent's log: the records themselves, and verifying them."""

from __future__ import annotations

from litestar import get

from app.errors import NotFoundError, TenantQuarantinedError
from app.http import documents, examples
from app.http.access import granted, granted_by_row
from app.http.exchange import Call, services_of
from app.http.operation import ON_AGENT, Field, describe
from app.http.query import page_of, seq_of
from app.http.responses import Answer, answer, answer_log
from app.principal import ADMINISTRATION, Permission

LOG_LIMIT = 500
MAX_LOG_LIMIT = 5_000
"""Records in one page, by default and at most, as Lineage's clients expect."""


@get(
    "/v1/agents/{agent_id:str}/log",
    summary="An agent's log",
    opt=describe(
        Permission.READ_LOG,
        answer=documents.Log,
        example=examples.LOG,
        errors=ON_AGENT,
        query=(
            Field("after", {"type": "integer", "minimum": 0}, "Records with a seq above this one."),
            Field(
                "limit",
                {"type": "integer", "minimum": 1, "default": LOG_LIMIT},
                f"Most records to return; above {MAX_LOG_LIMIT} counts as {MAX_LOG_LIMIT}.",
            ),
        ),
    ),
)
async def read_log(request: Call) -> Answer:
    """Records in their order, each as it was signed, and the chain's head. Operators and auditors.

    Reading pages is not put on record; verifying is.
    """
    grant = granted(request)
    page = page_of(request, default=LOG_LIMIT, most=MAX_LOG_LIMIT)
    after = seq_of(page.after)
    lines, head = await services_of(request).ledger.log(grant, after, page.limit)
    return answer_log(lines, head)


@get(
    "/v1/agents/{agent_id:str}/verify",
    summary="Verify an agent's log",
    opt=describe(
        Permission.READ_LOG,
        answer=documents.Verification,
        example=examples.VERIFICATION,
        errors=(NotFoundError,),
    ),
)
async def verify_log(request: Call) -> Answer:
    """Verifies the chain from its genesis: hashes, links, signatures, columns. Operators and auditors.

    Who verified what, and how it came out, is put on record in the tenant's ``_administration``. While that
    chain itself does not verify, its keys are good for nothing but to have it verified: after a repair that
    releases it in the server process that answers.
    """
    ledger = services_of(request).ledger
    try:
        grant = granted(request)
    except TenantQuarantinedError:
        if request.path_params["agent_id"] != ADMINISTRATION:
            raise
        return answer(await ledger.verify(await granted_by_row(request)))
    return answer(await ledger.verify_on_record(grant))
