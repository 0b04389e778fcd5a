"""Which jobs of a batch may run together."""

from __future__ import annotations

import pytest

from fencepost.job import Claim
from fencepost.planning.isolation import is_last_chance, is_suspect, isolate_suspects
from tests.unit.attempts import attempt


def batch(shape: str) -> list[Claim]:
    """`s` a suspect, `.` any other."""
    return [attempt(reason="lease_expired" if letter == "s" else None) for letter in shape]


@pytest.mark.parametrize(
    ("shape", "runs"),
    [("", 0), (".", 1), ("....", 4), ("s", 1), ("ss", 1), ("s...", 1), ("..s", 2), ("..s..s", 2), (".s", 1)],
)
def test_what_stands_before_the_first_suspect_runs_or_else_that_one_alone(shape: str, runs: int) -> None:
    claims = batch(shape)
    running, surplus = isolate_suspects(claims)
    assert [*running, *surplus] == claims
    assert len(running) == runs


@pytest.mark.parametrize("reason", [None, "error", "timeout", "released", "snoozed", "of tomorrow"])
def test_only_a_job_whose_worker_died_is_a_suspect(reason: str | None) -> None:
    assert not is_suspect(attempt(reason=reason))
    assert is_suspect(attempt(reason="lease_expired"))


def test_a_suspect_on_its_last_attempt_has_its_last_chance() -> None:
    assert is_last_chance(attempt(reason="lease_expired", attempt=3, max_attempts=3))
    assert not is_last_chance(attempt(reason="lease_expired", attempt=2, max_attempts=3))
    assert not is_last_chance(attempt(reason="error", attempt=3, max_attempts=3))


def test_every_batch_makes_progress() -> None:
    """A batch of suspects alone is worked off one by one, never handed back whole."""
    left = batch("sssss")
    rounds = 0
    while left:
        running, surplus = isolate_suspects(left)
        assert len(running) == 1
        left, rounds = list(surplus), rounds + 1
    assert rounds == 5
