"""The CHECK that holds a row to its signed text costs less: a function in place of one long expression."""

from __future__ import annotations

from pathlib import Path

from alembic import op
from db.migrate import run_script

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".sql"))


def downgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".down.sql"))
