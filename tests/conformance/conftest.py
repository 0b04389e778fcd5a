"""Fixtures of the tests of an application's own transactions."""

from __future__ import annotations

import pytest
from sqlalchemy import text

import fencepost


@pytest.fixture
def note(app: fencepost.App) -> fencepost.JobFunction[..., None]:
    """A kind of job, and beside it the application's own table."""
    with app.store.transaction() as conn:
        conn.execute(text("CREATE TABLE IF NOT EXISTS business (id INTEGER PRIMARY KEY)"))
        conn.execute(text("DELETE FROM business"))

    @app.job(kind="note")
    def note(number: int) -> None: ...

    return note
