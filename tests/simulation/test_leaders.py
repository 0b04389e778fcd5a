"""Three planners that lead in turn, on one virtual clock and one seed: one epoch each, and nothing by a superseded one.

They step by hand, in one thread. Between two steps any of them may be held up for longer than its lease (and goes on
as the leader that it believes to be), be cut off from the database, killed at any statement, or stopped cleanly; the
database's clock creeps, leaps and is now and then set back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import takewhile
from typing import Any

import pytest
from sqlalchemy import URL, event, select

from fencepost.errors import LeadershipLost, StoreUnavailable
from fencepost.job import Options
from fencepost.planner.leadership import Leadership
from fencepost.planning.cron import fires_after
from fencepost.schedule import Every, Misfire, NewSchedule
from fencepost.store import Database, Store, schedules
from fencepost.store.tables import jobs
from fencepost.testing import VirtualClock

SECOND = 1_000_000
_PLANNERS = 3
_LEASE = 5.0
_TIMINGS = {"every second": Every(SECOND), "every third": Every(3 * SECOND, SECOND)}
_BEFALLS = ("killed", "cut off", "stopped", "refused", "set back", "believed in vain", "taken over")


class _Killed(Exception):
    """The planner's process is gone."""


class _World:
    """A database, a clock, the planners, and what befalls them."""

    def __init__(self, store: Store, clock: VirtualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.chance = random.Random(seed)
        self.replay = f"replay it with --seed {seed}"
        self.befallen: Counter[str] = Counter()
        self._elapsed = 0.0
        self._statements_left: int | None = None
        self._is_cut_off = False
        self._born = 0
        self._holders: dict[int, str] = {}
        self._start = clock.now()
        for name, timing in _TIMINGS.items():
            store.save_schedule(NewSchedule(name, "k", "{}", Options(), timing, Misfire.CATCH_UP, 10_000))
        self._planners = [self._planner() for _ in range(_PLANNERS)]

    def run(self, steps: int) -> None:
        """So many steps; then a leader without any harm brings all up to now."""
        points = ("before_cursor_execute", "after_cursor_execute", "commit")
        for point in points:
            event.listen(self.store.database.engine, point, self._may_fail)
        for _ in range(steps):
            self._move_clock()
            self._step()
            self._check_epoch()
        for point in points:
            event.remove(self.store.database.engine, point, self._may_fail)
        self.clock.advance(3 * _LEASE)
        lead = self.store.lead("the last one")
        assert lead is not None
        while self.store.fenced(lead).materialise_due():
            pass
        self._check_instants()

    def _planner(self) -> Iterator[None]:
        """One process; what it yields is a point at which it may be held up."""
        self._born += 1
        holder = f"p{self._born}"
        leadership = Leadership(self.store, holder, lease_seconds=_LEASE, monotonic=lambda: self._elapsed)
        database = self.store.database
        while True:
            fenced = leadership.attend()
            yield
            lead = leadership.lead
            if fenced is None or lead is None:
                continue
            assert self._holders.setdefault(lead.epoch, holder) == holder, self.replay
            due = fenced._read(lambda conn: schedules.due_schedules(conn, database.now(conn), batch=100))
            for row in due[: self.chance.randint(0, 2)]:
                yield
                found = self.store.leader()
                assert found is not None
                leads = found.epoch == lead.epoch and found.holder == holder
                self.befallen["believed in vain"] += not leads
                try:
                    fenced._write(lambda conn, row=row: schedules.materialise(database, conn, row))  # type: ignore[misc]
                except LeadershipLost:
                    self.befallen["refused"] += 1
                    leadership.step_down("refused")
                    break
                assert leads, f"a superseded leader wrote: {self.replay}"
            if self.chance.random() < 0.06:
                leadership.release()
                self.befallen["stopped"] += 1
                return

    def _step(self) -> None:
        place = self.chance.randrange(_PLANNERS)
        draw = self.chance.random()
        if draw < 0.08:
            self._statements_left = self.chance.randint(0, 8)
        elif draw < 0.15:
            self._is_cut_off = True
        try:
            next(self._planners[place])
        except _Killed:
            self.befallen["killed"] += 1
            self._planners[place] = self._planner()
        except (StopIteration, StoreUnavailable) as error:
            self.befallen["cut off"] += isinstance(error, StoreUnavailable)
            self._planners[place] = self._planner()
        self._statements_left, self._is_cut_off = None, False

    def _may_fail(self, *_: Any) -> None:
        if self._is_cut_off:
            raise StoreUnavailable("cut off")
        if self._statements_left is not None:
            self._statements_left -= 1
            if self._statements_left < 0:
                raise _Killed

    def _move_clock(self) -> None:
        draw = self.chance.random()
        if draw < 0.01:
            self.befallen["set back"] += 1
            self.clock.set_back(self.chance.uniform(0, 3))
        else:
            seconds = self.chance.uniform(0, 1) if draw < 0.95 else self.chance.uniform(0, 3 * _LEASE)
            self.clock.advance(seconds)
            # A process that is suspended, or whose clock is slow, does not see all of the time that passes.
            self._elapsed += seconds * self.chance.choice((0, 1, 1))

    def _check_epoch(self) -> None:
        found = self.store.leader()
        epoch = 0 if found is None else found.epoch
        assert epoch >= max(self._holders, default=0), self.replay
        self.befallen["taken over"] = epoch

    def _check_instants(self) -> None:
        query = select(jobs.c.schedule, jobs.c.scheduled_for).order_by(jobs.c.scheduled_for)
        found = self.store.database.read(lambda conn: conn.execute(query).fetchall())
        for name, timing in _TIMINGS.items():
            shown = self.store.get_schedule(name)
            assert shown is not None
            assert shown.next_fire_at is not None
            cursor = round(shown.next_fire_at.timestamp() * SECOND)
            due = takewhile(lambda at: at < cursor, fires_after(timing, self._start))  # noqa: B023
            assert [row.scheduled_for for row in found if row.schedule == name] == [*due], f"{name}: {self.replay}"


def _simulate(url: URL | str, seed: int, steps: int, *, migrates: bool) -> None:
    clock = VirtualClock()
    with closing(Store(Database(url, clock=clock), migrates=migrates)) as store:
        world = _World(store, clock, seed)
        world.run(steps)
        # The world was as rough as it was meant to be.
        assert min(world.befallen[what] for what in _BEFALLS) >= 2, world.befallen


def test_planners_that_lead_in_turn_under_faults_never_write_under_another_epoch(seed: int) -> None:
    """L2, S1."""
    _simulate("sqlite://", seed, 2_500, migrates=True)


@pytest.mark.parametrize("database_name", ["postgresql"], indirect=True)
def test_planners_that_lead_in_turn_on_a_server_never_write_under_another_epoch(url: URL, seed: int) -> None:
    """L2, S1."""
    _simulate(url, seed, 700, migrates=False)
