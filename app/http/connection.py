"""One HTTP connection: uvicorn's fast parser, with the limits and the answers that it lacks.

What is added: headers and trailers are bounded, a head must arrive in time and an answer be taken in time, an
``Upgrade`` is ignored, framing that two readers could understand differently is refused, every refusal is a
problem document, and a client that has closed its sending side still gets its answer. An answer's head goes
out with its body.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.errors import BadRequestError
from app.http.edge import COMMON_HEADERS, LINGER_BYTES, LINGER_SECS
from app.http.exchange import CUT_OFF, ENDED, WHOLE, tell_leaving
from app.http.hosts import name_in
from app.http.peer import NOBODY
from app.http.problems import MEDIA_TYPE, problem_of
from app.http.taking import TAKE_SECS, UNTAKEN_BYTES, Taking

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line, headers and trailers together; a client that sends more is cut off, not collected."""

HEAD_SECS: Final = 15.0
"""A connection's first request head must be whole after this time, each later one so long after it began."""

_LINE_EXTRA: Final = 4
"""Bytes of a header line beside name and value: colon, space, CR, LF."""

_JOINED_BYTES: Final = 64 * 1024
"""A larger piece of a body is not copied to go out with the head."""

_log = logging.getLogger("trails.http")


class _RefusedError(Exception):
    """Raised in the parser's callbacks: a message that is well-formed and still not served."""


