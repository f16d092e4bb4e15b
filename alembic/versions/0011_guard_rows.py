"""The guard's requests and permissions pass the index of sendings without a look at their session."""

from __future__ import annotations

from pathlib import Path

from alembic import op
from db.migrate import run_script

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".sql"))


def downgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".down.sql"))
