"""The guard without HTTP, for programs that run beside the database: ``pip install lineage-trails[server]``.

The same questions, records and answers as through the service, with a pool of its own as the service's role.
Whoever holds the database and the master key could write any record, so this is for programs that are trusted
like the service itself. What the server needs is imported in functions only: the module itself is as light as
the rest of the client.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import UUID

import msgspec

from app.client.backend import Backend, Outcome, Refusal, Standing
from app.client.decisions import UNAVAILABLE, Allowed, Decision
from app.client.gate import APPROVAL_SECS, DECISION_SECS, Gate
from app.client.retry import ATTEMPTS
from app.client.service import claimed_of, decision_of, report_body, standing_of
from app.client.waiting import OnPending
from app.client.worker import NoResultError, Worker
from app.errors import (
    ChainError,
    KeyMaterialError,
    QuarantinedError,
    StartupError,
    TooManyRequestsError,
    TrailsError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from app.chain.strict import JsonObject, Parsed
    from app.client.tracker import Session
    from app.ledger import Ledger
    from app.ledger.idempotency import Stamp
    from app.principal import Grant, Permission, Principal
    from app.settings import Settings

R = TypeVar("R")

POOL_SIZE: Final = 4
"""Connections: one program's share of what the database has to give."""

OPEN_SECS: Final = 15.0
"""How long opening may take. Reaching the server and logging in has ten seconds of its own."""

_NO_DECISION = (ChainError, KeyMaterialError, QuarantinedError, StartupError, UnavailableError)

_log = logging.getLogger("trails.client")


class Guard(Gate):
    """One agent's guard on the database itself. Safe to use from threads and from any event loop."""

    @classmethod
    async def open(
        cls,
        database_url: str,
        tenant: str | UUID,
        agent: str,
        *,
        master_key: bytes | str | None = None,
        tracker: Session | None = None,
        approval_timeout: float = APPROVAL_SECS,
        attempts: int = ATTEMPTS,
        pool_size: int = POOL_SIZE,
        timeout: float = DECISION_SECS,  # noqa: ASYNC109  of questions, not of this call
        on_pending: OnPending | None = None,
    ) -> Self:
        """Opens the ledger and looks that everything is as it must be. Without a loop: ``asyncio.run`` it.

        Args:
            database_url: of the service's role, ``trails_app``.
            tenant: slug or UUID.
            agent: the agent's id.
            master_key: 32 bytes, or 64 hex; None: ``TRAILS_MASTER_KEY`` or the data folder's file.
            tracker: whose current session and node the actions belong to.
            approval_timeout: seconds that a call waits for a person.
            attempts: times that one question is asked while the database is away.
            pool_size: connections at most.
            timeout: seconds that a question may take, all attempts together; then it is denied.
            on_pending: is told once of each action that a call waits for.

        Raises:
            StartupError: the database is away, refuses, does not answer within ``OPEN_SECS``, or is not as it
                must be; a setting does not fit.
            NotFoundError: no such tenant.
        """
        settings = _settings(database_url, master_key, pool_size)

        async def start() -> Backend:
            try:
                return await LedgerBackend.open(settings, tenant, agent)
            except TrailsError as error:  # a forked child opens its own: to a question that is no decision
                raise _refusal(error) from error

        guard = cls(
            Worker(start, _close, "trails-guard"),
            tracker=tracker,
            approval_timeout=approval_timeout,
            attempts=attempts,
            timeout=timeout,
            on_pending=on_pending,
        )
        try:
            await guard._worker.acall(_ready, timeout=OPEN_SECS)
        except BaseException as error:
            await asyncio.to_thread(guard._worker.close, 0.0)
            raise _why_not(error, database_url) from error
        return guard


