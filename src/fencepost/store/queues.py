"""Settings of queues and weights of tenants: what people declare, as it stands in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.engine import Connection

from fencepost.queue import Overflow, QueueSettings
from fencepost.store.database import Database
from fencepost.store.tables import queues, tenants

__all__ = ["forget_idle", "load_settings", "lock_queue", "save_settings", "set_weight", "settings_of", "weights_of"]

_DEFAULTS = QueueSettings()
_LOCKED = select(queues).where(queues.c.name == bindparam("name")).with_for_update()
_SETTINGS = select(queues).where(queues.c.updated_at.is_not(None))
_WEIGHTS = select(tenants.c.tenant, tenants.c.weight).where(
    tenants.c.queue == bindparam("queue"), tenants.c.weight.is_not(None)
)


def settings_of(row: Any) -> QueueSettings:
    """A queue's row as settings. An overflow that this version does not know rejects, which loses nothing silently."""
    overflow = row.overflow if row.overflow in list(Overflow) else _DEFAULTS.overflow
    wait = _DEFAULTS.wait if row.overflow_wait is None else row.overflow_wait
    return QueueSettings(bool(row.fair), row.max_pending, Overflow(overflow), wait)


def load_settings(conn: Connection) -> dict[str, QueueSettings]:
    """The settings of every queue that has been given some, by name."""
    return {row.name: settings_of(row) for row in conn.execute(_SETTINGS)}


def save_settings(database: Database, conn: Connection, name: str, settings: QueueSettings) -> None:
    """Write a queue's settings; whether it is paused stays as it is."""
    values = {"name": name, "updated_at": database.now(conn)} | _columns(settings)
    conn.execute(database.dialect.upsert(queues, values, key="name"))


def _columns(settings: QueueSettings) -> dict[str, Any]:
    return {
        "fair": int(settings.fair),
        "max_pending": settings.max_pending,
        "overflow": settings.overflow.value,
        "overflow_wait": settings.wait,
    }


def lock_queue(database: Database, conn: Connection, name: str) -> Any:
    """A queue's row, locked until the transaction ends; made where there is none yet."""
    found = conn.execute(_LOCKED, {"name": name}).first()
    if found is None:
        conn.execute(database.dialect.ignoring_conflicts(queues).values({"name": name}))
        found = conn.execute(_LOCKED, {"name": name}).one()
    return found


def set_weight(database: Database, conn: Connection, queue: str, tenant: str, weight: float | None) -> None:
    """Give a tenant its weight in a queue; None: the default."""
    lock_queue(database, conn, queue)  # a pass that gives turns writes the same rows
    own = (tenants.c.queue == queue) & (tenants.c.tenant == tenant)
    if conn.execute(update(tenants).where(own).values(weight=weight)).rowcount == 0 and weight is not None:
        clock = {"fair_period": 0, "virtual_finish": 0}
        conn.execute(tenants.insert().values(queue=queue, tenant=tenant, weight=weight, **clock))


def weights_of(conn: Connection, queue: str) -> Mapping[str, float]:
    """The weights that were set in a queue, by tenant."""
    return {row.tenant: row.weight for row in conn.execute(_WEIGHTS, {"queue": queue})}


def forget_idle(conn: Connection, queue: str, period: int, *, batch: int) -> None:
    """Delete clocks of periods that are over: they say nothing any more, and tenants come and go."""
    over = (tenants.c.queue == queue) & (tenants.c.fair_period < period) & tenants.c.weight.is_(None)
    names = [row.tenant for row in conn.execute(select(tenants.c.tenant).where(over).limit(batch))]
    if names:
        conn.execute(delete(tenants).where(over, tenants.c.tenant.in_(names)))
