"""Limits: buckets, semaphores and what jobs take of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def _ascii(length: int) -> mysql.CHAR:
    return mysql.CHAR(length, charset="ascii", collation="ascii_bin")


def upgrade() -> None:
    # A column that may be NULL is added without rewriting the table. MySQL knows no IF NOT EXISTS here, and a
    # migration that was killed half-way is repeated.
    present_columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("fencepost_jobs")}
    if "limits" not in present_columns:
        long = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
        op.add_column("fencepost_jobs", sa.Column("limits", sa.Text().with_variant(long, "mysql", "mariadb")))
    op.create_table(
        "fencepost_limits",
        sa.Column("digest", sa.String(32).with_variant(_ascii(32), "mysql", "mariadb"), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.Column("declared_at", sa.BigInteger),
        sa.Column("rate", sa.Double),
        sa.Column("burst", sa.BigInteger),
        sa.Column("tat", sa.BigInteger),
        sa.Column("due_at", sa.BigInteger),
        sa.Column("capacity", sa.BigInteger),
        if_not_exists=True,
        **_MYSQL,
    )
    op.create_table(
        "fencepost_holdings",
        sa.Column("digest", sa.String(32).with_variant(_ascii(32), "mysql", "mariadb"), primary_key=True),
        sa.Column(
            "job_id",
            sa.String(36)
            .with_variant(postgresql.UUID(as_uuid=False), "postgresql")
            .with_variant(_ascii(36), "mysql", "mariadb"),
            primary_key=True,
        ),
        sa.Column("lease_token", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **_MYSQL,
    )
    due = sa.text("due_at IS NOT NULL")
    op.create_index(
        "fencepost_limits_due",
        "fencepost_limits",
        ["due_at"],
        sqlite_where=due,
        postgresql_where=due,
        if_not_exists=True,
    )
