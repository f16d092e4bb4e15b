"""Answers: JSON in its canonical form, so that integers of any size and every float keep their digits."""

from __future__ import annotations

from collections.abc import Iterable

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from app.chain.canonical import canonical
from app.chain.strict import JsonValue
from app.guard.answers import Decision, Denied

_JSON = b"application/json"
_LINES = b"application/x-ndjson"


class Answer(ASGIResponse):
    """A finished 200: its body is made when it is made, and it passes through Litestar unchanged."""

    __slots__ = ("extra", "media_type", "text")

    def __init__(
        self, text: bytes, extra: tuple[tuple[bytes, bytes], ...] = (), media_type: bytes = _JSON
    ) -> None:
        # The base class is for Litestar's type checks only: building its headers would cost more than
        # everything else an answer does.
        self.text = text
        self.extra = extra
        self.media_type = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's form
        """Sends the answer."""
        length = str(len(self.text)).encode()
        headers = [(b"content-type", self.media_type), (b"content-length", length), *self.extra]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.text, "more_body": False})


def answer(value: JsonValue) -> Answer:
    """``value`` as canonical JSON."""
    return Answer(canonical(value).encode())


def answer_lines(values: Iterable[JsonValue]) -> Answer:
    """Canonical JSON, one value a line."""
    return Answer("".join(f"{canonical(value)}\n" for value in values).encode(), media_type=_LINES)


def answer_decision(decision: Decision) -> Answer:
    """A decision; a denial that ends by itself says when in ``Retry-After`` (seconds)."""
    text = canonical(decision.to_json()).encode()
    if isinstance(decision, Denied) and decision.retry_after_secs is not None:
        return Answer(text, ((b"retry-after", str(decision.retry_after_secs).encode()),))
    return Answer(text)


def answer_log(lines: list[str], head: JsonValue) -> Answer:
    """A page of a log: the export lines go out unchanged, byte for byte, never encoded again."""
    return Answer(f'{{"head":{canonical(head)},"records":[{",".join(lines)}]}}'.encode())
