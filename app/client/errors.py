"""Every error that the client raises on purpose, in one tree.

::

    ClientError
    ├── ConfigurationError        no token, no agent, a URL that is none: nothing was sent
    ├── ActionDenied              a guarded tool was not run (app.client.decisions)
    ├── OutcomeRefusedError       the service does not take an outcome (app.client.decisions)
    ├── OutboxError               the journal on this machine
    │   ├── OutboxFullError       the bound is reached and the time to wait is over: nothing was recorded
    │   ├── OutboxClosedError     used after ``close()``
    │   └── SpoolError            the spool folder or a file in it cannot be used (disk full, rights)
    ├── UnreachableError          no answer: nobody knows whether the service has the request
    ├── BrokenAnswerError         an answer that is not one of Lineage Trails
    └── ServiceError              the service said no; ``status``, ``code``, ``retry_after``
        ├── RefusedError          400, 413, 415 …: this request is wrong and will stay wrong
        ├── UnauthorizedError     401: the token is missing or not valid
        ├── ForbiddenError        403: the token may not do this
        ├── NotFoundError         404: no such agent or action for this token
        ├── ConflictError         409: the present state forbids it
        └── BusyError             429, 5xx: passing trouble; send the same again with the same key

The client needs nothing of the server's code, so this tree is apart from ``app.errors``.
"""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """Root of all errors of the client. ``str(error)`` says what happened and what to do."""


class ConfigurationError(ClientError, ValueError):
    """A setting is missing or cannot be right. Nothing was sent."""


class OutboxError(ClientError):
    """Something about the journal on this machine."""


class OutboxFullError(OutboxError):
    """The journal holds as much as it may, and it did not get emptier in time: this was not recorded."""


class OutboxClosedError(OutboxError):
    """The outbox was closed; make a new tracker."""


class SpoolError(OutboxError):
    """The spool folder or a file in it cannot be used. What was to be recorded was not."""


class UnreachableError(ClientError):
    """No answer came: nobody knows whether the service has the request. Send it again with its key."""


class BrokenAnswerError(ClientError):
    """The answer is none of Lineage Trails: is there something else at the URL, or a proxy before it?"""


class ServiceError(ClientError):
    """The service refused.

    Args:
        status: of HTTP.
        code: the service's code, such as ``not_found``; ``http_<status>`` when a proxy answered in its place.
        message: the service's sentence.
        retry_after: seconds to wait before the same may be sent again, when the service said so.
        problem: the whole problem document.
        request_id: to find the request in the service's log.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after: float | None = None,
        problem: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.problem = problem or {}
        self.request_id = request_id
        super().__init__(f"{status} {code}: {message}")


class RefusedError(ServiceError):
    """The request is wrong and will stay wrong: change it."""


class UnauthorizedError(ServiceError):
    """The token is missing or not valid: look at LINEAGE_TRAILS_TOKEN."""


class ForbiddenError(ServiceError):
    """The token may not do this: an agent's token reaches that agent alone."""


class NotFoundError(ServiceError):
    """No such agent or action for this token."""


class ConflictError(ServiceError):
    """The request is sound, but the present state forbids it."""


class BusyError(ServiceError):
    """Passing trouble. Send the same again, with the same key, after ``retry_after`` seconds."""


_BY_STATUS: dict[int, type[ServiceError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: BusyError,
    409: ConflictError,
    425: BusyError,
    429: BusyError,
}


def error_class(status: int) -> type[ServiceError]:
    """The class for a status that is none of success."""
    return _BY_STATUS.get(status, BusyError if status >= 500 else RefusedError)
