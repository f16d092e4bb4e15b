"""Runs the migrations: one transaction, as the owner role, with bounded waits.

``db.migrate`` hands a connection over whose transaction it began itself; from the command line the URL
comes with ``-x url=postgresql://…``. The search path is empty on purpose: every name in a migration is
qualified, and Alembic then takes no schema for the default one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from alembic import context
from db.migrate import check_rows, connected, enter_migration
from db.schema import SCHEMA, metadata


def include_name(name: str | None, kind: str, _parents: Any) -> bool:  # noqa: ANN401  alembic's signature
    """Only our own schema is compared."""
    return name == SCHEMA if kind == "schema" else True


def run(connection: Connection) -> None:
    """Migrates (or compares) over ``connection``, inside its present transaction."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table_schema=SCHEMA,
        include_schemas=True,
        include_name=include_name,
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Uses the connection that was handed over, or opens one from ``-x url=…``."""
    given = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    with connected(context.get_x_argument(as_dictionary=True)["url"]) as connection:
        with connection.begin():
            enter_migration(connection)
            run(connection)
        check_rows(connection)


main()