class _Answer(asyncio.Transport):
    """The transport as one answer sees it: head and first piece of the body are one write.

    uvicorn writes them one after the other, and each write is a system call that wakes the client up.
    """

    __slots__ = ("_begun", "_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._head: bytes | None = None
        self._begun = False

    def write(self, data: bytes) -> None:  # type: ignore[override]  # bytes are all that uvicorn writes
        """Keeps the head, and sends whatever else is written at once."""
        if self._head is not None:
            head, self._head = self._head, None
            if len(data) <= _JOINED_BYTES:
                data = head + data
            else:
                self._transport.write(head)
        elif self._cycle.response_started and not self._begun:
            self._head, self._begun = data, True
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Sends a head that no body came after."""
        if self._head is not None:
            self.write(b"")

    def close(self) -> None:
        """Ends the connection when all is sent."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection ends."""
        return self._transport.is_closing()


class Connection(HttpToolsProtocol):
    """Serves the requests of one connection."""

    head_secs: float = HEAD_SECS
    take_secs: float = TAKE_SECS
    untaken_bytes: int = UNTAKEN_BYTES

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  uvicorn's arguments, unchanged
        super().__init__(*args, **kwargs)
        # uvicorn logs paths as they were sent; the application logs each request itself, by its route.
        self.access_log = False
        self._in_head = False
        self._in_body = False
        self._upgrade_asked = False
        self._header_bytes = 0
        self._unparsed_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self.taking: Taking | None = None
        self._ended = False
        self._refusal: bytes | None = None
        self._refusal_sent = False
        self._broken: RequestResponseCycle | None = None
        self._answer: _Answer | None = None
        self._discarded = 0

    # --- what the transport calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """A client is there; from now on it owes us a request."""
        super().connection_made(transport)
        peer = self.client[0] if self.client else NOBODY
        self.taking = Taking(transport, self.loop, peer=peer, secs=self.take_secs, most=self.untaken_bytes)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._unwatch_head()
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not take what it is sent as fast as it is made."""
        super().pause_writing()
        self._watch_taking()

    def resume_writing(self) -> None:
        """It has taken nearly all of it."""
        super().resume_writing()
        self._taken()

    def shutdown(self) -> None:
        """The server ends, by whatever told it: what is being answered is to come to its end."""
        if not self._idle:
            tell_leaving(self.cycle.scope)  # type: ignore[arg-type]  # the same by two names
        super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came after the last answer; what is left of it is still sent."""
        self._watch_taking()
        super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the connection."""
        self._unset_keepalive_if_required()
        if self._refusal is not None:
            self._discard(data)
            return
        self._unparsed_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
            return
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        elif self._in_head or self._idle:
            self._watch_head()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn says None, which closes at once
        """The client has sent everything. True keeps its receiving side open until it has its answer."""
        self._ended = True
        if self._refusal is None and (self._in_head or self._in_body):
            self._refuse("the connection ended before the request did")
        if self._refusal is not None:
            return not self._refusal_sent
        if not self._idle:
            self.cycle.keep_alive = False
            self.cycle.scope[ENDED] = True  # type: ignore[literal-required]  # as WHOLE
        return not self._idle

    # --- what the parser calls ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_head = True
        self._header_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is counted and ignored: it must not change a request under way."""
        self._count(len(name) + len(value) + _LINE_EXTRA)
        if self._in_body:
            return
        name = name.lower()  # as uvicorn does, without another call for each header
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is over: refuses what is framed ambiguously, else begins to serve."""
        self._unparsed_bytes = 0
        self._in_head = False
        self._unwatch_head()
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _RefusedError("the method CONNECT is not served")
            self._upgrade_asked = True
            return
        self._check_framing()
        if not self.url.startswith(b"/"):
            self._check_absolute()
        super().on_headers_complete()
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body; how much of it is kept is the application's matter."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._unparsed_bytes = 0
        self._in_body = False
        if not self._upgrade_asked:
            self.scope[WHOLE] = True  # type: ignore[literal-required]  # ASGI lets servers add keys of their own
            super().on_message_complete()

    # --- what the application's answers call --------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer is out; the refusal of what came after it may follow."""
        if self._answer is not None:
            self._answer.flush()
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_taking()
        if self._refusal is not None and self._idle:
            self._send_refusal()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401  uvicorn's type
        if cycle is self._broken:  # it waited for its turn, and its body turned out to be malformed
            self._send_refusal()
        else:
            self._answer = cycle.transport = _Answer(cycle, self.transport)
            if self.taking is not None:
                cycle.scope[CUT_OFF] = self.taking.cut_off  # type: ignore[literal-required]  # as WHOLE
            super()._start_asgi_task(cycle, app)

    # --- parsing ------------------------------------------------------------------------------------

    @property
    def _idle(self) -> bool:
        """Whether every request so far is answered: the newest is answered last."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._parse_again()
            else:
                return

    def _parse_again(self) -> None:
        """Parses the head once more without the wish to upgrade (RFC 9110, section 7.8: it may be ignored).

        The parser takes an upgrade as granted: it ends the message with its head and would read the body as
        whatever comes next.
        """
        head = self._head_without_upgrade()
        self._upgrade_asked = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self.parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                lines.append(b"connection: " + _without_upgrade(value))
            elif name != b"upgrade":
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _count(self, size: int) -> None:
        self._unparsed_bytes = 0
        self._header_bytes += size
        if self._header_bytes > MAX_HEAD_BYTES:
            raise _RefusedError(_TOO_LARGE)

    def _check_framing(self) -> None:
        """Refuses what another reader of the same bytes, such as a proxy, could take for something else."""
        hosts = 0
        codings: list[bytes] = []
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                codings.append(value)
        old = self.parser.get_http_version() == "1.0"
        if codings and (old or len(codings) > 1 or codings[0].lower() != b"chunked"):
            raise _RefusedError("the only Transfer-Encoding is chunked, once, in HTTP/1.1")
        if hosts > 1 or (hosts == 0 and not old):
            raise _RefusedError("there must be exactly one Host header")

    def _check_absolute(self) -> None:
        """Refuses a target in absolute form that names another host: readers differ on which one counts."""
        if httptools.parse_url(self.url).path is None:
            raise _RefusedError("the request target has no path")
        authority = self.url.partition(b"://")[2].partition(b"/")[0]
        hosts = [name_in(value) for name, value in self.headers if name == b"host"]
        if hosts != [name_in(authority)]:
            raise _RefusedError("the request target names another host than the Host header")

    # --- deadlines ----------------------------------------------------------------------------------

    def _watch_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_secs, self._head_is_late)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._refusal is not None:
            return
        if self._in_head:
            self._refuse(f"the request's head did not arrive within {self.head_secs:g} seconds")
        elif self._idle:
            self.transport.close()

    def _watch_taking(self) -> None:
        if self.taking is not None and self.taking.untaken:
            everybody = (each.taking for each in self.connections if isinstance(each, Connection))
            self.taking.begin(taking for taking in everybody if taking is not None)

    def _taken(self) -> None:
        if self.taking is not None:
            self.taking.end()

    # --- refusing -----------------------------------------------------------------------------------

    def _refuse(self, reason: str) -> None:
        """Answers with a problem, after the answers to the requests before, and reads no further."""
        self._unwatch_head()
        broken = self.cycle if self._in_body else None
        if broken is not None and broken.response_started:
            self.transport.close()  # it has its answer
            return
        self._refusal = self._problem(reason)
        self._broken = broken
        if broken is not None and all(waiting is not broken for waiting, _ in self.pipeline):
            # The application gets to know that no more of the body will come, and its answer goes nowhere.
            broken.disconnected = True
            broken.message_event.set()
            self._send_refusal()
        elif self._idle:
            self._send_refusal()

    def _problem(self, reason: str) -> bytes:
        request_id = secrets.token_hex(16)
        problem = problem_of(BadRequestError(reason), request_id)
        peer = self.client[0] if self.client else NOBODY
        _log.info("refused: %s", reason, extra={"fields": {"request_id": request_id, "peer": peer}})
        headers = [
            *self.server_state.default_headers,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(problem.body)).encode()),
            *COMMON_HEADERS,
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        return STATUS_LINE[problem.status] + lines + b"\r\n" + problem.body

    def _send_refusal(self) -> None:
        """Sends it and ends our side; what is still coming is thrown away, so that it gets to be read."""
        if self._refusal is None or self._refusal_sent or self.transport.is_closing():
            return
        self._refusal_sent = True
        self.transport.write(self._refusal)
        if self._ended:
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECS, self.transport.close)

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES:
            self.transport.abort()


_TOO_LARGE: Final = f"headers and trailers of more than {MAX_HEAD_BYTES} bytes"


def _without_upgrade(connection: bytes) -> bytes:
    return b",".join(token for token in connection.split(b",") if token.strip().lower() != b"upgrade")


def _reason(error: httptools.HttpParserError) -> str:
    """Why a message was refused, in words that hold nothing of what was sent."""
    cause = error.__context__
    if isinstance(cause, _RefusedError):
        return str(cause)
    if isinstance(cause, httptools.HttpParserInvalidURLError):
        return "the request target is not a URL"
    if isinstance(error, httptools.HttpParserCallbackError):
        _log.error("unexpected error while a request was parsed", exc_info=cause)
        return "the request cannot be read"
    return f"not an HTTP request: {error}"
