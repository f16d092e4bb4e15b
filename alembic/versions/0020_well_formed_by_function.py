"""One CHECK by a function in place of ten, and a first look of the trigger that indexes sendings."""

from __future__ import annotations

from pathlib import Path

from alembic import op
from db.migrate import run_script

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".sql"))


def downgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".down.sql"))
