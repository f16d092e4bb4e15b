"""What the service looks at before it serves, and ``trails verify`` looks at with the records.

Triggers, CHECKs and policies can be switched off by whoever owns the tables, and a restore can leave them
off. So the catalog is compared, object by object, with a snapshot taken from a freshly migrated database
(``db/catalog.json``): what is missing, what differs and what was added are findings.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from app.errors import StartupError
from db.migrate import check_revision
from db.pool import Connection
from db.sql import statements

OLDEST_SERVER: Final = 15
"""Oldest major version of PostgreSQL that has what the schema uses."""

NEWEST_SERVER: Final = 18
"""Newest major version that this program was tested with."""

CATALOG_FILE: Final = Path(__file__).parent / "catalog.json"
"""The expected catalog; ``python -m tests.support.write_catalog`` makes it from the migrations."""

_SHOWN: Final = 3
"""Findings that a refusal to start spells out; ``trails verify`` lists all."""

_SQL = statements("checks")
_log = logging.getLogger(__name__)


class Finding(msgspec.Struct, frozen=True):
    """One thing in the catalog that is not as the migrations made it."""

    object: str
    """Kind and name, such as ``trigger agent_audit_trails.check_append``."""

    problem: str
    """What is the matter with it, the details last: ``is missing``, ``is switched off``, ``is …, not …``."""

    def __str__(self) -> str:
        return f"{self.object} {self.problem}"


async def check_start(connection: Connection, *, as_administrator: bool = False) -> None:
    """Everything that must hold before the service takes a request.

    Args:
        connection: as the service will have it.
        as_administrator: whether a command of the administrator works as the service's role, so that the
            login itself has every power and is not refused for it.

    Raises:
        StartupError: says what to change.
    """
    await check_server(connection)
    await check_revision(connection)
    if not as_administrator:
        await check_role(connection)
    if findings := await check_catalog(connection):
        raise StartupError(
            "the database is not as the migrations made it: "
            + "; ".join(str(finding) for finding in findings[:_SHOWN])
            + (f"; and {len(findings) - _SHOWN} more, see trails verify" if len(findings) > _SHOWN else "")
            + (_AFTER_RESTORE if all(finding.problem == _FIRES["O"] for finding in findings) else "")
        )


async def check_role(connection: Connection) -> None:
    """Refuses a login that could change the past or see past row security (cases P03, P07).

    Raises:
        StartupError: names the gravest power that is too much, and how many more there are.
    """
    reasons = [row["reason"] for row in await connection.fetch(_SQL["powers"])]
    if reasons:
        more = f" (and {len(reasons) - 1} more such powers)" if len(reasons) > 1 else ""
        raise StartupError(
            f"{reasons[0]}{more}: the service must not connect as this role; use trails_app, which trails "
            "migrate makes"
        )


async def check_server(connection: Connection) -> None:
    """Refuses a server that is too old, loses acknowledged commits, or has triggers off for this login.

    A server whose own configuration says ``trails.disposable = on`` (the tests' server, which is made for
    one run) may be quicker than durable; that is logged.

    Raises:
        StartupError: names the setting.
    """
    found = dict(await connection.fetchrow(_SQL["server"]) or {})
    major = found["version"] // 10_000
    if major < OLDEST_SERVER:
        raise StartupError(f"PostgreSQL {major} is too old; {OLDEST_SERVER} or newer is needed")
    if major > NEWEST_SERVER:
        _log.warning("PostgreSQL %s is newer than %s, the newest one tested", major, NEWEST_SERVER)
    _demand(found, {"encoding": "UTF8", "session_replication_role": "origin", "row_security": "on"})
    if found["disposable"] == "on":
        _log.warning("the server calls itself disposable: what it acknowledges may be lost in a power cut")
    else:
        _demand(found, {"fsync": "on", "full_page_writes": "on"})


def _demand(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for setting, value in wanted.items():
        if found[setting] != value:
            raise StartupError(f"the server's {setting} is {found[setting]}; it must be {value}")


async def check_catalog(connection: Connection) -> list[Finding]:
    """Compares the catalog with the expected one; an empty list is what should be.

    Indexes that are not keys are left to the administrator, and so is who may read: row security decides.
    """
    return _differences(expected_catalog(), await catalog(connection))


async def catalog(connection: Connection) -> dict[str, str]:
    """The catalog as it is: definitions by kind and name of object."""
    async with connection.transaction(readonly=True):
        await connection.execute(_SQL["name_nothing"])
        rows = await connection.fetch(_SQL["catalog"])
    return {row["name"]: row["definition"] for row in rows}


def expected_catalog() -> Mapping[str, str]:
    """The catalog as the migrations make it."""
    expected: dict[str, str] = json.loads(CATALOG_FILE.read_text("utf-8"))
    return expected


def _differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[Finding]:
    findings = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            findings.append(Finding(name, "is missing"))
        elif name not in expected:
            findings.append(Finding(name, f"does not belong there: {found[name]}"))
        elif found[name] != expected[name]:
            findings.append(Finding(name, _change(name, expected[name], found[name])))
    return findings


def _change(name: str, expected: str, found: str) -> str:
    """What differs between two definitions of one object, as shortly as it can be said."""
    kind = name.partition(" ")[0]
    if kind == "trigger":
        was, _, fires = expected.rpartition(", enabled ")
        is_now, _, fires_now = found.rpartition(", enabled ")
        if was == is_now:
            return _FIRES.get(fires_now, f"has the state {fires_now}, not {fires}")
    if kind in _LISTS:
        parts = list(zip(found.split(", "), expected.split(", "), strict=False))
        return "differs: " + "; ".join(f"{now}, not {before}" for now, before in parts if now != before)
    return f"differs: it is {found}, not {expected}"


_FIRES: Final = {
    "D": "is switched off",
    "O": "is switched off in sessions of replication (session_replication_role)",
    "R": "is switched off in ordinary sessions",
}
"""What ``pg_trigger.tgenabled`` means for a trigger that must always fire."""

_AFTER_RESTORE: Final = "; pg_restore --disable-triggers leaves them so: trails migrate --enable-triggers"
"""What to do when nothing else is the matter."""

_LISTS: Final = frozenset({"relation", "function", "role"})
"""Kinds whose definition is a list of properties, always the same ones."""
