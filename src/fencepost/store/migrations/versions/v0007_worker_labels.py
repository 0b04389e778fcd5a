"""Workers say which labels they have."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A column that may be NULL is added without rewriting the table. MySQL knows no IF NOT EXISTS here, and a
    # migration that was killed half-way is repeated.
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("fencepost_workers")}
    if "labels" not in present:
        text = sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
        op.add_column("fencepost_workers", sa.Column("labels", text))
