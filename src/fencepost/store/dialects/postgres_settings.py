"""PostgreSQL's settings: what `fencepost doctor` reads of them and what it says."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from fencepost.store.finding import Finding, Level

__all__ = ["facts", "judge"]

_OLDEST_VERSION = 13
_SETTINGS = (
    *("server_version", "server_version_num", "transaction_isolation", "server_encoding"),
    *("fsync", "synchronous_commit"),
)


def facts(conn: Connection) -> dict[str, str]:
    """Settings as this session sees them."""
    columns = [func.current_setting(name, True).label(name) for name in _SETTINGS]
    row = conn.execute(select(*columns, func.pg_is_in_recovery().label("in_recovery"))).one()
    return {name: str(value) for name, value in row._mapping.items()}


def judge(facts: Mapping[str, str]) -> list[Finding]:
    """Version, isolation, encoding, and whether a commit reaches the disk."""
    return [
        _judge_version(facts),
        _judge_isolation(facts),
        _judge_encoding(facts),
        _judge_durability(facts),
        *_judge_recovery(facts),
    ]


def _judge_version(facts: Mapping[str, str]) -> Finding:
    found = facts["server_version"]
    if int(facts["server_version_num"]) >= _OLDEST_VERSION * 10_000:
        return Finding("version", Level.OK, f"PostgreSQL {found}.")
    return Finding(
        "version",
        Level.PROBLEM,
        f"PostgreSQL {found} is older than fencepost is made for.",
        f"Upgrade the server to PostgreSQL {_OLDEST_VERSION} or newer.",
    )


def _judge_isolation(facts: Mapping[str, str]) -> Finding:
    isolation = facts["transaction_isolation"]
    if isolation == "read committed":
        return Finding("isolation", Level.OK, "Transactions are READ COMMITTED.")
    return Finding(
        "isolation",
        Level.WARNING,
        f"Transactions are {isolation.upper()}: claims run into serialisation failures.",
        "Leave isolation_level out of the engine or the pooler's settings, or set READ COMMITTED.",
    )


def _judge_encoding(facts: Mapping[str, str]) -> Finding:
    encoding = facts["server_encoding"]
    if encoding == "UTF8":
        return Finding("encoding", Level.OK, "The database's encoding is UTF8.")
    return Finding(
        "encoding",
        Level.PROBLEM,
        f"The database's encoding is {encoding}: it cannot store every text, and enqueueing some will fail.",
        "Move to a database made with: CREATE DATABASE jobs ENCODING 'UTF8' TEMPLATE template0",
    )


def _judge_durability(facts: Mapping[str, str]) -> Finding:
    weak = [name for name in ("fsync", "synchronous_commit") if facts[name] == "off"]
    if not weak:
        return Finding("durability", Level.OK, "What was acknowledged is on the disk.")
    return Finding(
        "durability",
        Level.WARNING,
        f"{' and '.join(weak)} off: a crash of the server may take back acknowledged jobs.",
        f"Unless that is meant, set {', '.join(f'{name} = on' for name in weak)} in postgresql.conf or for the role.",
    )


def _judge_recovery(facts: Mapping[str, str]) -> list[Finding]:
    if facts["in_recovery"].lower() not in ("true", "t"):
        return []
    return [
        Finding(
            "read-only",
            Level.PROBLEM,
            "The server is a standby and takes no writes.",
            "Let the URL name the primary, for example with target_session_attrs=read-write.",
        )
    ]
