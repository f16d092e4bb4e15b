"""The guard of a service, over HTTP."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from uuid import UUID

import msgspec

from app.client.backend import Outcome, Refusal, Standing
from app.client.decisions import UNAVAILABLE, Allowed, Decision, Denied, Pending
from app.client.errors import BusyError, ClientError, OutboxError, ServiceError
from app.client.outbox import Outbox
from app.client.transport import AsyncTransport, Request

_log = logging.getLogger("trails.client")


class ServiceBackend:
    """One agent at one service.

    Args:
        transport: speaks to the service; closed with this.
        outbox: keeps outcomes on this machine while the service is away; its owner closes it.
    """

    def __init__(self, transport: AsyncTransport, outbox: Outbox | None = None) -> None:
        self._transport = transport
        self._outbox = outbox
        self._agent = f"/v1/agents/{transport.service.agent}"
        self.keeps = outbox is not None
        self._log_uuid: UUID | None = None

    async def ask(self, body: bytes, key: str) -> Decision:
        """POST …/actions."""
        answer = await self._call("POST", f"{self._agent}/actions", body, key)
        return decision_of(answer)

    async def standing(self, action_id: str) -> Standing:
        """GET …/actions/{id}."""
        standing = standing_of(await self._call("GET", self._action(action_id)))
        if standing.action_id != action_id:
            raise _no_sense("action")
        return standing

    async def claim(self, action_id: str, body: bytes, key: str) -> Allowed:
        """POST …/actions/{id}/claim."""
        allowed = claimed_of(await self._call("POST", f"{self._action(action_id)}/claim", body, key))
        if allowed.action_id != action_id:
            raise _no_sense("claim")
        return allowed

    async def report(self, outcome: Outcome) -> None:
        """POST …/actions/{id}/outcome."""
        await self._call("POST", self._report_path(outcome), report_body(outcome), outcome.key)

    async def log_uuid(self) -> UUID:
        """GET …: the status names the chain, which is the same for ever."""
        if self._log_uuid is None:
            status = await self._call("GET", self._agent)
            try:
                self._log_uuid = UUID(status["log_uuid"])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise _no_sense("status") from error
        return self._log_uuid

    def how_to_approve(self, action_id: str) -> str:
        """The console's page of all that waits, and the operators' request."""
        url = self._transport.service.url
        request = f'POST {url}{self._action(action_id)}/approve {{"approver": "…"}}'
        return f"an operator approves it at {url}/approvals, or by {request}"

    def keep(self, outcome: Outcome) -> bool:
        """Puts the report into the outbox. A journal that is full or cannot be written is no place."""
        if self._outbox is None:
            return False
        try:
            self._outbox.put(self._report_path(outcome), report_body(outcome), outcome.key, timeout=0)
        except OutboxError as error:
            _log.error("the outcome of %s is kept in memory only: %s", outcome.action_id, error)
            return False
        return True

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.aclose()

    def _report_path(self, outcome: Outcome) -> str:
        return f"{self._action(outcome.action_id)}/outcome"

    def _action(self, action_id: str) -> str:
        return f"{self._agent}/actions/{quote(action_id, safe='')}"

    async def _call(
        self, method: str, path: str, body: bytes | None = None, key: str | None = None
    ) -> Mapping[str, Any]:
        try:
            answer = (await self._transport.send(Request(method, path, body, idempotency_key=key))).value()
        except BusyError as error:
            raise _busy(error) from error
        except ServiceError as error:
            raise _refusal(error) from error
        except ClientError as error:
            raise Refusal.unavailable(str(error)) from error
        except Exception as error:  # whatever else went wrong on the way: there is no answer
            raise Refusal.unavailable(f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise _no_sense("answer")
        return answer


def report_body(outcome: Outcome) -> bytes:
    """The body of a report."""
    return encode({"status": outcome.status, "detail": outcome.detail})


def encode(value: Any) -> bytes:  # noqa: ANN401  any JSON
    """JSON as the service reads it.

    Raises:
        ValueError: NaN, Infinity, a lone surrogate.
        TypeError: not JSON.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def decision_of(answer: Mapping[str, Any]) -> Decision:
    """The decision that an answer says.

    Raises:
        Refusal: it says none.
    """
    try:
        return _decision(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise _no_sense("decision") from error


def claimed_of(answer: Mapping[str, Any]) -> Allowed:
    """The permission that the answer to a claim is.

    Raises:
        Refusal: it is none.
    """
    if answer.get("claimed") is not True:
        raise _no_sense("claim")
    try:
        return Allowed(_text(answer, "action_id"), _number(answer, "cost"))
    except (KeyError, ValueError) as error:
        raise _no_sense("claim") from error


def standing_of(answer: Mapping[str, Any]) -> Standing:
    """Where an action stands, as an answer says it.

    Raises:
        Refusal: it does not say it.
    """
    try:
        return msgspec.convert(dict(answer), Standing)
    except msgspec.ValidationError as error:
        raise _no_sense("action") from error


def _decision(answer: Mapping[str, Any]) -> Decision:
    match answer["decision"]:
        case "allowed":
            return Allowed(_text(answer, "action_id"), _number(answer, "cost"), _number(answer, "remaining"))
        case "denied":
            reason = answer["reason"]
            _text(reason, "code")
            return Denied(_text(answer, "action_id"), reason, _seconds(answer))
        case "pending_approval":
            return Pending(_text(answer, "action_id"))
        case other:
            raise ValueError(f"decision {other!r}")


def _text(answer: Mapping[str, Any], name: str) -> str:
    found = answer[name]
    if not isinstance(found, str) or not found:
        raise ValueError(name)
    return found


def _number(answer: Mapping[str, Any], name: str) -> int:
    found = answer[name]
    if type(found) is not int:
        raise ValueError(name)
    return found


def _seconds(answer: Mapping[str, Any]) -> float | None:
    found = answer.get("retry_after_secs")
    if found is not None and type(found) not in {int, float}:
        raise ValueError("retry_after_secs")
    return found


def _busy(error: BusyError) -> Refusal:
    # Everything from 500 on is one thing to a caller: there is no decision.
    code = error.code if error.status < 500 else UNAVAILABLE
    return Refusal(code, error.message, passing=True, retry_after_secs=error.retry_after)


def _refusal(error: ServiceError) -> Refusal:
    if not error.problem:  # something else than the service answered
        return Refusal(UNAVAILABLE, error.message)
    return Refusal(error.code, error.message)


def _no_sense(what: str) -> Refusal:
    return Refusal.unavailable(f"the service's {what} makes no sense")
