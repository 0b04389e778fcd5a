"""The databases that the tests run on: SQLite always, servers where they are found.

FENCEPOST_TEST_POSTGRES and FENCEPOST_TEST_MYSQL name servers (as URLs of a database that may be connected to); without
them the local default ones are tried. Each test process makes a scratch database of its own there and drops it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from sqlalchemy import URL, create_engine, exc, make_url, text

SERVERS = {
    "postgresql": ("FENCEPOST_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"),
    "mysql": ("FENCEPOST_TEST_MYSQL", "mysql+pymysql://root@127.0.0.1:3306/"),
}
NAMES = ("sqlite", *SERVERS)
_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
TABLES = (
    *(
        "fencepost_jobs",
        "fencepost_queues",
        "fencepost_tenants",
        "fencepost_workers",
        "fencepost_permits",
        "fencepost_schedules",
    ),
    *("fencepost_limits", "fencepost_holdings", "fencepost_leader", "fencepost_passes", "fencepost_retention"),
    "fencepost_dependencies",
)


@cache
def server(name: str) -> URL | None:
    """The server's URL, or None where it does not answer."""
    variable, default = SERVERS[name]
    url = make_url(os.environ.get(variable, default)).set(drivername=_DRIVERS[name])
    timeout = {"connect_timeout": 3}
    engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args=timeout)
    try:
        with engine.connect() as conn:
            conn.execute(text("SELECT 1"))
    except exc.OperationalError:
        return None
    finally:
        engine.dispose()
    return url


def pgbouncer() -> Path | None:
    """The pooler's program, or None where it is not installed. Debian keeps it where only root looks."""
    found = shutil.which("pgbouncer", path=os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin")
    return None if found is None else Path(found)


def left_out() -> list[str]:
    """The tests that cannot run here, for want of a server or a program, and what would let them."""
    missing = [f"every test on {name} (set {SERVERS[name][0]})" for name in SERVERS if server(name) is None]
    return missing if pgbouncer() else [*missing, "the tests behind a pooler (install pgbouncer)"]


@contextmanager
def scratch_database(name: str) -> Iterator[URL]:
    """A new, empty database on a server, dropped at the end."""
    url = server(name)
    assert url is not None, f"{name} does not answer"
    database = f"fencepost_test_{os.getpid()}_{secrets.token_hex(4)}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as conn:
            conn.execute(text(f"CREATE DATABASE {database}"))
        yield url.set(database=database)
        with engine.connect() as conn:
            force = " WITH (FORCE)" if name == "postgresql" else ""
            conn.execute(text(f"DROP DATABASE {database}{force}"))
    finally:
        engine.dispose()


def sqlite_url(folder: Path, name: str = "jobs.db") -> URL:
    """A SQLite file in a folder."""
    return URL.create("sqlite", database=str(folder / name))
