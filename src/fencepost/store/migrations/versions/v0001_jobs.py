"""Jobs, queues and workers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}

# Every statement may run a second time: MySQL commits each DDL statement by itself, so a migration that was
# killed half-way is repeated from its start.


def _ascii(length: int) -> mysql.CHAR:
    return mysql.CHAR(length, charset="ascii", collation="ascii_bin")


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "fencepost_jobs",
        sa.Column(
            "id",
            sa.String(36)
            .with_variant(postgresql.UUID(as_uuid=False), "postgresql")
            .with_variant(_ascii(36), "mysql", "mariadb"),
            primary_key=True,
        ),
        sa.Column("kind", sa.String(300), nullable=False),
        sa.Column("queue", sa.String(100), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(40)),
        sa.Column("priority", sa.String(16), nullable=False),
        sa.Column("line", sa.BigInteger),
        sa.Column("rank", sa.BigInteger),
        sa.Column("wake_at", sa.BigInteger),
        sa.Column("lease_until", sa.BigInteger),
        sa.Column("lease_owner", sa.String(200)),
        sa.Column("lease_token", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("live_key", sa.String(32).with_variant(_ascii(32), "mysql", "mariadb")),
        sa.Column("dedup_key", sa.String(512)),
        sa.Column("hold", sa.String(16)),
        sa.Column("run_at", sa.BigInteger),
        sa.Column("deadline", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("finished_at", sa.BigInteger),
        sa.Column("cancel_requested_at", sa.BigInteger),
        sa.Column("tenant", sa.String(200)),
        sa.Column("schedule", sa.String(200)),
        sa.Column("scheduled_for", sa.BigInteger),
        sa.Column("progress", sa.SmallInteger),
        sa.Column("progress_note", sa.String(500)),
        sa.Column("tags", _text()),
        sa.Column("labels", _text()),
        sa.Column("options", _text()),
        sa.Column("history", _text()),
        sa.Column("last_error", _text()),
        sa.Column("result", _text()),
        sa.Column("arguments", _text(), nullable=False),
        sa.CheckConstraint(
            "state IN ('blocked', 'scheduled', 'ready', 'running', 'succeeded', 'failed', 'cancelled', 'skipped')",
            name="fencepost_jobs_state",
        ),
        if_not_exists=True,
        **_MYSQL,
    )
    for name, columns, unique in (
        ("ready", ["line", "rank"], False),
        ("wake", ["wake_at"], False),
        ("lease", ["lease_until"], False),
        ("live", ["live_key"], True),
        ("finished", ["finished_at"], False),
        ("occurrence", ["schedule", "scheduled_for"], True),
    ):
        present = sa.text(f"{columns[0]} IS NOT NULL")
        op.create_index(
            f"fencepost_jobs_{name}",
            "fencepost_jobs",
            columns,
            unique=unique,
            sqlite_where=present,
            postgresql_where=present,
            if_not_exists=True,
        )
    op.create_table(
        "fencepost_queues",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("paused_at", sa.BigInteger),
        if_not_exists=True,
        **_MYSQL,
    )
    op.create_table(
        "fencepost_workers",
        sa.Column("owner", sa.String(200), primary_key=True),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("queues", _text()),
        sa.Column("kinds", _text(), nullable=False),
        sa.Column("running", sa.Integer, nullable=False),
        sa.Column("lease", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **_MYSQL,
    )
