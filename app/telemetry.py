r"""Logging: one event is one line, whatever names and paths contain (case H21), and no token in any (H19).

Events of structlog and of the standard library's loggers go through the same processors to the same line.
Control characters, U+0085, U+2028 and U+2029 are written as ``\xNN`` or ``\uNNNN``; a traceback stays on its
event's line with ``\n`` between its lines.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import structlog
from structlog.contextvars import bind_contextvars, merge_contextvars
from structlog.processors import format_exc_info
from structlog.stdlib import ProcessorFormatter
from structlog.types import EventDict, WrappedLogger

REQUESTS: Final = logging.getLogger("trails.requests")
"""Its level says whether requests are events; the events themselves pass it by."""

MAX_PATH_CHARS: Final = 200
"""How much of a path that no route knows is told."""

MAX_SEGMENT_CHARS: Final = 40
"""A longer piece of such a path is left out: no route has one, so it may be a secret of anybody's."""

# C0, DEL, C1 (with U+0085), the line and paragraph separators, and the directional overrides that make a
# line read as another one.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_TOKEN: Final = re.compile(r"(?:agt|trk)_[0-9a-f]{32}[A-Za-z0-9._-]*|(?i:bearer)(?:\s|\\[tnr])+[^\s,;\"']+")
_MARKS: Final = ("agt_", "trk_", "bearer")
"""What every token's text has in it, in lower case: a line without them needs no closer look."""

_HIDDEN: Final = "[token]"
_BARE: Final = re.compile(r"[^\s\"=]+")


def escape(text: str) -> str:
    """``text`` on one line, with nothing in it that moves a cursor or ends a line."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def shown_path(path: str) -> str:
    """A path as it was asked for (decoded, without a query), for events about paths that no route knows."""
    pieces = path.partition("?")[0].split("/", MAX_PATH_CHARS)
    shown = "/".join(piece if len(piece) <= MAX_SEGMENT_CHARS else "…" for piece in pieces)
    return shown if len(shown) <= MAX_PATH_CHARS else f"{shown[:MAX_PATH_CHARS]}…"


# --- from an event to its line --------------------------------------------------------------------------


class _Renderer:
    """The last processor: an event becomes its line, and what it holds of tokens is taken out first."""

    def __init__(self, form: Callable[[EventDict], str], secrets: tuple[str, ...]) -> None:
        self._form = form
        self._secrets = secrets

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        """The event's line."""
        line = self._form(event)
        # No format changes a character of a token, so most lines are seen to be clean at a glance.
        return self._form(self._cleaned(event)) if self._may_tell(line) else line

    def _may_tell(self, line: str) -> bool:
        lower = line.lower()
        return any(mark in lower for mark in _MARKS) or any(secret in line for secret in self._secrets)

    def _cleaned(self, value: Any) -> Any:  # noqa: ANN401  whatever an event holds
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {self._without_tokens(str(key)): self._cleaned(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._cleaned(item) for item in value]
        return self._without_tokens(str(value))

    def _without_tokens(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _TOKEN.sub(_HIDDEN, text)


def _text(event: EventDict) -> str:
    """``time level logger message name=value …`` for people; a value that could be read as more is quoted."""
    head = f"{event['time']} {event['level']} {event['logger']} {event['message']}"
    more = [f"{name}={_quoted(value)}" for name, value in event.items() if name not in _HEAD]
    if "exception" in event:
        more.append(f"exception={event['exception']}")
    return escape(" ".join([head, *more]))


_HEAD: Final = frozenset({"time", "level", "logger", "message", "exception"})
"""What has its place in a line of text: the traceback, which is long, at its end."""


def _quoted(value: object) -> str:
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(event: EventDict) -> str:
    """One JSON object a line, ASCII only, for machines."""
    return _ENCODER.encode(event).replace("\x7f", r"\u007f")


_ENCODER: Final = json.JSONEncoder(default=str)


def _of_record(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A record of a logger: where it comes from, and its ``fields`` (``extra={"fields": {…}}``)."""
    record: logging.LogRecord = event.pop("_record")
    del event["_from_structlog"]
    head = _head(record.created, record.levelname.lower(), record.name, event.pop("event"))
    fields = getattr(record, "fields", None)
    return {**head, **event, **(fields if isinstance(fields, Mapping) else {})}


def _of_request(_logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
    """A request, which has no record: making one would cost more than the line."""
    return {**_head(time.time(), level, REQUESTS.name, event.pop("event")), **event}


def _head(created: float, level: str, logger: str, message: object) -> dict[str, str]:
    """What each event begins with; the time in UTC, to microseconds."""
    at = datetime.fromtimestamp(created, UTC).isoformat(timespec="microseconds")
    return {"time": at, "level": level, "logger": logger, "message": str(message)}


# --- the process's logging ------------------------------------------------------------------------------


class _Lines:
    """Takes lines that are ready, through the handler of all others; one that fails harms no request."""

    def __init__(self, handler: logging.StreamHandler[TextIO]) -> None:
        self._handler = handler

    def info(self, line: str) -> None:
        """Writes the line."""
        handler = self._handler
        handler.acquire()
        try:
            handler.stream.write(line + handler.terminator)
            handler.flush()
        except (OSError, ValueError):
            pass  # nobody reads the log any more: where would it be told?
        finally:
            handler.release()

    warning = info


_requests: structlog.typing.FilteringBoundLogger | None = None


def configure(
    level: str = "info", form: str = "text", *, secrets: tuple[str, ...] = (), stream: TextIO | None = None
) -> None:
    """Sets the process's logging up: all events to ``stream`` (standard error), in one format.

    Args:
        level: debug, info, warning or error.
        form: ``text`` or ``json``.
        secrets: values that no line may show.
        stream: where lines go.
    """
    render = _Renderer(_json if form == "json" else _text, secrets)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(processors=[merge_contextvars, _of_record, format_exc_info, render])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # It writes paths and queries as they were sent, and with them whatever secret stands in a URL (case H19).
    logging.getLogger("uvicorn.access").disabled = True
    _configure_structlog(handler, render)


def _configure_structlog(handler: logging.StreamHandler[TextIO], render: _Renderer) -> None:
    """Loggers of structlog hand their events to the standard library's; requests take the short way."""
    global _requests  # noqa: PLW0603  there is one log a process, as there is one root logger
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    _requests = structlog.wrap_logger(
        _Lines(handler),
        processors=[merge_contextvars, _of_request, render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
    ).bind()


def begin_request(request_id: str) -> None:
    """Every event of the running task carries this id from now on."""
    bind_contextvars(request_id=request_id)


def log_request(
    method: str, route: str, status: int, seconds: float, more: Mapping[str, object] | None = None
) -> None:
    """Logs one answered request.

    Args:
        method: of HTTP.
        route: the route's path with its parameters' names, never the path or query as sent.
        status: of the answer.
        seconds: how long it took.
        more: who asked, and whatever else is worth knowing.
    """
    failed = status >= 500
    if _requests is not None and REQUESTS.isEnabledFor(logging.WARNING if failed else logging.INFO):
        tell = _requests.warning if failed else _requests.info
        tell(
            "request", method=method, route=route, status=status, ms=round(seconds * 1_000, 2), **(more or {})
        )
