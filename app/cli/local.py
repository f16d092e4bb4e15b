"""The ledger, opened on this machine by whoever holds its database and its master key."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from app.cli.database import database_url
from app.cli.prepare import app_password
from app.errors import StartupError
from app.opening import accepts, connect, look
from app.principal import Grant, Permission, Principal, Role, grant
from app.settings import Secrets, Settings, master_key_at_hand
from db import migrate

if TYPE_CHECKING:
    from app.ledger import Ledger

ACTOR: Final = "root"
"""Who acts on the command line: no key, but somebody who holds the installation's secrets."""


def settings_here() -> Settings:
    """The settings of this process."""
    return Settings.from_env(os.environ)


@asynccontextmanager
async def local_ledger(settings: Settings) -> AsyncIterator[Ledger]:
    """The ledger as the service opens it, whoever TRAILS_DATABASE_URL names.

    An administrator logs in as the service's role with the derived password; where that role has a password
    of its own, which only its service knows, as the administrator, and becomes that role.

    Raises:
        StartupError: no database, no master key, or not this database's; says what to set.
    """
    master_key = master_key_at_hand(settings)
    if master_key is None:
        raise StartupError(
            "no master key: set TRAILS_MASTER_KEY, or point TRAILS_DATA_DIR to the data of trails run"
        )
    secrets = Secrets("", master_key)
    url = database_url(settings)
    found = await look(url, embedded=None if settings.database_url else settings.data_dir)
    as_administrator = False
    if found.privileged:
        found.require_direct()
        derived = migrate.app_url(url, app_password(secrets))
        as_administrator = not await accepts(derived)
        url = url if as_administrator else derived
    here = msgspec.structs.replace(settings, database_url=url, pool_size=2)
    async with connect(here, secrets, as_administrator=as_administrator) as ledger:
        yield ledger


def root_grant(tenant_id: UUID, permission: Permission) -> Grant:
    """What whoever holds the installation's secrets may do in a tenant: all that an operator may."""
    return grant(Principal(tenant_id, Role.OPERATOR, ACTOR), permission)
