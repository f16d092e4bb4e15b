"""Putting on record what was done on this machine: by whoever may write as the service does.

It takes the master key and a database role that reaches the service's own; who only reads has neither. What
cannot be put on record is done all the same: whoever may read the rows could do it without this program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from app.cli.local import ACTOR, local_ledger
from app.errors import TrailsError
from app.settings import Settings

if TYPE_CHECKING:
    from app.ledger import Ledger


def put_on_record(settings: Settings, tenant_id: UUID, payload: Mapping[str, Any]) -> str:
    """Records an act in a tenant's administration chain; says that it did, or why not."""

    async def put() -> str:
        try:
            async with local_ledger(settings) as ledger:
                return await recorded(ledger, tenant_id, payload)
        except TrailsError as error:
            return not_on_record(error)

    return asyncio.run(put())


async def recorded(ledger: Ledger, tenant_id: UUID, payload: Mapping[str, Any]) -> str:
    """The same with a ledger that is open.

    Raises:
        TrailsError: why not.
    """
    await ledger.administration.record(tenant_id, ACTOR, dict(payload))
    return "on record in the tenant's administration chain"


def not_on_record(error: TrailsError) -> str:
    """What is said when it could not be recorded."""
    return f"not on record: {error.message}"
