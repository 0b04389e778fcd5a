"""Database servers of a test's own, which may be killed and started again."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sqlalchemy import URL, create_engine, exc, text

from tests import databases
from tests.waiting import until

__all__ = ["PgBouncer", "PrivateServer", "private_pgbouncer", "private_server"]

Server = TypeVar("Server", bound="PrivateServer")


class PrivateServer(ABC):
    """One server process on its own data directory, port and socket."""

    account: ClassVar[str]
    """Whom to run it as when the tests run as root, as which no database server likes to run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: dict[str, Any] = {}
        if os.getuid() == 0:
            entry = pwd.getpwnam(self.account)
            self._identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(folder, entry.pw_uid, entry.pw_gid)

    @property
    @abstractmethod
    def url(self) -> URL:
        """A database on it."""

    @abstractmethod
    def install(self) -> None:
        """Put into the folder what the server needs before its first start."""

    @abstractmethod
    def _server_command(self) -> list[str]: ...

    @abstractmethod
    def _stop_signal(self) -> signal.Signals: ...

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=self.folder, **self._identity)

    @property
    def said(self) -> str:
        """Its log."""
        return (self.folder / "server.log").read_text()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._server_command(), stdout=log, stderr=log, cwd=self.folder, **self._identity
            )
        until(self._answers, f"{type(self).__name__} answers", seconds=30, look=0.1)

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Have it end its sessions and stop."""
        self._end(self._stop_signal())

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            # After a crash a server may refuse to start until the last of its old children is gone.
            self.start()
        engine = create_engine(self.url)
        try:
            with engine.connect() as conn:
                conn.execute(text("SELECT 1"))
            return True
        except exc.DBAPIError:
            return False
        finally:
            engine.dispose()


class PgBouncer(PrivateServer):
    """pgbouncer in transaction mode, with few connections to the server that a test's database is on.

    Args:
        folder: its own.
        database: the database that stands behind it.
    """

    account = "postgres"
    pool_size = 5

    def __init__(self, folder: Path, database: URL) -> None:
        super().__init__(folder)
        self._database = database
        program = databases.pgbouncer()
        assert program is not None, "pgbouncer is not installed"
        self._program = str(program)

    @property
    def url(self) -> URL:
        """The same database, through the pooler. It takes any name and logs in on the server by itself."""
        return self._database.set(host="127.0.0.1", port=self.port, password=None)

    def install(self) -> None:
        """Write the configuration."""
        behind = {
            "host": self._database.host or "127.0.0.1",
            "port": self._database.port or 5432,
            "user": self._database.username,
            "password": self._database.password,
        }
        given = {name: str(value).replace("'", "''") for name, value in behind.items() if value is not None}
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": self.pool_size,
            "max_client_conn": 500,
        }
        if self._version() >= (1, 21):  # older ones have no such setting, and never keep prepared statements
            settings["max_prepared_statements"] = 0
        lines = [
            "[databases]",
            "* = " + " ".join(f"{name}='{value}'" for name, value in given.items()),
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")

    def _version(self) -> tuple[int, ...]:
        said = subprocess.run(
            [self._program, "--version"], check=True, capture_output=True, text=True, timeout=10
        ).stdout
        found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
        assert found is not None, said
        return int(found[1]), int(found[2])

    def _server_command(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGINT  # it waits for open transactions


class PrivatePostgres(PrivateServer):
    """PostgreSQL."""

    account = "postgres"

    @property
    def url(self) -> URL:
        """Its first database."""
        return URL.create(
            "postgresql+psycopg", username="postgres", host="127.0.0.1", port=self.port, database="postgres"
        )

    def install(self) -> None:
        """Make the data directory."""
        initdb = str(_postgres_bin() / "initdb")
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        self._run([initdb, *options, "--pgdata", str(self.folder / "data")])

    def _server_command(self) -> list[str]:
        server = str(_postgres_bin() / "postgres")
        return [server, "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)]

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGINT  # "fast": sessions are ended


class PrivateMariaDB(PrivateServer):
    """MariaDB."""

    account = "mysql"

    @property
    def url(self) -> URL:
        """The database that `install` made."""
        return URL.create("mysql+pymysql", username="root", host="127.0.0.1", port=self.port, database="jobs")

    def install(self) -> None:
        """Make the data directory and a database in it."""
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        self._run(["mariadb-install-db", "--no-defaults", *options, f"--datadir={self.folder / 'data'}"])
        database = self.folder / "data" / "jobs"
        database.mkdir()
        if self._identity:
            os.chown(database, self._identity["user"], self._identity["group"])

    def _server_command(self) -> list[str]:
        server = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        return [
            server,
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--port={self.port}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            "--bind-address=127.0.0.1",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
        ]

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGTERM


def _postgres_bin() -> Path:
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).parent
    # Debian keeps the server's programs off the path.
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return versions[-1].parent if versions else Path("/nonexistent")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _missing(name: str) -> str | None:
    """Why a server of one's own cannot be started here."""
    if name == "postgresql":
        return None if (_postgres_bin() / "initdb").exists() else "the programs initdb and postgres are not installed"
    found = shutil.which("mariadb-install-db") and (shutil.which("mariadbd") or Path("/usr/sbin/mariadbd").exists())
    return None if found else "the programs mariadb-install-db and mariadbd are not installed"


@contextmanager
def private_server(name: str) -> Iterator[PrivateServer | str]:
    """A running server of one's own; or why there is none."""
    missing = _missing(name)
    if missing is not None:
        yield missing
        return
    with _running(PrivatePostgres if name == "postgresql" else PrivateMariaDB, name) as server:
        yield server


@contextmanager
def private_pgbouncer(database: URL) -> Iterator[PgBouncer | str]:
    """A running pgbouncer in front of a PostgreSQL database; or why there is none."""
    if databases.pgbouncer() is None:
        yield "pgbouncer is not installed"
        return
    with _running(lambda folder: PgBouncer(folder, database), "pgbouncer") as server:
        yield server


@contextmanager
def _running(make: Callable[[Path], Server], name: str) -> Iterator[Server | str]:
    folder = Path(tempfile.mkdtemp(prefix="fencepost-"))
    try:
        try:
            server = make(folder)
            server.install()
        except (KeyError, OSError, subprocess.SubprocessError) as error:
            yield f"{name} cannot be set up here: {error}"
            return
        try:
            server.start()
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
