"""What the databases do differently, as named capabilities; nothing else asks which database it is."""

from __future__ import annotations

from sqlalchemy.engine import URL

from fencepost.errors import ConfigurationError
from fencepost.store.dialects.base import Dialect, Fault

__all__ = ["Dialect", "Fault", "dialect_for"]


def dialect_for(url: URL) -> Dialect:
    """The dialect of a database URL.

    Raises:
        ConfigurationError: a database that fencepost does not know.
    """
    match url.get_backend_name():
        case "sqlite":
            from fencepost.store.dialects.sqlite import SQLite

            return SQLite()
        case "postgresql" | "postgres":
            from fencepost.store.dialects.postgres import Postgres

            return Postgres()
        case "mysql" | "mariadb":
            from fencepost.store.dialects.mysql import MySQL

            return MySQL()
        case other:
            raise ConfigurationError(
                f"fencepost does not work on {other!r}. Use sqlite:///file.db, postgresql://... or mysql://..."
            )
