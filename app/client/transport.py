"""HTTP to the service: one way to send a request and to read the answer, for threads and for coroutines.

Nothing here tries again: whoever sends knows whether that is right. TLS is verified. Redirects are not
followed: a token must not be carried to where an answer points. A forked child opens connections of its own.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import time
import weakref
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Generic, Literal, Self, TypeAlias, TypeVar

import httpx2
import msgspec

from app.client.errors import BrokenAnswerError, ServiceError, UnreachableError, error_class
from app.client.settings import Service

C = TypeVar("C")
Clients: TypeAlias = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient]

JSON = "application/json"
NDJSON = "application/x-ndjson"
PROBLEM = "application/problem+json"

TIMEOUT_SECS = 30.0
"""For one answer. The service gives up on its database sooner and says so with 503."""

CONNECT_SECS = 5.0

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""More than any answer to this client has."""

_SHOWN_CHARS = 200
_ABANDONED: list[object] = []
"""Connections of a parent process: closing them here would say goodbye on them."""


class Request(msgspec.Struct, frozen=True):
    """What is sent: always the same bytes, however often."""

    method: str
    path: str
    """From the service's root, such as ``/v1/agents/a/actions``."""
    body: bytes | None = None
    content_type: str = JSON
    idempotency_key: str | None = None

    def headers(self) -> dict[str, str]:
        """The headers that belong to the request itself."""
        headers = {} if self.body is None else {"Content-Type": self.content_type}
        if self.idempotency_key is not None:
            headers["Idempotency-Key"] = self.idempotency_key
        return headers


class Answer(msgspec.Struct, frozen=True):
    """What came back, whatever it says."""

    status: int
    content_type: str
    """Without parameters, in lower case."""
    body: bytes
    retry_after: float | None = None
    """Seconds to wait, when the service said so."""
    request_id: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it is a success."""
        return 200 <= self.status < 300

    def value(self) -> Any:  # noqa: ANN401  any JSON
        """The JSON of a success.

        Raises:
            ServiceError: the leaf for the status.
            BrokenAnswerError: a success that is not JSON.
        """
        if not self.ok:
            raise self.error()
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BrokenAnswerError(f"{self._shown()}: the answer is not JSON") from None

    def error(self) -> ServiceError:
        """The answer as an error: the problem document's words where there is one."""
        problem = self.problem() or {}
        code, message = problem.get("code"), problem.get("error") or problem.get("detail")
        return error_class(self.status)(
            self.status,
            code if isinstance(code, str) else f"http_{self.status}",
            message if isinstance(message, str) else self._shown(),
            retry_after=self.retry_after,
            problem=problem,
            request_id=self.request_id,
        )

    def problem(self) -> dict[str, Any] | None:
        """The problem document; None when it is none of the service's, but perhaps a proxy's page."""
        if self.content_type != PROBLEM:
            return None
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return found if isinstance(found, dict) and isinstance(found.get("code"), str) else None

    def _shown(self) -> str:
        text = self.body[:_SHOWN_CHARS].decode("utf-8", "replace")
        return f"{self.status} {self.content_type or 'without a type'}: {text!r}"


class _Way(Generic[C]):
    """A way to the service, with the connections of this process; a forked child opens its own.

    Args:
        service: where to, and for whom.
        timeout: seconds for one answer.
        verify: True, or an ``ssl.SSLContext`` with the authority of your own service.
    """

    def __init__(
        self,
        service: Service,
        *,
        timeout: float = TIMEOUT_SECS,
        verify: ssl.SSLContext | Literal[True] = True,
    ) -> None:
        self.service: Final = service
        self._timeout = timeout
        self._options = _options(service, timeout, verify)
        self._open: C | None = None
        self._pid = os.getpid()

    def _own(self) -> C | None:
        """The connections that this process opened."""
        if self._pid != os.getpid():
            _ABANDONED.append(dict(self._open) if isinstance(self._open, Mapping) else self._open)
            self._open, self._pid = None, os.getpid()
        return self._open


