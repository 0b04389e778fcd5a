"""The schema's version: migrations with Alembic, one process at a time; a newer schema is refused."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.resources import files

from sqlalchemy import Column, MetaData, String, Table, inspect, select
from sqlalchemy.engine import Connection

from fencepost.errors import SchemaError
from fencepost.store.database import Database

__all__ = ["REVISIONS", "VERSION_TABLE", "SchemaStatus", "ensure", "migrate", "status"]

VERSION_TABLE = "fencepost_schema"

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008")
"""Every revision that this build knows, oldest first. A test compares it with the migration files."""

_version = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """What stands in the database, against what this build knows.

    Attributes:
        found: the database's revision; None: no fencepost tables.
        wanted: the newest revision of this build.
    """

    found: str | None
    wanted: str

    @property
    def is_current(self) -> bool:
        """Whether nothing needs to be done."""
        return self.found == self.wanted

    @property
    def is_newer(self) -> bool:
        """Whether a newer fencepost has migrated the database."""
        return self.found is not None and self.found not in REVISIONS


def status(database: Database) -> SchemaStatus:
    """Read the schema's revision."""
    return database.read(_status)


def _status(conn: Connection) -> SchemaStatus:
    if not inspect(conn).has_table(VERSION_TABLE):
        return SchemaStatus(None, REVISIONS[-1])
    # No row: a migration on MySQL was killed after its first statement. It is repeated.
    return SchemaStatus(conn.execute(select(_version.c.version_num)).scalar(), REVISIONS[-1])


def ensure(database: Database, *, migrates: bool) -> None:
    """Make sure that the tables are there, in this build's version.

    Raises:
        SchemaError: they are missing or old and `migrates` is False, or they are newer than this build.
    """
    found = status(database)
    _refuse_newer(database, found)
    if found.is_current:
        return
    if migrates:
        migrate(database)
        return
    what = "No fencepost tables" if found.found is None else f"The fencepost tables are of version {found.found}"
    needs = "Create" if found.found is None else f"This build needs version {found.wanted}. Upgrade"
    raise SchemaError(
        f"{what} in {database.display_url}. {needs} them with: fencepost migrate --url '{database.display_url}' "
        "(or app.migrate())"
    )


def migrate(database: Database) -> bool:
    """Create or upgrade the tables. Any number of processes may call it at once: one migrates, the others wait.

    Returns:
        Whether there was anything to do.

    Raises:
        SchemaError: the schema is newer than this build.
    """
    found = status(database)
    _refuse_newer(database, found)
    if found.is_current:
        return False
    with database.dialect.migrating(database.engine):
        return database.write(lambda conn: _migrate(database, conn))


def _migrate(database: Database, conn: Connection) -> bool:
    database.dialect.lock_migrations(conn)
    found = _status(conn)
    _refuse_newer(database, found)
    if found.is_current:
        return False
    _upgrade(conn)
    return True


def _upgrade(conn: Connection) -> None:
    # Imported here: a worker or a producer on an up-to-date schema needs none of it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("fencepost.store") / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = conn
    with warnings.catch_warnings():
        # IF NOT EXISTS makes MariaDB note what was there already; that is what it was asked for.
        warnings.filterwarnings("ignore", message=r".*(already exists|Duplicate key name).*")
        command.upgrade(config, "head")


def _refuse_newer(database: Database, found: SchemaStatus) -> None:
    if found.is_newer:
        raise SchemaError(
            f"The fencepost tables in {database.display_url} are of version {found.found}, newer than this build "
            f"knows (up to {found.wanted}). Upgrade fencepost on this machine: pip install --upgrade fencepost"
        )
