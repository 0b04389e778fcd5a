"""Settings of queues, and the clocks of their tenants."""

from hashlib import blake2b

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_ZERO = sa.text("0")


def upgrade() -> None:
    present_columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("fencepost_queues")}
    for column in (
        sa.Column("fair", sa.SmallInteger, nullable=False, server_default=_ZERO),
        sa.Column("fair_period", sa.BigInteger, nullable=False, server_default=_ZERO),
        sa.Column("fair_anchor", sa.BigInteger, nullable=False, server_default=_ZERO),
        sa.Column("virtual_time", sa.BigInteger, nullable=False, server_default=_ZERO),
        sa.Column("last_start", sa.BigInteger, nullable=False, server_default=_ZERO),
        sa.Column("backlogged", sa.SmallInteger, nullable=False, server_default=_ZERO),
        sa.Column("max_pending", sa.Integer),
        sa.Column("overflow", sa.String(16)),
        sa.Column("overflow_wait", sa.BigInteger),
        sa.Column("shed", sa.BigInteger, nullable=False, server_default=_ZERO),
        sa.Column("updated_at", sa.BigInteger),
    ):
        if column.name not in present_columns:
            op.add_column("fencepost_queues", column)
    op.create_table(
        "fencepost_tenants",
        sa.Column("queue", sa.String(100), primary_key=True),
        sa.Column("tenant", sa.String(200), primary_key=True),
        sa.Column("weight", sa.Double),
        sa.Column("fair_period", sa.BigInteger, nullable=False),
        sa.Column("virtual_finish", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **_MYSQL,
    )
    _move_waiting_jobs()


def _move_waiting_jobs() -> None:
    """Jobs that wait for a permit stand in the upper half of the negative lines from now on."""
    jobs = sa.table("fencepost_jobs", *(sa.column(name) for name in ("line", "permit_key")))
    waiting = sa.select(jobs.c.line, jobs.c.permit_key).where(jobs.c.line < 0, jobs.c.permit_key.is_not(None))
    conn = op.get_bind()
    for line, key in conn.execute(waiting.distinct()).fetchall():
        digest = blake2b(key.encode(), digest_size=16).hexdigest()
        moved = sa.update(jobs).where(jobs.c.line == line, jobs.c.permit_key == key)
        conn.execute(moved.values(line=-1 - (int(digest[:16], 16) >> 2)))
