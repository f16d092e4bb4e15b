"""Writes ``db/catalog.json``: the catalog of a freshly migrated database. Making it again changes nothing.

``python -m tests.support.write_catalog``
"""

from __future__ import annotations

import asyncio
import json

import asyncpg

from db import checks, migrate
from tests.support.postgres import APP_PASSWORD, fresh_database, running_server


async def read(url: str) -> dict[str, str]:
    """The catalog of the database at ``url``."""
    connection = await asyncpg.connect(url)
    try:
        return await checks.catalog(connection)
    finally:
        await connection.close()


def main() -> None:
    """Migrates an empty database and writes what the catalog says."""
    with running_server() as server, fresh_database(server, None) as database:
        migrate.bootstrap(database.admin_url, app_password=APP_PASSWORD)
        text = json.dumps(asyncio.run(read(database.admin_url)), indent=1, sort_keys=True, ensure_ascii=False)
    checks.CATALOG_FILE.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
