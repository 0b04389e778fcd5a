"""The tables, defined once for the three databases. The row's shape is its state.

Each live state has its own nullable column, set only in that state and indexed, so that a row stands in
exactly the index of the state that it is in:

| column          | not null while                      | index serves                             |
| --------------- | ----------------------------------- | ---------------------------------------- |
| `line`, `rank`  | ready, or blocked                   | claim: one range scan per line           |
| `wake_at`       | scheduled, ready with a deadline,   | promotion of due jobs, urgency, passing  |
|                 | waiting for other jobs, or final    | on what became of a job                  |
|                 | with successors that have not heard |                                          |
| `lease_until`   | running                             | reclaim of expired leases                |
| `live_key`      | live, with an identity              | UNIQUE: the identity                     |
| `finished_at`   | final                               | retention, listing                       |

`line` numbers the triple (queue, kind, labels): the jobs of one kind and of equal needs that wait in one queue stand
in one line, so that a worker finds what it can run without reading past what it cannot. Jobs under limits stand, while
they are ready, in a few lines beside that. Lines with negative numbers hold `blocked` jobs, which no claim finds: those
that wait for a limit, and those that wait for their tenant's turn in a fair queue. `live_key` is a digest of (kind,
key): an identity of any length and any alphabet, compared byte for byte whatever the database's collation.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Double,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    case,
    literal_column,
    text,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

from fencepost.job import State

__all__ = [
    "GATE_LINES",
    "KEY_CHARS",
    "KIND_CHARS",
    "LEAST_PERMIT_LINE",
    "NAME_CHARS",
    "NOTE_CHARS",
    "ONE",
    "QUEUE_CHARS",
    "Standing",
    "dependencies",
    "gate_of",
    "holdings",
    "jobs",
    "leader",
    "limits",
    "line_numbers_of",
    "line_of",
    "line_of_row",
    "live_key_of",
    "metadata",
    "passes",
    "permit_digest_of",
    "permit_line_of",
    "permits",
    "queues",
    "retention",
    "schedules",
    "tenants",
    "told_at",
    "turn_line_of",
    "word",
    "words",
    "workers",
]

KIND_CHARS = 300
QUEUE_CHARS = 100
KEY_CHARS = 512
NAME_CHARS = 200
"""Of tenants, schedules and owners of leases."""
NOTE_CHARS = 500

GATE_LINES = 16
"""Over how many lines the jobs of a kind that stand under limits are spread: a step of the claim's loose scan each."""

