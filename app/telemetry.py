r"""Logging: one event is one line, whatever names and paths contain (case H21), and no token in any (H19).

Control characters, U+0085, U+2028 and U+2029 are written as ``\xNN`` or ``\uNNNN``; a traceback stays on its
event's line with ``\n`` between its lines.
"""

from __future__ import annotations

import contextvars
import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

REQUESTS = logging.getLogger("trails.requests")
"""One event a request."""

request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)
"""Id of the request that the running task serves; every event of it carries the id."""

# C0, DEL, C1 (with U+0085), the line and paragraph separators, and the directional overrides that make a
# line read as another one.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_TOKEN = re.compile(r"agt_[0-9a-f]{32}\.[A-Za-z0-9_-]+\.[0-9a-f]+|(?i:bearer)\s+[^\s,;\"']+")


def escape(text: str) -> str:
    """``text`` on one line, with nothing in it that moves a cursor or ends a line."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


class _Formatter(logging.Formatter):
    """What both formats share: the fields of an event, without secrets."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._secrets = secrets

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """The event: time (UTC, microseconds), level, logger, message, request id, extra fields."""
        event: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._clean(record.getMessage()),
        }
        current = request_id.get()
        if current is not None:
            event["request_id"] = current
        extra = getattr(record, "fields", None)
        if isinstance(extra, Mapping):
            event.update({name: self._clean(v) if isinstance(v, str) else v for name, v in extra.items()})
        if record.exc_info:
            event["exception"] = self._clean(self.formatException(record.exc_info))
        return event

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[token]")
        return _TOKEN.sub("[token]", text) if "_" in text or " " in text else text


class TextFormatter(_Formatter):
    """``time level logger message name=value …`` for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The event's line."""
        event = self.fields(record)
        head = [str(event.pop(name)) for name in ("time", "level", "logger", "message")]
        return escape(" ".join([*head, *(f"{name}={value}" for name, value in event.items())]))


class JsonFormatter(_Formatter):
    """One JSON object a line, ASCII only, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """The event's line."""
        return json.dumps(self.fields(record), default=str)


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
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(secrets) if form == "json" else TextFormatter(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # It writes paths and queries as they were sent, and with them whatever secret stands in a URL (case H19).
    logging.getLogger("uvicorn.access").disabled = True


def log_request(method: str, template: str, status: int, seconds: float) -> None:
    """Logs one answered request. ``template`` is the route's path, never the path or query as sent."""
    level = logging.INFO if status < 500 else logging.WARNING
    if REQUESTS.isEnabledFor(level):
        # Made by hand: looking up who called would cost more than the line.
        record = logging.LogRecord(REQUESTS.name, level, __file__, 0, "request", (), None)
        record.fields = {
            "method": method,
            "path": template,
            "status": status,
            "ms": round(seconds * 1_000, 2),
        }
        REQUESTS.handle(record)