class Transport(_Way[httpx2.Client]):
    """Sends requests from threads."""

    def send(self, request: Request) -> Answer:
        """One attempt.

        Raises:
            UnreachableError: no whole answer came.
        """
        incoming = _Incoming(self._timeout)
        try:
            with self._connected().stream(
                request.method, request.path, content=request.body, headers=request.headers()
            ) as found:
                for chunk in found.iter_bytes():
                    incoming.add(chunk)
        except _NO_ANSWER as error:
            raise _unreachable(self.service, error) from error
        return _answer(found, incoming.body)

    def call(
        self,
        method: str,
        path: str,
        value: Any = None,  # noqa: ANN401  any JSON
        *,
        idempotency_key: str | None = None,
    ) -> Any:  # noqa: ANN401  any JSON
        """Sends ``value`` as JSON (None: no body) and returns the answer's JSON.

        Raises:
            UnreachableError: no whole answer came.
            ServiceError: the service refused.
            BrokenAnswerError: something else answered.
        """
        return self.send(json_request(method, path, value, idempotency_key)).value()

    def close(self) -> None:
        """Closes its connections; it may be used again."""
        client, self._open = self._own(), None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self) -> httpx2.Client:
        client = self._own()
        if client is None:
            client = self._open = httpx2.Client(**self._options)
        return client


class AsyncTransport(_Way[Clients]):
    """Sends requests from coroutines, of any event loop: each has connections of its own."""

    async def send(self, request: Request) -> Answer:
        """One attempt.

        Raises:
            UnreachableError: no whole answer came.
        """
        incoming = _Incoming(self._timeout)
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._connected().stream(
                    request.method, request.path, content=request.body, headers=request.headers()
                ) as found,
            ):
                async for chunk in found.aiter_bytes():
                    incoming.add(chunk)
        except _NO_ANSWER as error:
            raise _unreachable(self.service, error) from error
        return _answer(found, incoming.body)

    async def call(
        self,
        method: str,
        path: str,
        value: Any = None,  # noqa: ANN401  any JSON
        *,
        idempotency_key: str | None = None,
    ) -> Any:  # noqa: ANN401  any JSON
        """As ``Transport.call``."""
        return (await self.send(json_request(method, path, value, idempotency_key))).value()

    async def aclose(self) -> None:
        """Closes the connections of the running loop; it may be used again."""
        clients = self._own()
        client = None if clients is None else clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _connected(self) -> httpx2.AsyncClient:
        clients = self._own()
        if clients is None:
            clients = self._open = weakref.WeakKeyDictionary()
        loop = asyncio.get_running_loop()
        if loop not in clients:
            clients[loop] = httpx2.AsyncClient(**self._options)
        return clients[loop]


def json_request(
    method: str,
    path: str,
    value: Any,  # noqa: ANN401  any JSON
    idempotency_key: str | None = None,
) -> Request:
    """A request with ``value`` as its JSON body; None means no body."""
    body = None if value is None else msgspec.json.encode(value)
    return Request(method, path, body, idempotency_key=idempotency_key)


@lru_cache(maxsize=1)
def user_agent() -> str:
    """``lineage-trails-python/<version>``."""
    try:
        return f"lineage-trails-python/{version('lineage-trails')}"
    except PackageNotFoundError:
        return "lineage-trails-python"


_NO_ANSWER = (httpx2.RequestError, httpx2.StreamError, OSError)


def _options(service: Service, timeout: float, verify: ssl.SSLContext | Literal[True]) -> dict[str, Any]:
    return {
        "base_url": service.url,
        "headers": {
            "Authorization": f"Bearer {service.token}",
            "User-Agent": user_agent(),
            "Accept": f"{JSON}, {NDJSON}, {PROBLEM}",
        },
        "timeout": httpx2.Timeout(timeout, connect=min(CONNECT_SECS, timeout)),
        "verify": verify,
        "follow_redirects": False,
    }


def _unreachable(service: Service, error: Exception) -> UnreachableError:
    return UnreachableError(f"{service.url} did not answer: {type(error).__name__}: {error}")


class _Incoming:
    """The body of an answer, which may neither trickle for ever nor be without end."""

    def __init__(self, timeout: float) -> None:
        self._until = time.monotonic() + timeout
        self._body = bytearray()

    def add(self, chunk: bytes) -> None:
        """Some more of it. Raises ``OSError`` when that is too much, or it comes too late."""
        self._body += chunk
        if len(self._body) > MAX_ANSWER_BYTES:
            raise OSError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > self._until:
            raise TimeoutError("the whole answer did not come in time")

    @property
    def body(self) -> bytes:
        """What came."""
        return bytes(self._body)


def _answer(found: httpx2.Response, body: bytes) -> Answer:
    return Answer(
        found.status_code,
        found.headers.get("content-type", "").partition(";")[0].strip().lower(),
        body,
        _seconds(found.headers.get("retry-after")),
        found.headers.get("x-request-id"),
    )


def _seconds(retry_after: str | None) -> float | None:
    """RFC 9110: a number of seconds or a date. What is neither counts as not said."""
    if retry_after is None:
        return None
    try:
        secs = float(retry_after)
    except ValueError:
        try:
            secs = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return None
    return max(secs, 0.0) if math.isfinite(secs) else None
