"""Schedules and permits."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def _ascii(length: int) -> mysql.CHAR:
    return mysql.CHAR(length, charset="ascii", collation="ascii_bin")


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    # On every database a column that may be NULL is added without rewriting the table. MySQL knows no
    # IF NOT EXISTS here, and a migration that was killed half-way is repeated.
    present_columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("fencepost_jobs")}
    for column in (
        sa.Column("trigger", sa.String(16)),
        sa.Column("permit_key", sa.String(512)),
        sa.Column("permit_slots", sa.Integer),
        sa.Column("permit_policy", sa.String(24)),
        sa.Column("permit_slot", sa.Integer),
        sa.Column("permit_token", sa.BigInteger),
    ):
        if column.name not in present_columns:
            op.add_column("fencepost_jobs", column)
    op.create_table(
        "fencepost_permits",
        sa.Column("key_digest", sa.String(32).with_variant(_ascii(32), "mysql", "mariadb"), primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("permit_key", sa.String(512), nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column(
            "job_id",
            sa.String(36)
            .with_variant(postgresql.UUID(as_uuid=False), "postgresql")
            .with_variant(_ascii(36), "mysql", "mariadb"),
        ),
        sa.Column("lease_token", sa.BigInteger),
        if_not_exists=True,
        **_MYSQL,
    )
    op.create_table(
        "fencepost_schedules",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("kind", sa.String(300), nullable=False),
        sa.Column("queue", sa.String(100), nullable=False),
        sa.Column("timing", _text(), nullable=False),
        sa.Column("arguments", _text(), nullable=False),
        sa.Column("options", _text()),
        sa.Column("misfire", sa.String(16), nullable=False),
        sa.Column("max_catch_up", sa.Integer, nullable=False),
        sa.Column("grace", sa.BigInteger, nullable=False),
        sa.Column("jitter", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger),
        sa.Column("max_runs", sa.Integer),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column(
            "config_hash",
            sa.String(32).with_variant(mysql.CHAR(32, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"),
            nullable=False,
        ),
        sa.Column("superseded", _text()),
        sa.Column("declared_in", sa.String(300)),
        sa.Column("overlap", sa.String(24), nullable=False),
        sa.Column("permit_key", sa.String(512)),
        sa.Column("permit_slots", sa.Integer, nullable=False),
        sa.Column("next_fire_at", sa.BigInteger),
        sa.Column("paused_at", sa.BigInteger),
        sa.Column("paused_reason", sa.String(16)),
        sa.Column("error", _text()),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **_MYSQL,
    )
    present = sa.text("next_fire_at IS NOT NULL")
    op.create_index(
        "fencepost_schedules_next",
        "fencepost_schedules",
        ["next_fire_at"],
        sqlite_where=present,
        postgresql_where=present,
        if_not_exists=True,
    )