class LedgerBackend:
    """One agent in a ledger of this process."""

    keeps = False

    def __init__(self, ledger: Ledger, resources: AsyncExitStack, principal: Principal) -> None:
        self._ledger = ledger
        self._resources = resources
        self._principal = principal

    @classmethod
    async def open(cls, settings: Settings, tenant: str | UUID, agent: str) -> LedgerBackend:
        """Pool and ledger; the agent is proven to the ledger by its own token, as over HTTP."""
        from app.opening import connect  # noqa: PLC0415  the server's packages
        from app.settings import Secrets  # noqa: PLC0415  as above
        from app.tokens import Tokens  # noqa: PLC0415  as above

        assert settings.master_key is not None  # noqa: S101  for the type checker: _settings puts it in
        async with AsyncExitStack() as stack:
            secrets = Secrets(operator_token="", master_key=settings.master_key)
            ledger = await stack.enter_async_context(connect(settings, secrets))
            tenant_id = await _tenant_id(ledger, tenant)
            await ledger.public_key(tenant_id)  # that it exists, and that its keys open
            tokens = Tokens(settings.master_key, "", tenant_id)
            principal = tokens.authenticate(f"Bearer {tokens.issue(tenant_id, agent)}".encode())
            return cls(ledger, stack.pop_all(), principal)

    async def ask(self, body: bytes, key: str) -> Decision:
        """As POST …/actions."""
        from app.guard.bodies import Ask  # noqa: PLC0415  as above
        from app.principal import Permission  # noqa: PLC0415  as above

        async def asked() -> JsonObject:
            parsed = _parsed(body)
            mark = _stamp("actions", key, parsed)
            ask = Ask.parse(parsed.value)
            return (await self._ledger.request(self._may(Permission.REQUEST), ask, mark)).to_json()

        return decision_of(await _answered(asked()))

    async def standing(self, action_id: str) -> Standing:
        """As GET …/actions/{id}."""
        from app.principal import Permission  # noqa: PLC0415  as above

        return standing_of(await _answered(self._ledger.action(self._may(Permission.READ_ACTION), action_id)))

    async def claim(self, action_id: str, body: bytes, key: str) -> Allowed:
        """As POST …/actions/{id}/claim."""
        from app.guard.bodies import Claim  # noqa: PLC0415  as above
        from app.principal import Permission  # noqa: PLC0415  as above

        async def claimed() -> JsonObject:
            parsed = _parsed(body)
            mark = _stamp(f"actions/{action_id}/claim", key, parsed)
            grant = self._may(Permission.CLAIM)
            return await self._ledger.claim(grant, action_id, Claim.parse(parsed.value), mark)

        return claimed_of(await _answered(claimed()))

    async def report(self, outcome: Outcome) -> None:
        """As POST …/actions/{id}/outcome."""
        from app.guard.bodies import Report  # noqa: PLC0415  as above
        from app.guard.words import OutcomeStatus  # noqa: PLC0415  as above
        from app.principal import Permission  # noqa: PLC0415  as above

        async def reported() -> JsonObject:
            parsed = _parsed(report_body(outcome))
            mark = _stamp(f"actions/{outcome.action_id}/outcome", outcome.key, parsed)
            report = Report.parse(parsed.value)
            harm = report.status is OutcomeStatus.HARMFUL
            grant = self._may(Permission.REPORT_HARM if harm else Permission.REPORT)
            return await self._ledger.report(grant, outcome.action_id, report, mark)

        await _answered(reported())

    async def log_uuid(self) -> UUID:
        """As in the agent's status."""
        from app.principal import Permission  # noqa: PLC0415  as above

        status = await _answered(self._ledger.status(self._may(Permission.READ_STATUS)))
        return UUID(str(status["log_uuid"]))

    def how_to_approve(self, action_id: str) -> str:
        """The console's page and the operators' request, at whichever service runs on this database."""
        agent = self._principal.agent_id
        path = f"…/v1/agents/{agent}/actions/{action_id}/approve"
        return f'an operator approves it at …/approvals, or by POST {path} {{"approver": "…"}}'

    def keep(self, outcome: Outcome) -> bool:  # noqa: ARG002  as the protocol has it
        """There is no place but this process."""
        return False

    async def close(self) -> None:
        """Settles accepted appends and closes the pool."""
        await self._resources.aclose()

    def _may(self, permission: Permission) -> Grant:
        from app.principal import grant  # noqa: PLC0415  as above

        return grant(self._principal, permission, self._principal.agent_id)


def _settings(database_url: str, master_key: bytes | str | None, pool_size: int) -> Settings:
    from app.settings import (  # noqa: PLC0415  as above
        MASTER_KEY_FILE,
        Settings,
        master_key_at_hand,
        settings_of_this_process,
    )

    here = settings_of_this_process() if master_key is None else Settings()
    key = master_key_at_hand(here) if master_key is None else master_key
    if isinstance(key, str):
        key = bytes.fromhex(key) if re.fullmatch(r"[0-9a-fA-F]{64}", key) else None
    if key is None or len(key) != 32:
        raise StartupError(
            "no master key of 32 bytes: give master_key=…, or TRAILS_MASTER_KEY, or TRAILS_DATA_DIR with "
            f"{MASTER_KEY_FILE}"
        )
    return msgspec.structs.replace(here, database_url=database_url, master_key=key, pool_size=pool_size)


async def _tenant_id(ledger: Ledger, tenant: str | UUID) -> UUID:
    if isinstance(tenant, UUID):
        return tenant
    try:
        return UUID(tenant)
    except ValueError:
        return await ledger.tenant_id(tenant)


def _why_not(error: BaseException, database_url: str) -> BaseException:
    """Why opening failed, in the words of the server's own start."""
    if isinstance(error, NoResultError):
        place = database_url.rpartition("@")[2].partition("?")[0]  # without user and password
        return StartupError(
            f"the database at {place!r} did not answer within {OPEN_SECS:g} seconds; check the URL, and what "
            "stands between (a proxy, a pooler), and that the server runs"
        )
    return error.__cause__ if isinstance(error, Refusal) and error.__cause__ is not None else error


async def _ready(_: Backend) -> None:
    """Nothing: that it can be called is the answer."""


async def _close(backend: Backend) -> None:
    await backend.close()


def _parsed(body: bytes) -> Parsed:
    from app.chain.strict import MAX_VALUES, parse  # noqa: PLC0415  as above

    return parse(body, max_values=MAX_VALUES)


def _stamp(endpoint: str, key: str, parsed: Parsed) -> Stamp:
    from app.chain.canonical import canonical_parsed  # noqa: PLC0415  as above
    from app.ledger.idempotency import stamp  # noqa: PLC0415  as above

    return stamp(endpoint, key, canonical_parsed(parsed))


async def _answered(asking: Awaitable[R]) -> R:
    """The ledger's answer. Whatever it raises is no decision."""
    try:
        return await asking
    except TrailsError as error:
        raise _refusal(error) from error
    except Exception as error:
        _log.exception("the ledger failed unexpectedly")
        raise Refusal(UNAVAILABLE, f"{type(error).__name__}: {error}") from error


def _refusal(error: TrailsError) -> Refusal:
    if isinstance(error, _NO_DECISION):
        return Refusal(UNAVAILABLE, error.message, passing=isinstance(error, UnavailableError))
    return Refusal(error.code, error.message, passing=isinstance(error, TooManyRequestsError))
