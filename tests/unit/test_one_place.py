"""What must not come to differ stands in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fencepost

SOURCES = {
    path: path.read_text()
    for path in Path(fencepost.__file__).parent.rglob("*.py")
    if "migrations" not in path.parts  # a released step is never edited, and so repeats what it needs
}


@pytest.mark.parametrize(
    "text",
    [
        r"The row cannot be decoded by this version of fencepost",
        r"^_?KEY_CHARS = 512$",
        r"^_?(?:NAME|TENANT|OWNER)_CHARS = 200$",
        r"^_?NOTE_CHARS = 500$",
        r"^_?(?:PASS_)?BATCH = 500$",
        r"^_?(?:ENQUEUE_BATCH|BATCH|BATCH_ROWS|MOST_JOBS) = 1_?000$",
        r"^_?SCHEDULE(?:S|_BATCH) = 100$",
    ],
)
def test_a_sentence_and_a_limit_stand_in_one_place(text: str) -> None:
    found = [path.name for path, source in SOURCES.items() for _ in re.finditer(text, source, re.MULTILINE)]
    assert len(found) == 1, found
