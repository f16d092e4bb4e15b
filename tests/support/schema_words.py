"""What a migrated database says of its tables and views: columns, keys, comments, what a view reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import asyncpg
import msgspec

_COLUMNS: Final = """
SELECT c.relname AS relation, c.relkind = 'v' AS is_view, a.attname AS name,
       format_type(a.atttypid, a.atttypmod) AS kind, a.attnotnull AS required,
       coalesce(a.attnum = ANY (k.conkey), false) AS is_key,
       coalesce(col_description(c.oid, a.attnum), '') AS comment,
       coalesce(obj_description(c.oid, 'pg_class'), '') AS about
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.contype = 'p'
 WHERE c.relnamespace = 'trails'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname <> 'alembic_version'
 ORDER BY c.relkind, c.relname COLLATE "C", a.attnum
"""
_SOURCES: Final = """
SELECT c.relname AS name, pg_get_viewdef(c.oid) AS source FROM pg_class AS c
 WHERE c.relnamespace = 'trails'::regnamespace AND c.relkind = 'v'
UNION ALL
SELECT p.proname, pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = 'trails'::regnamespace
"""
_NAMED: Final = re.compile(r"\btrails\.(\w+)")


class SqlColumn(msgspec.Struct, frozen=True):
    """A column: ``kind`` is its type, ``required`` says that it is never NULL."""

    name: str
    kind: str
    required: bool
    is_key: bool
    comment: str


class Relation(msgspec.Struct, frozen=True):
    """A table or a view; of a view ``reads`` are the tables and views that it is made of."""

    name: str
    is_view: bool
    about: str
    columns: tuple[SqlColumn, ...]
    reads: tuple[str, ...]


async def read(connection: asyncpg.Connection) -> list[Relation]:
    """The tables, then the views, by name."""
    await connection.execute("SET search_path TO pg_catalog")  # so that every name comes with its schema
    rows = await connection.fetch(_COLUMNS)
    sources = {row["name"]: row["source"] for row in await connection.fetch(_SOURCES)}
    known = {row["relation"] for row in rows}
    about = {row["relation"]: (row["is_view"], row["about"]) for row in rows}
    return [
        Relation(
            name,
            is_view,
            text,
            tuple(
                SqlColumn(row["name"], row["kind"], row["required"], row["is_key"], row["comment"])
                for row in rows
                if row["relation"] == name
            ),
            tuple(sorted(set(_reads(name, sources, known)))) if is_view else (),
        )
        for name, (is_view, text) in about.items()
    ]


def _reads(name: str, sources: Mapping[str, str], known: set[str]) -> Iterator[str]:
    """Tables and views that a view names, itself or in the functions that it calls."""
    seen, waiting = {name}, [name]
    while waiting:
        for named in _NAMED.findall(sources[waiting.pop()]):
            if named in seen:
                continue
            seen.add(named)
            if named in known:
                yield named
            elif named in sources:
                waiting.append(named)
