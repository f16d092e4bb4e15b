"""Times as the client writes them."""

from __future__ import annotations

import datetime as dt


def now() -> str:
    """RFC 3339, UTC, microseconds."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
