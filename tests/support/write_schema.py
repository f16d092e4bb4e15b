"""Writes the page on the SQL schema and its picture, from a freshly migrated database.

``python -m tests.support.write_schema``. Making them again changes nothing; a test finds what is out of date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import asyncpg

from db import migrate
from tests.support.pages import FOLDER
from tests.support.postgres import APP_PASSWORD, fresh_database, running_server
from tests.support.schema_picture import picture
from tests.support.schema_words import Relation, read

PAGE: Final = FOLDER / "sql-schema.md"
PICTURE: Final = FOLDER / "sql-schema.svg"

_HEAD: Final = """\
# The SQL schema

For whoever writes SQL over the records: every table and view, with its columns and their meanings.

Everything is in the schema `trails`. This page is made from the database itself
(`python -m tests.support.write_schema`); in `psql`, `\\d+ trails.actions` shows the same.

![The tables with their columns and keys, and the views with what they read](sql-schema.svg)

Names and meanings of the columns of views stay what they are; new columns may come. An auditor's login sees
the rows of its own tenant in the views, and in the tables `agent_audit_trails` and `agents`.
[SQL for auditors](compliance.md#sql-for-auditors) has examples.
"""


def page(relations: Sequence[Relation]) -> str:
    """The page in Markdown."""
    return "\n".join([_HEAD, *_parts(relations)])


def _parts(relations: Sequence[Relation]) -> Iterator[str]:
    yield from ("## Views", "")
    for view in relations:
        if view.is_view:
            reads = ", ".join(f"`{name}`" for name in view.reads)
            yield from (f"### {view.name}", "", _told(view.about), "", f"Reads {reads}.", "")
            yield from ("| column | type | meaning |", "|---|---|---|")
            for column in view.columns:
                yield f"| `{column.name}` | {column.kind} | {_told(column.comment)} |"
            yield ""
    yield from ("## Tables", "")
    for table in relations:
        if not table.is_view:
            yield from (f"### {table.name}", "", *([_told(table.about), ""] if table.about else []))
            yield from ("| column | type | key | may be NULL | meaning |", "|---|---|---|---|---|")
            for column in table.columns:
                key, null = "yes" if column.is_key else "", "" if column.required else "yes"
                yield f"| `{column.name}` | {column.kind} | {key} | {null} | {_told(column.comment)} |"
            yield ""


def _told(comment: str) -> str:
    """A comment as Markdown, in one line: names in it stay what they are."""
    return (
        comment.replace("\n", " ")
        .replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("_", "\\_")
        .replace("*", "\\*")
        .replace("<", "\\<")
    )


async def relations_of(url: str) -> list[Relation]:
    """What the database at ``url`` says."""
    connection = await asyncpg.connect(url)
    try:
        return await read(connection)
    finally:
        await connection.close()


def main() -> None:
    """Migrates an empty database, and writes both."""
    with running_server() as server, fresh_database(server, None) as database:
        migrate.bootstrap(database.admin_url, app_password=APP_PASSWORD)
        relations = asyncio.run(relations_of(database.admin_url))
    PAGE.write_text(page(relations), "utf-8")
    PICTURE.write_text(picture(relations), "utf-8")


if __name__ == "__main__":
    main()
