"""The one place where errors of the database become ours: by class and constraint name, never by text.

What is not listed here passes unchanged: a violated CHECK, for example, is a defect of this program (or
somebody else's write), and must show as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from app.errors import (
    AgentExistsError,
    BadRequestError,
    ConflictError,
    MirrorError,
    StaleChainError,
    TrailsError,
    UnavailableError,
)

APPEND_ONLY: Final = "TR001"
"""SQLSTATE of the triggers that refuse UPDATE, DELETE and TRUNCATE."""

BROKEN_LINK: Final = "TR002"
"""SQLSTATE of the trigger that compares ``prev_hash`` with the predecessor's hash."""

UNREGISTERED: Final = "TR003"
"""SQLSTATE of the trigger that looks chain and key up in the registry."""

_UNIQUE: Final = "23505"

_ROLLED_BACK: Final = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: certainly nothing was written, deciding again at once is right."""

# Classes of SQLSTATE (their first two characters) and single states after which trying again is right.
# 42501 is no passing trouble in itself, but whatever the cause: nothing may be allowed, nothing was written.
# 55000 is said, among other things, by a database that takes no connections for a while.
_PASSING_CLASSES: Final = frozenset({"08", "40", "53", "57", "58", "XX"})
_PASSING_STATES: Final = frozenset({"25006", "25P03", "28000", "28P01", "3D000", "42501", "55000", "55P03"})
_LIMITS_CLASS: Final = "54"

_INTERNAL_CLASS: Final = "XX"
"""PostgreSQL's own trouble: damaged files, and what it has no state for, such as a full disk at a login."""

_log = logging.getLogger("trails.database")


class DuplicateKeyError(StaleChainError):
    """The chain holds a record with this idempotency key already: read it, and answer from it."""


class DuplicateSpanError(StaleChainError):
    """One of the spans is on record already: ask which, and leave its fragment out."""


@contextmanager
def translate(agent_id: str = "") -> Iterator[None]:
    """Runs the block; errors of asyncpg, of the network and time-outs leave it as ours.

    After an ``UnavailableError`` from a write nobody knows whether it was committed: read before deciding
    again.

    Args:
        agent_id: the agent that the block may register, for the message of ``AgentExistsError``.

    Raises:
        StaleChainError: another writer took this ``seq``, the predecessor is not there, or the transaction
            was rolled back by a deadlock or serialization failure (case P18). Certainly nothing was written.
        DuplicateKeyError: the idempotency key stands in the chain already.
        DuplicateSpanError: a span is on record already.
        AgentExistsError: the agent's id is taken.
        ConflictError: the tenant's slug or the chain's id is taken.
        MirrorError: the registry does not hold what the record names; somebody took it away.
        BadRequestError: a value exceeds a limit of the database.
        UnavailableError: connection lost or refused, time-out, overload, disk full, read-only, shutdown,
            lock not available, privilege missing, an internal error of the server.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        ours = _from_server(error, agent_id)
        if ours is None:
            raise
        raise ours from error
    except asyncpg.DataError:
        raise  # an argument of the wrong type: a defect, although asyncpg derives it from InterfaceError
    except (
        OSError,
        asyncio.IncompleteReadError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ) as error:
        # TimeoutError is an OSError; an InterfaceError is a closed connection or pool.
        raise _unavailable() from error


def _from_server(error: asyncpg.PostgresError, agent_id: str) -> TrailsError | None:
    state = error.sqlstate or ""
    if state == _UNIQUE:
        return _from_unique(error.constraint_name or "", agent_id)
    if state == BROKEN_LINK or state in _ROLLED_BACK:
        return StaleChainError("another writer was faster; the chain is read again")
    if state == UNREGISTERED:
        return MirrorError("the registry does not hold the chain, the agent or the key that the record names")
    if state[:2] == _LIMITS_CLASS:
        return BadRequestError("a value is larger than the database can hold")
    if state[:2] == _INTERNAL_CLASS:
        _log.error("PostgreSQL reports an internal error (SQLSTATE %s); its own log says more", state)
    if state[:2] in _PASSING_CLASSES or state in _PASSING_STATES:
        return _unavailable()
    return None


def _from_unique(constraint: str, agent_id: str) -> TrailsError | None:
    if constraint == "agents_pkey":
        return AgentExistsError(agent_id)
    kind, message = _TAKEN.get(constraint, (None, ""))
    return None if kind is None else kind(message)


_TAKEN: Final[dict[str, tuple[type[TrailsError], str]]] = {
    "trail_pkey": (StaleChainError, "another writer was faster; the chain is read again"),
    "trail_idempotency_key": (DuplicateKeyError, "this Idempotency-Key stands in the chain already"),
    "spans_pkey": (DuplicateSpanError, "a span is on record already"),
    "agents_log_uuid_key": (ConflictError, "a chain of this id exists already"),
    "tenants_slug_key": (ConflictError, "a tenant of this slug exists already"),
}
"""What a violated unique key means, by its constraint."""


def _unavailable() -> UnavailableError:
    return UnavailableError("the database is not available at the moment; try again")
