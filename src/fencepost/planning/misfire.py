"""One pass over one schedule: which instants run, which are summarised as missed, where the cursor goes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice, takewhile

from fencepost.job import Micros
from fencepost.planning.cron import count_between, fires_after, last_between, next_fire
from fencepost.schedule import Misfire, Timing

__all__ = ["MOST_AT_ONCE", "Missed", "Plan", "plan_pass"]

MOST_AT_ONCE = 500
"""Occurrences made in one transaction; what is left is made in the next."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Instants that nothing ran: how many, and from when to when."""

    count: int
    first: Micros
    last: Micros


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass does.

    Attributes:
        fires: the instants that become occurrences, in order.
        missed: what is summarised in one skipped row; None: nothing.
        cursor: the next instant to plan; None: there is none any more.
    """

    fires: tuple[Micros, ...]
    missed: Missed | None
    cursor: Micros | None


def plan_pass(
    timing: Timing,
    cursor: Micros,
    now: Micros,
    *,
    misfire: Misfire,
    max_catch_up: int,
    grace: Micros,
    until: Micros | None = None,
    runs_left: int | None = None,
    ahead: Micros = 0,
    taken: Collection[Micros] = (),
) -> Plan:
    """Plan a schedule whose next unplanned instant is `cursor`.

    Within the grace an instant is late, not missed, and runs. Of the missed ones the policy chooses; the others are
    counted, not made. Idempotent: the same cursor and clock plan the same.

    Args:
        timing: when it fires.
        cursor: its next instant.
        now: the database's clock.
        misfire: the policy.
        max_catch_up: how many missed instants `catch_up` runs.
        grace: microseconds.
        until: the last instant at which it may fire.
        runs_left: how many occurrences it may still make.
        ahead: how many microseconds before its instant an occurrence is made.
        taken: instants that have an occurrence already.
    """
    planned_to = now + ahead
    if cursor > planned_to or _is_over(cursor, until, runs_left):
        return Plan((), None, None if _is_over(cursor, until, runs_left) else cursor)
    horizon = planned_to if until is None else min(planned_to, until)
    late_from = now - grace
    last_missed = min(horizon, late_from - 1)
    in_grace = takewhile(lambda at: at <= horizon, fires_after(timing, max(cursor, late_from) - 1))
    late = [*islice(in_grace, MOST_AT_ONCE + 1)]
    wanted = {Misfire.SKIP: 0, Misfire.LATEST: 0 if late else 1, Misfire.CATCH_UP: max_catch_up}[misfire]
    chosen = last_between(timing, cursor, last_missed, wanted)
    fires = [at for at in (*chosen, *late) if at not in taken]
    most = MOST_AT_ONCE if runs_left is None else min(MOST_AT_ONCE, runs_left)
    missed = _missed(timing, cursor, last_missed, chosen)
    if len(fires) > most:
        fires, after = fires[:most], fires[most]
        following: Micros | None = after
    else:
        following = next_fire(timing, horizon)
    left = None if runs_left is None else runs_left - len(fires)
    if following is not None and _is_over(following, until, left):
        following = None
    return Plan(tuple(fires), missed, following)


def _missed(timing: Timing, cursor: Micros, last_missed: Micros, chosen: list[Micros]) -> Missed | None:
    end = chosen[0] - 1 if chosen else last_missed
    count = count_between(timing, cursor, end)
    if count == 0:
        return None
    first = next_fire(timing, cursor - 1)
    (last,) = last_between(timing, cursor, end, 1)
    assert first is not None, "it was counted"
    return Missed(count, first, last)


def _is_over(at: Micros, until: Micros | None, runs_left: int | None) -> bool:
    return (until is not None and at > until) or (runs_left is not None and runs_left <= 0)
