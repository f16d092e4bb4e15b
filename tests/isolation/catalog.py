"""The SQL check of the isolation suite: what one login sees of others, over the whole catalog.

``leaks`` looks for rows that hold a mark of somebody else in every table, view, materialised view and
partition of the schema, and at what the catalog says of row security. It finds its objects itself, so that
nothing new is missed; the suite also runs it against databases that were weakened, where it must find that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from tests.isolation.world import TABLES_OF_ALL

DENIED: Final = "42501"
"""SQLSTATE: insufficient privilege, also of a row that row security refuses."""

_RELATIONS: Final = """
SELECT c.oid, c.relname AS name, c.relkind::text AS kind, c.relrowsecurity, c.relforcerowsecurity,
       coalesce('security_invoker=true' = ANY (c.reloptions), false) AS invoker,
       array(SELECT a.attname::text || ' ' || format_type(a.atttypid, NULL) FROM pg_catalog.pg_attribute AS a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS columns
  FROM pg_catalog.pg_class AS c
 WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'trails')
   AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
 ORDER BY c.relname
"""
_POWERS: Final = """
SELECT r.rolname::text FROM pg_catalog.pg_roles AS r
 WHERE (r.rolsuper OR r.rolbypassrls) AND pg_catalog.pg_has_role(current_user, r.oid, 'MEMBER')
 UNION
SELECT r.rolname::text FROM pg_catalog.pg_roles AS r
 WHERE r.oid IN (SELECT c.relowner FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n
                     ON n.oid = c.relnamespace WHERE n.nspname = 'trails')
   AND pg_catalog.pg_has_role(current_user, r.oid, 'MEMBER')
"""


class Relation(msgspec.Struct, frozen=True):
    """A table, view, materialised view or partition; its columns as ``(name, type)``."""

    name: str
    kind: str
    secured: bool
    forced: bool
    invoker: bool
    columns: tuple[tuple[str, str], ...]

    @property
    def is_view(self) -> bool:
        """Whether it is a plain view."""
        return self.kind == "v"

    @property
    def is_tenants(self) -> bool:
        """Whether its rows are those of tenants."""
        return self.name not in TABLES_OF_ALL


async def relations(connection: asyncpg.Connection) -> list[Relation]:
    """Everything in the schema that can be selected from."""
    return [
        Relation(
            row["name"],
            row["kind"],
            row["relrowsecurity"],
            row["relforcerowsecurity"],
            row["invoker"],
            tuple((name, type_) for name, _, type_ in (text.partition(" ") for text in row["columns"])),
        )
        for row in await connection.fetch(_RELATIONS)
    ]


async def leaks(connection: asyncpg.Connection, marks: Sequence[str], *, tenant: str | None) -> list[str]:
    """What the login of ``connection`` sees that it must not; empty is what should be.

    Args:
        connection: a login's, outside a transaction.
        marks: texts of which no row may hold one.
        tenant: the value of ``trails.tenants`` in each look; None: it is not set at all.
    """
    found = [f"its role may act as {row[0]}, who is not bound" for row in await connection.fetch(_POWERS)]
    for relation in await relations(connection):
        if relation.is_tenants:
            found += _weaknesses(relation)
            found += await _seen(connection, relation, marks, tenant)
    return found


def _weaknesses(relation: Relation) -> list[str]:
    """What the catalog says: a table under forced row security, a view with the rights of whoever asks."""
    if relation.is_view:
        return [] if relation.invoker else [f"{relation.name}: runs with its owner's rights"]
    if relation.kind == "m":
        return [f"{relation.name}: is a materialised view, which knows no row security"]
    told = {"has no row security": relation.secured, "does not bind its owner": relation.forced}
    return [f"{relation.name}: {what}" for what, holds in told.items() if not holds]


async def _seen(
    connection: asyncpg.Connection, relation: Relation, marks: Sequence[str], tenant: str | None
) -> list[str]:
    """Rows with one of the marks: by reading all, and by asking each column that may hold them."""
    reading = (
        f"SELECT count(*) FROM trails.{relation.name} AS x"
        " WHERE EXISTS (SELECT FROM unnest($1::text[]) AS m WHERE strpos(to_jsonb(x)::text, m) > 0)"
    )
    questions: list[tuple[str, Any]] = [(reading, list(marks))]
    for name, type_ in relation.columns:
        if type_ == "uuid":
            values: list[Any] = [UUID(mark) for mark in marks if mark.count("-") == 4]
        elif type_ == "text":
            values = list(marks)
        else:
            continue
        questions.append(
            (f"SELECT count(*) FROM trails.{relation.name} WHERE {name} = ANY ($1::{type_}[])", values)
        )
    found = []
    for question, values in questions:
        count = await seen(connection, tenant, question, values)
        if count:
            found.append(f"{relation.name}: {count} rows of others by {question}")
    return found


async def seen(connection: asyncpg.Connection, tenant: str | None, question: str, *values: Any) -> Any:
    """The one value of a question, for a tenant; 0 where the login may not ask it."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        if tenant is not None:
            await connection.execute("SELECT set_config('trails.tenants', $1, true)", tenant)
        return await connection.fetchval(question, *values)
    except asyncpg.InsufficientPrivilegeError:
        return 0
    finally:
        await transaction.rollback()
