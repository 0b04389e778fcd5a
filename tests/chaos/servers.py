"""Database servers of a test's own, which may be killed and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import URL, create_engine, exc, text

from tests.waiting import until

__all__ = ["PrivateServer", "private_server"]


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
    def _install_command(self) -> list[str]: ...

    @abstractmethod
    def _server_command(self) -> list[str]: ...

    @abstractmethod
    def _stop_signal(self) -> signal.Signals: ...

    def install(self) -> None:
        """Make the data directory."""
        subprocess.run(
            self._install_command(), check=True, capture_output=True, timeout=60, cwd=self.folder, **self._identity
        )

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


class PrivatePostgres(PrivateServer):
    """PostgreSQL."""

    account = "postgres"

    @property
    def url(self) -> URL:
        """Its first database."""
        return URL.create(
            "postgresql+psycopg", username="postgres", host="127.0.0.1", port=self.port, database="postgres"
        )

    def _install_command(self) -> list[str]:
        initdb = str(_postgres_bin() / "initdb")
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        return [initdb, *options, "--pgdata", str(self.folder / "data")]

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
        super().install()
        database = self.folder / "data" / "jobs"
        database.mkdir()
        if self._identity:
            os.chown(database, self._identity["user"], self._identity["group"])

    def _install_command(self) -> list[str]:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        return ["mariadb-install-db", "--no-defaults", *options, f"--datadir={self.folder / 'data'}"]

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
    folder = Path(tempfile.mkdtemp(prefix="fencepost-"))
    try:
        kind = PrivatePostgres if name == "postgresql" else PrivateMariaDB
        try:
            server = kind(folder)
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