metadata = MetaData()

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def _id() -> TypeEngine[str]:
    return (
        String(36)
        .with_variant(postgresql.UUID(as_uuid=False), "postgresql")
        .with_variant(mysql.CHAR(36, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
    )


def _digest() -> TypeEngine[str]:
    return String(32).with_variant(mysql.CHAR(32, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")


def _text() -> TypeEngine[str]:
    # MySQL's TEXT ends at 64 KiB; a cut payload would be a lost one.
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


_STATES = ", ".join(f"'{state}'" for state in State)

jobs = Table(
    "fencepost_jobs",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("kind", String(KIND_CHARS), nullable=False),
    Column("queue", String(QUEUE_CHARS), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(40)),
    Column("priority", String(16), nullable=False),
    Column("line", BigInteger),
    Column("rank", BigInteger),
    Column("wake_at", BigInteger),
    Column("lease_until", BigInteger),
    Column("lease_owner", String(NAME_CHARS)),
    Column("lease_token", BigInteger, nullable=False, server_default=text("0")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer, nullable=False),
    Column("live_key", _digest()),
    Column("dedup_key", String(KEY_CHARS)),
    Column("hold", String(16)),
    Column("run_at", BigInteger),
    Column("deadline", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("cancel_requested_at", BigInteger),
    Column("tenant", String(NAME_CHARS)),
    Column("schedule", String(NAME_CHARS)),
    Column("scheduled_for", BigInteger),
    Column("trigger", String(16)),
    Column("permit_key", String(KEY_CHARS)),
    Column("permit_slots", Integer),
    Column("permit_policy", String(24)),
    Column("permit_slot", Integer),
    Column("permit_token", BigInteger),
    Column("limits", _text()),
    Column("progress", SmallInteger),
    Column("progress_note", String(NOTE_CHARS)),
    Column("tags", _text()),
    Column("labels", _text()),
    Column("options", _text()),
    Column("history", _text()),
    Column("last_error", _text()),
    Column("result", _text()),
    Column("arguments", _text(), nullable=False),
    Column("waits_for", Integer),
    Column("has_successors", SmallInteger),
    CheckConstraint(f"state IN ({_STATES})", name="fencepost_jobs_state"),
    **_MYSQL,
)


def _index(name: str, *columns: str, unique: bool = False) -> None:
    # Partial where the database can: a row is then in no index but those of its present state.
    present = jobs.c[columns[0]].is_not(None)
    Index(
        f"fencepost_jobs_{name}",
        *(jobs.c[column] for column in columns),
        unique=unique,
        sqlite_where=present,
        postgresql_where=present,
    )


_index("ready", "line", "rank")
_index("wake", "wake_at")
_index("lease", "lease_until")
_index("live", "live_key", unique=True)
_index("finished", "finished_at")
_index("occurrence", "schedule", "scheduled_for", unique=True)

queues = Table(
    "fencepost_queues",
    metadata,
    Column("name", String(QUEUE_CHARS), primary_key=True),
    Column("paused_at", BigInteger),
    Column("fair", SmallInteger, nullable=False, server_default=text("0")),
    Column("fair_period", BigInteger, nullable=False, server_default=text("0")),
    Column("fair_anchor", BigInteger, nullable=False, server_default=text("0")),
    Column("virtual_time", BigInteger, nullable=False, server_default=text("0")),
    Column("last_start", BigInteger, nullable=False, server_default=text("0")),
    Column("backlogged", SmallInteger, nullable=False, server_default=text("0")),
    Column("max_pending", Integer),
    Column("overflow", String(16)),
    Column("overflow_wait", BigInteger),
    Column("shed", BigInteger, nullable=False, server_default=text("0")),
    Column("updated_at", BigInteger),
    **_MYSQL,
)

tenants = Table(
    "fencepost_tenants",
    metadata,
    Column("queue", String(QUEUE_CHARS), primary_key=True),
    Column("tenant", String(NAME_CHARS), primary_key=True),
    Column("weight", Double),
    Column("fair_period", BigInteger, nullable=False),
    Column("virtual_finish", BigInteger, nullable=False),
    **_MYSQL,
)

permits = Table(
    "fencepost_permits",
    metadata,
    Column("key_digest", _digest(), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("permit_key", String(KEY_CHARS), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("job_id", _id()),
    Column("lease_token", BigInteger),
    **_MYSQL,
)

limits = Table(
    "fencepost_limits",
    metadata,
    Column("digest", _digest(), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("name", String(512), nullable=False),
    Column("declared_at", BigInteger),
    Column("rate", Double),
    Column("burst", BigInteger),
    Column("tat", BigInteger),
    Column("due_at", BigInteger),
    Column("capacity", BigInteger),
    **_MYSQL,
)
Index(
    "fencepost_limits_due",
    limits.c.due_at,
    sqlite_where=limits.c.due_at.is_not(None),
    postgresql_where=limits.c.due_at.is_not(None),
)

holdings = Table(
    "fencepost_holdings",
    metadata,
    Column("digest", _digest(), primary_key=True),
    Column("job_id", _id(), primary_key=True),
    Column("lease_token", BigInteger, primary_key=True, autoincrement=False),
    Column("amount", BigInteger, nullable=False),
    **_MYSQL,
)

dependencies = Table(
    "fencepost_dependencies",
    metadata,
    Column("job_id", _id(), primary_key=True),
    Column("predecessor_id", _id(), primary_key=True),
    Column("condition", String(16), nullable=False),
    Column("name", String(NAME_CHARS)),
    Column("is_open", SmallInteger, nullable=False),
    **_MYSQL,
)
Index("fencepost_dependencies_predecessor", dependencies.c.predecessor_id)

schedules = Table(
    "fencepost_schedules",
    metadata,
    Column("name", String(NAME_CHARS), primary_key=True),
    Column("kind", String(KIND_CHARS), nullable=False),
    Column("queue", String(QUEUE_CHARS), nullable=False),
    Column("timing", _text(), nullable=False),
    Column("arguments", _text(), nullable=False),
    Column("options", _text()),
    Column("misfire", String(16), nullable=False),
    Column("max_catch_up", Integer, nullable=False),
    Column("grace", BigInteger, nullable=False),
    Column("jitter", BigInteger, nullable=False),
    Column("until", BigInteger),
    Column("max_runs", Integer),
    Column("runs", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("config_hash", _digest(), nullable=False),
    Column("superseded", _text()),
    Column("declared_in", String(KIND_CHARS)),
    Column("overlap", String(24), nullable=False),
    Column("permit_key", String(KEY_CHARS)),
    Column("permit_slots", Integer, nullable=False),
    Column("next_fire_at", BigInteger),
    Column("plan_at", BigInteger),
    Column("paused_at", BigInteger),
    Column("paused_reason", String(16)),
    Column("error", _text()),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    **_MYSQL,
)
Index(
    "fencepost_schedules_plan",
    schedules.c.plan_at,
    sqlite_where=schedules.c.plan_at.is_not(None),
    postgresql_where=schedules.c.plan_at.is_not(None),
)

workers = Table(
    "fencepost_workers",
    metadata,
    Column("owner", String(NAME_CHARS), primary_key=True),
    Column("host", String(NAME_CHARS), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("queues", _text()),
    Column("kinds", _text(), nullable=False),
    Column("running", Integer, nullable=False),
    Column("lease", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("labels", _text()),
    **_MYSQL,
)

leader = Table(
    "fencepost_leader",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", String(200)),
    Column("since", BigInteger),
    Column("renewed_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    **_MYSQL,
)

passes = Table(
    "fencepost_passes",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("succeeded_at", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("moved", BigInteger, nullable=False),
    **_MYSQL,
)

retention = Table(
    "fencepost_retention",
    metadata,
    Column("queue", String(QUEUE_CHARS), primary_key=True),
    Column("rules", _text(), nullable=False),
    **_MYSQL,
)


def line_of(queue: str, kind: str, *, labels: str | None = None, gate: str | None = None) -> int:
    """The number of the line in which jobs of `kind` wait in `queue`: 63 bits of a digest, the same everywhere.

    Args:
        queue, kind: theirs.
        labels: what they need of their worker, as canonical JSON; None: nothing.
        gate: what `gate_of` says of the job. Jobs under limits stand in lines of their own, spread over a few by their
            key, so that a flood of one saturated key has few of the others behind it.
    """
    spread = None if gate is None else blake2b(gate.encode(), digest_size=1).digest()[0] % GATE_LINES
    return _line_number(queue, kind, labels, spread)


def line_numbers_of(queue: str, kind: str) -> list[int]:
    """All lines in which jobs of `kind` that need no labels can wait in `queue`."""
    return [_line_number(queue, kind, None, spread) for spread in (None, *range(GATE_LINES))]


def _line_number(queue: str, kind: str, labels: str | None, spread: int | None) -> int:
    named = f"{queue}\0{kind}"
    if labels is not None:
        named += f"\0labels={labels}"
    if spread is not None:
        named += f"\0{spread}"
    return int.from_bytes(blake2b(named.encode(), digest_size=8).digest(), "big") >> 1


def gate_of(permit_key: str | None, limits: str | None) -> str | None:
    """What a job's line depends on beside its queue, kind and labels: its key, or all that limits it; None: nothing.

    Args:
        permit_key: the column.
        limits: the column.
    """
    return limits if permit_key is None else permit_key


class Standing(Protocol):
    """What decides in which line a job stands: a row with these columns."""

    @property
    def queue(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def labels(self) -> str | None: ...
    @property
    def permit_key(self) -> str | None: ...
    @property
    def limits(self) -> str | None: ...


def line_of_row(job: Standing) -> int:
    """The line in which a job that is stored already stands whenever it is ready."""
    return line_of(job.queue, job.kind, labels=job.labels, gate=gate_of(job.permit_key, job.limits))


def permit_line_of(digest: str) -> int:
    """The line in which the jobs that wait for a permit of a key stand: negative, so that no claim finds it."""
    return -1 - (int(digest[:16], 16) >> 2)


LEAST_PERMIT_LINE = -(2**62)
"""Permit lines are from here to -1; below stand the jobs that wait for their tenant's turn in a fair queue."""


def turn_line_of(queue: str, kind: str, tenant: str | None) -> int:
    """The line in which a tenant's jobs of a kind wait for their turn in a fair queue, in order of arrival."""
    digest = blake2b(f"{queue}\0{kind}\0{tenant or ''}".encode(), digest_size=8).digest()
    return LEAST_PERMIT_LINE - 1 - (int.from_bytes(digest, "big") >> 2)


def permit_digest_of(key: str) -> str:
    """The digest by which a concurrency key is found: 32 hexadecimal characters."""
    return blake2b(key.encode(), digest_size=16).hexdigest()


def live_key_of(kind: str, key: str) -> str:
    """The digest by which the identity `(kind, key)` is unique: 32 hexadecimal characters."""
    return blake2b(f"{kind}\0{key}".encode(), digest_size=16).hexdigest()


def told_at(finished_at: Any, *, otherwise: Any = None) -> ColumnElement[int | None]:
    """The `wake_at` of a row that becomes final at an instant: due at once if other jobs wait for it.

    Whatever ends a job writes it, in the same write, and so nobody who waits is forgotten, whoever is killed.

    Args:
        finished_at: the instant.
        otherwise: of a row that nobody waits for; default NULL.
    """
    return case((jobs.c.has_successors.is_not(None), finished_at), else_=otherwise)


ONE: ColumnElement[int] = literal_column("1", Integer)


def word(value: StrEnum) -> ColumnElement[str]:
    """One of our words as it stands in a statement's text, so that hot statements carry no constant parameters."""
    return literal_column(f"'{value.value}'", String)


def words(values: Iterable[StrEnum]) -> list[ColumnElement[str]]:
    """Several of them, for IN."""
    return [word(value) for value in values]
