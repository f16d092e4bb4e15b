"""A span is known by the chain that holds it, not by who sent its ids first."""

from __future__ import annotations

from pathlib import Path

from alembic import op
from db.migrate import run_script

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".sql"))


def downgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".down.sql"))
