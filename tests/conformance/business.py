"""What an application keeps beside its jobs, in tests of transactions that hold both."""

from __future__ import annotations

from sqlalchemy import text

import fencepost
from tests.jobs import rows

__all__ = ["business", "stored_ids"]


def business(app: fencepost.App) -> list[int]:
    """The committed rows of the application's own table."""
    return app.store.database.read(
        lambda conn: list(conn.execute(text("SELECT id FROM business ORDER BY id")).scalars())
    )


def stored_ids(app: fencepost.App) -> list[str]:
    """The committed jobs."""
    return [found["id"] for found in rows(app.store)]
