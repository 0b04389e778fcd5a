"""Jobs that wait for other jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def _id() -> sa.types.TypeEngine[str]:
    return (
        sa.String(36)
        .with_variant(postgresql.UUID(as_uuid=False), "postgresql")
        .with_variant(mysql.CHAR(36, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
    )


def upgrade() -> None:
    # Columns that may be NULL are added without rewriting the table. MySQL knows no IF NOT EXISTS here, and a
    # migration that was killed half-way is repeated.
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("fencepost_jobs")}
    for column in (sa.Column("waits_for", sa.Integer), sa.Column("has_successors", sa.SmallInteger)):
        if column.name not in present:
            op.add_column("fencepost_jobs", column)
    op.create_table(
        "fencepost_dependencies",
        sa.Column("job_id", _id(), primary_key=True),
        sa.Column("predecessor_id", _id(), primary_key=True),
        sa.Column("condition", sa.String(16), nullable=False),
        sa.Column("name", sa.String(200)),
        sa.Column("is_open", sa.SmallInteger, nullable=False),
        if_not_exists=True,
        **_MYSQL,
    )
    op.create_index(
        "fencepost_dependencies_predecessor", "fencepost_dependencies", ["predecessor_id"], if_not_exists=True
    )
