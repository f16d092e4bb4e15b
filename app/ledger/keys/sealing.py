"""Sealing by whichever signer: at once with a key in memory, beside the event loop with one that may wait.

A source that answers late or never costs its own tenant 503, and nobody else anything: its threads are its
own, they are few, and none of them keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from app.chain.keys import SigningKey
from app.chain.link import seal, seal_all
from app.errors import KeyMaterialError, UnavailableError
from app.ledger.keys.sealed_key import NewSigningKey
from app.ledger.keys.signers import SourceSigner, open_signer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from app.chain.record import Draft, Head, VerifiedRecord

SIGN_SECS: Final = 4.0
"""How long one signature may take. Nobody else writes to the chain meanwhile; others wait ``LOCK_SECS``."""

_PROOF: Final = b"lineage-trails: proof that a source signs\n"
"""Begins what a new source has to sign; no record's hash is that long."""

T = TypeVar("T")


async def sealed(
    drafts: Iterable[Draft], after: Head | None, at_us: int, key: SigningKey | SourceSigner
) -> tuple[VerifiedRecord, ...]:
    """Seals several drafts one after the other, all at the same moment.

    Raises:
        UnavailableError: there is no signature, and so no record.
        TrailsError: as ``seal``.
    """
    if isinstance(key, SigningKey) or not key.remote:
        return seal_all(drafts, after, at_us, key)
    records: list[VerifiedRecord] = []
    for draft in drafts:
        head = records[-1].head if records else after
        records.append(await _signing(key, partial(seal, draft, head, at_us, key)))
    return tuple(records)


async def signature(message: bytes, key: SigningKey | SourceSigner) -> bytes:
    """The 64 bytes of a key's signature over a message that is no record's hash.

    Raises:
        UnavailableError: there is none.
    """
    if isinstance(key, SigningKey) or not key.remote:
        return key.sign(message)
    return await _signing(key, partial(key.sign, message))


async def from_source(uri: str) -> NewSigningKey:
    """The key that a source holds, which was seen to sign with it.

    Raises:
        KeyMaterialError: it does not open, does not sign, or too slowly; says why.
    """
    try:
        async with asyncio.timeout(SIGN_SECS):
            public = await _in_thread(lambda: open_signer(uri).public, lambda: None)
    except TimeoutError:
        raise KeyMaterialError(f"the source does not open within {SIGN_SECS:g} seconds") from None
    signer = SourceSigner(public, uri)
    try:
        await _signing(signer, lambda: signer.sign(_PROOF + os.urandom(32)))
    except UnavailableError:
        raise KeyMaterialError(f"the source opens, but does not sign with key {public.key_id}") from None
    return NewSigningKey(public, uri)


async def _signing(source: SourceSigner, work: Callable[[], T]) -> T:
    """Does work that ends in one signature of a source."""
    try:
        async with asyncio.timeout(SIGN_SECS):
            await source.slots.acquire()
            return await _in_thread(work, source.slots.release)
    except TimeoutError:
        raise source.failed(f"no signature within {SIGN_SECS:g} seconds") from None


async def _in_thread(work: Callable[[], T], ended: Callable[[], None]) -> T:
    """Runs ``work`` in a thread of its own; ``ended`` is called in the event loop when it is over.

    Who is cancelled does not wait for it. It is no thread of a pool, for these are waited for at exit.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        ended()
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)  # type: ignore[arg-type]  # without an error there is a result
        else:
            outcome.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001  it is raised again where it is waited for
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="trails-signer", daemon=True).start()
    return await outcome
