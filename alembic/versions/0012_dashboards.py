"""Views that dashboards ask for a stretch of time, without a look at the rest of the trail."""

from __future__ import annotations

from pathlib import Path

from alembic import op
from db.migrate import run_script

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".sql"))


def downgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".down.sql"))
