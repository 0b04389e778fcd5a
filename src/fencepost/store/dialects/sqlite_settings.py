"""SQLite's settings: what `fencepost doctor` reads of them and what it says."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.engine import Connection

from fencepost.store.finding import Finding, Level

__all__ = ["facts", "judge"]


def facts(conn: Connection, path: Path | None, *, is_thorough: bool) -> dict[str, str]:
    """The pragmas, and the modes of the file and its companions."""
    found = {name: str(conn.exec_driver_sql(f"PRAGMA {name}").scalar()) for name in ("journal_mode", "synchronous")}
    if path is not None:
        for companion in _companions(path):
            found[f"mode of {companion}"] = f"{stat.S_IMODE(companion.stat().st_mode):o}"
    if is_thorough:
        found["quick_check"] = "; ".join(str(row[0]) for row in conn.exec_driver_sql("PRAGMA quick_check(5)"))
    return found


def judge(facts: Mapping[str, str]) -> list[Finding]:
    """WAL, synchronous, who may read the files, and whether they are whole."""
    return [
        _judge_journal(facts["journal_mode"]),
        _judge_synchronous(facts["synchronous"]),
        _judge_modes({name: mode for name, mode in facts.items() if name.startswith("mode of ")}),
        *([_judge_integrity(facts["quick_check"])] if "quick_check" in facts else []),
    ]


def _companions(path: Path) -> list[Path]:
    return [file for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")) if file.exists()]


def _judge_journal(mode: str) -> Finding:
    if mode == "wal":
        return Finding("journal", Level.OK, "The journal is a write-ahead log: readers and the writer do not wait.")
    return Finding(
        "journal",
        Level.WARNING,
        f"journal_mode is {mode}, not wal: readers and writers wait for each other.",
        "Put the file on a local disk: network and shared file systems cannot do WAL, and their locks cannot be "
        "relied on.",
    )


def _judge_synchronous(number: str) -> Finding:
    word = {"0": "OFF", "1": "NORMAL", "2": "FULL", "3": "EXTRA"}.get(number, number)
    if word in ("FULL", "EXTRA"):
        return Finding("synchronous", Level.OK, f"synchronous is {word}: what was acknowledged is on the disk.")
    return Finding(
        "synchronous",
        Level.WARNING,
        f"synchronous is {word}: a power cut may take back the last acknowledged jobs (a crash of a process may not).",
        "Unless that is meant, leave synchronous= out of fencepost.App(...).",
    )


def _judge_modes(modes: Mapping[str, str]) -> Finding:
    readable = {name.removeprefix("mode of "): mode for name, mode in modes.items() if int(mode, 8) & 0o077}
    if not readable:
        return Finding("permissions", Level.OK, "The files can be read by their owner alone.")
    named = ", ".join(f"{name} ({mode})" for name, mode in readable.items())
    return Finding(
        "permissions",
        Level.WARNING,
        f"Others on this machine may open {named}.",
        f"Unless that is meant: chmod 600 {' '.join(readable)}",
    )


def _judge_integrity(answer: str) -> Finding:
    if answer == "ok":
        return Finding("integrity", Level.OK, "The file is whole (quick_check).")
    return Finding(
        "integrity",
        Level.PROBLEM,
        f"The file is damaged: {answer}",
        "Stop the workers, copy the file away, and recover what can be read: sqlite3 jobs.db .recover",
    )
