"""MariaDB's and MySQL's settings: what `fencepost doctor` reads of them and what it says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlalchemy import bindparam, text
from sqlalchemy.engine import Connection

from fencepost.store.finding import Finding, Level
from fencepost.store.tables import jobs

__all__ = ["facts", "judge"]

_OLDEST_MARIADB, _OLDEST_MYSQL = (10, 6), (8, 0, 16)  # SKIP LOCKED; CHECK constraints
_VARIABLE_NAMES = (
    *("version", "transaction_isolation", "tx_isolation", "character_set_connection", "max_allowed_packet"),
    *("innodb_flush_log_at_trx_commit", "read_only"),
)
_VARIABLES = text("SHOW VARIABLES WHERE Variable_name IN :names").bindparams(bindparam("names", expanding=True))
_TABLE = text(
    "SELECT engine, table_collation FROM information_schema.tables WHERE table_schema = DATABASE() AND "
    "table_name = :name"
)
_PACKET_OVERHEAD = 64 * 1024


def facts(conn: Connection) -> dict[str, str]:
    """Variables as this session sees them, and how the jobs table is kept."""
    found = {str(name): str(value) for name, value in conn.execute(_VARIABLES, {"names": list(_VARIABLE_NAMES)})}
    kept = conn.execute(_TABLE, {"name": jobs.name}).first()
    if kept is not None:
        found |= {"engine": str(kept[0]), "collation": str(kept[1])}
    return found


def judge(facts: Mapping[str, str], *, payload_bytes: int) -> list[Finding]:
    """Version, isolation, character set, packet size, engine, and whether a commit reaches the disk."""
    return [
        _judge_version(facts),
        _judge_isolation(facts),
        _judge_charset(facts),
        _judge_packet(facts, payload_bytes),
        *_judge_table(facts),
        _judge_durability(facts),
        *_judge_read_only(facts),
    ]


def _judge_version(facts: Mapping[str, str]) -> Finding:
    found = facts["version"]
    name, oldest = ("MariaDB", _OLDEST_MARIADB) if "mariadb" in found.lower() else ("MySQL", _OLDEST_MYSQL)
    numbers = tuple(int(number) for number in re.findall(r"\d+", found.removeprefix("5.5.5-"))[:3])
    if numbers >= oldest:
        return Finding("version", Level.OK, f"{name} {found}.")
    return Finding(
        "version",
        Level.PROBLEM,
        f"{name} {found} is older than fencepost is made for.",
        f"Upgrade the server to {name} {'.'.join(str(number) for number in oldest)} or newer.",
    )


def _judge_isolation(facts: Mapping[str, str]) -> Finding:
    isolation = facts.get("transaction_isolation", facts.get("tx_isolation", "unknown"))
    if isolation == "READ-COMMITTED":
        return Finding("isolation", Level.OK, "Transactions are READ COMMITTED.")
    return Finding(
        "isolation",
        Level.WARNING,
        f"Transactions are {isolation}: claims lock gaps and run into deadlocks.",
        "Leave isolation_level out of the engine or the proxy's settings, or set READ COMMITTED.",
    )


def _judge_charset(facts: Mapping[str, str]) -> Finding:
    wrong = [
        f"{what} is {found}"
        for what, found in (
            ("the connection's character set", facts["character_set_connection"]),
            ("the jobs table's collation", facts.get("collation", "utf8mb4_bin")),
        )
        if not found.startswith("utf8mb4")
    ]
    if not wrong:
        return Finding("encoding", Level.OK, "Text is stored as utf8mb4.")
    return Finding(
        "encoding",
        Level.PROBLEM,
        f"Not every text can be stored: {' and '.join(wrong)}.",
        "Add ?charset=utf8mb4 to the URL; convert the table: ALTER TABLE fencepost_jobs CONVERT TO CHARACTER SET "
        "utf8mb4 COLLATE utf8mb4_bin",
    )


def _judge_packet(facts: Mapping[str, str], payload_bytes: int) -> Finding:
    packet, needed = int(facts["max_allowed_packet"]), 2 * payload_bytes + _PACKET_OVERHEAD
    if packet >= needed:
        return Finding("packet", Level.OK, f"max_allowed_packet is {packet:,}: every payload fits.")
    return Finding(
        "packet",
        Level.WARNING,
        f"max_allowed_packet is {packet:,}: payloads of more than about {max(0, packet - _PACKET_OVERHEAD) // 2:,} "
        f"bytes may be refused, and fencepost takes up to {payload_bytes:,} (which escaping may double).",
        f"SET GLOBAL max_allowed_packet = {needed}, and the same in the server's configuration; or lower "
        "max_payload_bytes in fencepost.App(...).",
    )


def _judge_table(facts: Mapping[str, str]) -> list[Finding]:
    engine = facts.get("engine", "InnoDB")
    if engine.lower() == "innodb":
        return []
    return [
        Finding(
            "engine",
            Level.PROBLEM,
            f"fencepost_jobs is kept by {engine}, which has no transactions: jobs can be lost and run twice.",
            "ALTER TABLE fencepost_jobs ENGINE = InnoDB, and the other fencepost tables alike.",
        )
    ]


def _judge_durability(facts: Mapping[str, str]) -> Finding:
    flush = facts.get("innodb_flush_log_at_trx_commit", "1")
    if flush in ("1", "3"):
        return Finding("durability", Level.OK, "What was acknowledged is on the disk.")
    return Finding(
        "durability",
        Level.WARNING,
        f"innodb_flush_log_at_trx_commit is {flush}: a crash of the server's machine may take back acknowledged jobs.",
        "Unless that is meant: SET GLOBAL innodb_flush_log_at_trx_commit = 1",
    )


def _judge_read_only(facts: Mapping[str, str]) -> list[Finding]:
    if facts.get("read_only", "OFF") in ("OFF", "0"):
        return []
    return [
        Finding(
            "read-only",
            Level.PROBLEM,
            f"The server takes no writes (read_only is {facts['read_only']}): it is a replica, or being promoted.",
            "Let the URL name the primary, or SET GLOBAL read_only = OFF if this is the one.",
        )
    ]
