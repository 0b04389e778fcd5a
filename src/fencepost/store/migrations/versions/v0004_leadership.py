"""Who leads the planners, when each pass last succeeded, and for how long final jobs are kept."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    op.create_table(
        "fencepost_leader",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(200)),
        sa.Column("since", sa.BigInteger),
        sa.Column("renewed_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **_MYSQL,
    )
    op.create_table(
        "fencepost_passes",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("succeeded_at", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("moved", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **_MYSQL,
    )
    text = sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
    op.create_table(
        "fencepost_retention",
        sa.Column("queue", sa.String(100), primary_key=True),
        sa.Column("rules", text, nullable=False),
        if_not_exists=True,
        **_MYSQL,
    )
