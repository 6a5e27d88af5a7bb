"""Let an operator take a host out of use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add why a host is offered to nobody."""
    op.add_column("hosts", sa.Column("drained_why", sa.Text))
