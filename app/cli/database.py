"""Which database a command means, and which keys are at hand; nothing is created here."""

from __future__ import annotations

import msgspec

from app.errors import StartupError
from app.settings import MASTER_KEY_FILE, Settings, load_secrets

URL_FILE = "database.url"
"""File in the data directory with the URL of the embedded server's administrator."""


def database_url(settings: Settings) -> str:
    """``TRAILS_DATABASE_URL``, else the embedded server's.

    Raises:
        StartupError: there is neither.
    """
    if settings.database_url is not None:
        return settings.database_url
    try:
        return (settings.data_dir / URL_FILE).read_text("utf-8").strip()
    except OSError as error:
        raise StartupError(
            f"no database: set TRAILS_DATABASE_URL, or run trails run first, or point TRAILS_DATA_DIR to its "
            f"data ({settings.data_dir / URL_FILE}: {error.strerror})"
        ) from error


def master_key(settings: Settings) -> bytes | None:
    """The installation's master key; None where there is none.

    Raises:
        StartupError: the file is there, but may not be used.
    """
    if settings.master_key is not None:
        return settings.master_key
    if not (settings.data_dir / MASTER_KEY_FILE).exists():
        return None
    # Any token will do: only the master key is wanted, and no token file may be made for it.
    return load_secrets(_with_token(settings)).master_key


def _with_token(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, operator_token="-" * 32)
