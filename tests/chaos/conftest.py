"""Fixtures of the tests with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.chaos.journal import Journal
from tests.chaos.processes import Crew


@pytest.fixture
def crew(url: URL, tmp_path: Path) -> Iterator[Crew]:
    """Starts worker processes on the test's database, and ends them all."""
    folder = tmp_path / "crew"
    folder.mkdir()
    crew = Crew(url, folder)
    try:
        yield crew
    finally:
        crew.end()


@pytest.fixture
def journal(crew: Crew) -> Journal:
    """What the handlers in those processes wrote down."""
    return crew.journal
