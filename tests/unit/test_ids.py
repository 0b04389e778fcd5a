"""Job ids."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from fencepost.ids import new_id, parse_id
from tests.jobs import at_once


def test_an_id_is_a_uuid_of_version_7_with_the_instant_in_front() -> None:
    before = time.time_ns() // 1_000_000
    made = new_id()
    parsed = uuid.UUID(made)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert str(parsed) == made
    # At least: ids never go back, and another test may have moved this process's clock ahead.
    assert parsed.int >> 80 >= before


def test_ids_of_one_process_only_grow() -> None:
    made = [new_id() for _ in range(50_000)]
    assert made == sorted(set(made))


def test_ids_grow_although_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    later = [new_id() for _ in range(100)]
    assert [first, *later] == sorted({first, *later})


def test_threads_never_make_the_same_id() -> None:
    made = at_once([lambda: [new_id() for _ in range(2_000)]] * 4)
    assert len({job_id for part in made for job_id in part}) == 8_000
    assert all(part == sorted(part) for part in made)


def test_a_forked_child_does_not_repeat_its_parents_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although both go on within the same millisecond."""
    new_id()
    instant = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: instant)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, "\n".join(new_id() for _ in range(500)).encode())
        os._exit(0)
    os.close(writing)
    mine = {new_id() for _ in range(500)}
    with os.fdopen(reading) as pipe:
        theirs = set(pipe.read().split())
    assert os.waitpid(child, 0)[1] == 0
    assert len(theirs) == 500
    assert not mine & theirs


@pytest.mark.parametrize(
    "written",
    [
        "01890000-0000-7000-8000-0000000000aF",
        "018900000000700080000000000000AF",
        "  01890000-0000-7000-8000-0000000000af\n",
        uuid.UUID("01890000-0000-7000-8000-0000000000af"),
    ],
)
def test_an_id_is_read_however_a_person_writes_it(written: object) -> None:
    assert parse_id(written) == "01890000-0000-7000-8000-0000000000af"


@pytest.mark.parametrize("written", ["", "x", None, 7, "0189000000007000800000000000000", "g" * 32, "' OR 1=1 --"])
def test_what_is_no_id_is_none(written: object) -> None:
    assert parse_id(written) is None
