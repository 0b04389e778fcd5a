"""The planner's instant of a schedule, which may lie before the one it plans."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    inspector = sa.inspect(op.get_bind())
    if "plan_at" not in {column["name"] for column in inspector.get_columns("fencepost_schedules")}:
        op.add_column("fencepost_schedules", sa.Column("plan_at", sa.BigInteger))
    op.execute("UPDATE fencepost_schedules SET plan_at = next_fire_at")
    indexes = {index["name"] for index in inspector.get_indexes("fencepost_schedules")}
    if "fencepost_schedules_plan" not in indexes:
        present = sa.text("plan_at IS NOT NULL")
        op.create_index(
            "fencepost_schedules_plan",
            "fencepost_schedules",
            ["plan_at"],
            sqlite_where=present,
            postgresql_where=present,
        )
    if "fencepost_schedules_next" in indexes:
        op.drop_index("fencepost_schedules_next", "fencepost_schedules")
