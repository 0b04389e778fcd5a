"""One pass over one schedule: which instants run, which are summarised as missed, where the cursor goes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain, islice, takewhile

from fencepost.job import Micros
from fencepost.planning.cron import count_between, fires_after, last_between, next_fire
from fencepost.schedule import Misfire, Timing

__all__ = ["MOST_AT_ONCE", "Missed", "Plan", "missed_between", "plan_pass"]

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
    first_late = next(in_grace, None)
    wanted = {Misfire.SKIP: 0, Misfire.LATEST: int(first_late is None), Misfire.CATCH_UP: max_catch_up}[misfire]
    chosen = last_between(timing, cursor, last_missed, wanted)
    # What is taken is left out before the rest is cut: what stands beyond the cut is where the cursor goes.
    late = [] if first_late is None else (at for at in chain((first_late,), in_grace) if at not in taken)
    fires = [*(at for at in chosen if at not in taken), *islice(late, MOST_AT_ONCE + 1)]
    most = MOST_AT_ONCE if runs_left is None else min(MOST_AT_ONCE, runs_left)
    missed = missed_between(timing, cursor, chosen[0] - 1 if chosen else last_missed)
    if len(fires) > most:
        fires, after = fires[:most], fires[most]
        following: Micros | None = after
    else:
        following = next_fire(timing, horizon)
    left = None if runs_left is None else runs_left - len(fires)
    if following is not None and _is_over(following, until, left):
        following = None
    return Plan(tuple(fires), missed, following)


def missed_between(timing: Timing, first: Micros, last: Micros) -> Missed | None:
    """The instants from `first` to `last`, both included, as missed ones; None: there are none."""
    count = count_between(timing, first, last)
    if count == 0:
        return None
    earliest = next_fire(timing, first - 1)
    (latest,) = last_between(timing, first, last, 1)
    assert earliest is not None, "it was counted"
    return Missed(count, earliest, latest)


def _is_over(at: Micros, until: Micros | None, runs_left: int | None) -> bool:
    return (until is not None and at > until) or (runs_left is not None and runs_left <= 0)
