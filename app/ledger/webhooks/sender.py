"""Sending one event: to the address that was looked at, without redirects, for a bounded time."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Self

import httpx2
import msgspec

from app.ledger.feed.event import MEDIA_TYPE
from app.ledger.webhooks.signing import headers_of
from app.ledger.webhooks.target import TargetError, parse_url, resolved

if TYPE_CHECKING:
    from app.ledger.webhooks.target import Networks

CONNECT_SECS: Final = 5.0
ATTEMPT_SECS: Final = 15.0
"""How long one attempt may take in all; Standard Webhooks asks for 15 to 30."""

TAKEN: Final = range(200, 300)
GONE: Final = 410
"""Standard Webhooks: the receiver wants no more of this."""


_SECONDS: Final = re.compile(r"[0-9]{1,9}")


class Attempt(msgspec.Struct, frozen=True):
    """How an attempt went: the status of the answer, or None and why there was none.

    ``again_secs``: for how long the receiver asks to be left alone, as it says it.
    """

    status: int | None
    problem: str | None
    again_secs: float = 0.0

    @property
    def is_taken(self) -> bool:
        """Whether the receiver has the event."""
        return self.status in TAKEN


class Sender:
    """Sends to one webhook; its connections are its own, so that none is used for another's name.

    Args:
        url: where to.
        secret: what signs.
        networks: where webhooks may go although it is not public.
    """

    def __init__(self, url: str, secret: bytes, networks: Networks) -> None:
        self._url = parse_url(url)
        self._secret = secret
        self._networks = networks
        self._client = httpx2.AsyncClient(
            verify=_tls(),
            trust_env=False,  # a proxy of the environment would go where nobody has looked
            follow_redirects=False,
            timeout=httpx2.Timeout(ATTEMPT_SECS, connect=CONNECT_SECS),
            limits=httpx2.Limits(max_connections=1, max_keepalive_connections=1),
        )

    async def __aenter__(self) -> Self:
        """Begins."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends its connections."""
        await self._client.aclose()

    async def send(self, event_id: str, body: bytes) -> Attempt:
        """Makes one attempt. Never raises for what the network or the receiver does."""
        try:
            async with asyncio.timeout(ATTEMPT_SECS):
                return await self._send(event_id, body)
        except TargetError as error:
            return Attempt(None, str(error))
        except (TimeoutError, httpx2.TimeoutException):
            return Attempt(None, f"no answer within {ATTEMPT_SECS:g} seconds")
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            return Attempt(None, _tls_trouble(error) or f"it cannot be reached ({type(error).__name__})")

    async def _send(self, event_id: str, body: bytes) -> Attempt:
        address = await resolved(self._url, self._networks)
        host = self._url.hostname or ""
        place = f"[{address}]" if address.version == 6 else str(address)
        port = "" if self._url.port is None else f":{self._url.port}"
        query = f"?{self._url.query}" if self._url.query else ""
        url = f"{self._url.scheme}://{place}{port}{self._url.path or '/'}{query}"
        headers = {
            **headers_of(self._secret, event_id, int(time.time()), body),
            "host": self._url.netloc,
            "content-type": MEDIA_TYPE,
            "user-agent": "lineage-trails",
        }
        request = self._client.build_request(
            "POST", url, content=body, headers=headers, extensions={"sni_hostname": host}
        )
        # What the receiver answers beyond the status is not read: it could be without an end.
        answer = await self._client.send(request, stream=True)
        await answer.aclose()
        problem = None if answer.status_code in TAKEN else f"it answered {answer.status_code}"
        return Attempt(answer.status_code, problem, _again_secs(answer.headers.get("retry-after", "")))


def _again_secs(text: str) -> float:
    """Seconds of a ``Retry-After``, a number or a date (RFC 9110); 0 for none, and for what is neither."""
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _tls_trouble(error: BaseException | None) -> str | None:
    """What was wrong with the receiver's TLS, if that was it: an error of the client does not say."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not valid: {error.verify_message}"
        if isinstance(error, ssl.SSLError):
            return f"it does not speak TLS as it should ({error.reason or 'SSLError'})"
        error = error.__cause__ or error.__context__
    return None


_context: ssl.SSLContext | None = None


def _tls() -> ssl.SSLContext:
    """One context for all: reading the certificates takes long."""
    global _context  # noqa: PLW0603  made once, when it is needed first
    if _context is None:
        _context = ssl.create_default_context()
    return _context
