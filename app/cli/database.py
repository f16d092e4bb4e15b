"""Which database a command means; nothing is created here."""

from __future__ import annotations

from app.errors import StartupError
from app.settings import Settings

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
