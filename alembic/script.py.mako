"""${message}."""

from __future__ import annotations

from pathlib import Path

from alembic import op
from db.migrate import run_script

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".sql"))


def downgrade() -> None:
    run_script(op.get_bind(), Path(__file__).with_suffix(".down.sql"))
