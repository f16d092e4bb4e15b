"""Liveness and readiness (case H29): the first says that the process lives, the second that it can record."""

from __future__ import annotations

import asyncio

from litestar import get

from app.errors import UnavailableError
from app.http import documents, examples
from app.http.exchange import Call, services_of
from app.http.operation import describe
from app.http.responses import Answer, answer

PROBE_SECS = 1.5
"""Longest wait for the database; the answer must be out within two seconds."""


@get("/healthz", summary="Is the process alive", opt=describe(None, answer=documents.Ok, example=examples.OK))
async def healthz() -> Answer:
    """Answers as long as the process lives, whatever the database does."""
    return answer({"ok": True})


@get(
    "/readyz", summary="Can the service record", opt=describe(None, answer=documents.Ok, example=examples.OK)
)
async def readyz(request: Call) -> Answer:
    """Runs the whole append path and rolls it back; 503 says what is wrong, within two seconds.

    The answer is at most a second old.
    """
    services = services_of(request)
    if services.draining:
        raise UnavailableError("the service is shutting down")
    probe = services.probe()
    # Waited for, not cancelled: cancelling waits until the database has acknowledged it, which is what it
    # does not do when it hangs. Callers that come meanwhile share the one probe.
    await asyncio.wait({probe}, timeout=PROBE_SECS)
    if not probe.done():
        raise UnavailableError(f"the database did not answer within {PROBE_SECS} seconds")
    await probe
    return answer({"ok": True})
