"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Say what changes, and what happens to the rows that are there."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Refuse: going back would drop what was measured."""
    raise CommandError("tuner's migrations only go forward: put a backup of the file back instead")
