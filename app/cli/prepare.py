"""Getting a database ready: who the URL's role is, roles and migrations, and the service's own login."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from app.chain.keys import derive
from app.embedded import EmbeddedPostgres
from app.errors import StartupError
from app.opening import Login, accepts, check_master_key, connect, heads_kept, look
from app.settings import Secrets, Settings, load_secrets
from db import migrate
from db.schema import APP_ROLE

PASSWORD_PURPOSE: Final = "trails_app password"  # noqa: S105  the name of a purpose
"""What the password of ``trails_app`` is derived for; it is stored nowhere."""

_OWN_PASSWORD: Final = (
    f"the role {APP_ROLE} has a password of its own, which is not changed: give TRAILS_DATABASE_URL of "
    f"{APP_ROLE} with it (as administrator you may set one: ALTER ROLE {APP_ROLE} PASSWORD '…')"
)


class Ready(msgspec.Struct, frozen=True):
    """A database to serve: the URL to serve it with, and the embedded server that is behind it, if any."""

    url: str
    secrets: Secrets
    embedded: EmbeddedPostgres | None = None


def app_password(secrets: Secrets) -> str:
    """The password of ``trails_app``, the same for every process with this master key."""
    return derive(secrets.master_key, PASSWORD_PURPOSE).hex()


@contextmanager
def service_database(settings: Settings) -> Iterator[Ready]:
    """The database to serve, as ``trails run`` makes it; an embedded server lives as long as the block.

    Raises:
        StartupError: the database cannot be reached or made ready.
    """
    if settings.database_url is not None:
        secrets = load_secrets(settings)
        yield Ready(made_ready(settings, settings.database_url, secrets), secrets)
        return
    with EmbeddedPostgres(settings.data_dir) as embedded:
        # Keys come after their database: a first start that fails leaves a folder that is still new.
        secrets = load_secrets(settings)
        yield Ready(made_ready(settings, embedded.url, secrets), secrets, embedded)


def made_ready(settings: Settings, url: str, secrets: Secrets) -> str:
    """The URL of a restricted role on a migrated database.

    With a privileged role the database is migrated, and the service's role logs in with the derived
    password, which it gets when it is made here. Any other role is taken as it is.

    Raises:
        StartupError: the master key is another database's, or the service's role has another password,
            which somebody may be using; nothing was changed.
    """
    ours = settings.database_url is None
    found = login(url, settings)
    if not found.privileged:
        return url
    found.require_direct()
    require_utf8(found)
    if found.prepared:
        asyncio.run(check_master_key(url, settings, secrets))
    quiet_alembic()
    password = app_password(secrets)
    restricted = migrate.app_url(url, password)
    accepted = found.served and asyncio.run(accepts(restricted))
    if found.served and not accepted and not ours:
        raise StartupError(_OWN_PASSWORD)
    if found.prepared and accepted:
        migrate.migrate(url)
    else:
        migrate.bootstrap(url, app_password=password, reset_password=ours)
    if not accepted and not asyncio.run(accepts(restricted)):
        raise StartupError(_OWN_PASSWORD)  # another starter, with another master key, was first
    return restricted


def require_utf8(found: Login) -> None:
    """Refuses a database that cannot hold every text.

    Raises:
        StartupError: says how to make one that can.
    """
    migrate.refuse_other_encodings(found.encoding)


def quiet_alembic() -> None:
    """Keeps Alembic's account of its own plugins out of our log."""
    logging.getLogger("alembic").setLevel(logging.WARNING)


def login(url: str, settings: Settings) -> Login:
    """Logs in and looks who we are.

    Raises:
        StartupError: the server cannot be reached or refuses.
    """
    return asyncio.run(look(url, embedded=embedded_folder(settings)))


def embedded_folder(settings: Settings) -> Path | None:
    """The data folder, when its embedded server is the database; None with a URL."""
    return settings.data_dir if settings.database_url is None else None


def preflight(settings: Settings, url: str, secrets: Secrets) -> None:
    """What must hold before a port answers: a safe role, the right schema, keys that open.

    Raises:
        TrailsError: says what to change.
    """
    asyncio.run(_preflight(msgspec.structs.replace(settings, database_url=url, pool_size=1), secrets))


async def _preflight(settings: Settings, secrets: Secrets) -> None:
    async with connect(settings, secrets) as ledger, heads_kept(ledger, settings):
        pass
