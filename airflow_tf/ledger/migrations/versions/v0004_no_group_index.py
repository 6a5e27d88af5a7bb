"""Forget the index of a mapped task group: an operator that trains is refused in one."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Drop the column, -1 in every row; not in batch mode, whose copy of the table loses the rows that refer to it."""
    op.drop_column("gangs", "group_index")
