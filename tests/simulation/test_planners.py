"""Planners that are stopped and killed at random, on one virtual clock and one seed: no instant twice, none left out.

Four planners step through the real passes by hand, in one thread. Between two steps any of them may be held up (it
goes on later with what it read long ago), and within a step it may be killed at any statement: its transaction is
rolled back, and a new one takes its place. The clock creeps, leaps and is now and then set back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from typing import Any

import pytest
from sqlalchemy import URL, event, select

from fencepost.job import Options, State
from fencepost.planning.cron import count_between, fires_after
from fencepost.schedule import Cron, Every, Misfire, NewSchedule
from fencepost.store import Database, Store, schedules
from fencepost.store.tables import jobs
from fencepost.testing import VirtualClock

SECOND = 1_000_000
_PLANNERS = 4
_CAUGHT_UP = (Every(SECOND), Every(3 * SECOND, SECOND), Cron("* * * * * *", "Europe/Berlin"), Cron("*/2 * * * *"))


class _Killed(Exception):
    """The planner's process is gone. (An exit exception would cost the one connection, and the memory with it.)"""


class _World:
    """A database, a clock, the planners, and what befalls them."""

    def __init__(self, store: Store, clock: VirtualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.chance = random.Random(seed)
        self.replay = f"replay it with --seed {seed}"
        self.befallen: Counter[str] = Counter()
        self._statements_left: int | None = None
        self._start = clock.now()
        self._definitions = [
            *(self._definition(f"all-{n}", timing) for n, timing in enumerate(_CAUGHT_UP)),
            self._definition("latest", Every(SECOND), misfire=Misfire.LATEST, grace=5 * SECOND),
        ]
        for definition in self._definitions:
            store.save_schedule(definition)
        self._planners = [self._planner() for _ in range(_PLANNERS)]

    @staticmethod
    def _definition(name: str, timing: Any, misfire: Misfire = Misfire.CATCH_UP, **values: Any) -> NewSchedule:
        return NewSchedule(name, "k", "{}", Options(), timing, misfire, 10_000, **values)

    def run(self, instants: int) -> None:
        """Until the schedules have come to so many instants; then once more without any harm."""
        with self._faults():
            while self._instants_so_far() < instants:
                self._move_clock()
                for _ in range(self.chance.randint(1, 8)):
                    self._step()
                if self.chance.random() < 0.02:
                    self.check()
        while self.store.materialise_due():
            pass
        self.check()

    def check(self) -> None:
        """Each instant before a schedule's cursor is made or counted, once; none from it on."""
        made: dict[str, list[int]] = {definition.name: [] for definition in self._definitions}
        missed: Counter[str] = Counter()
        query = select(jobs.c.schedule, jobs.c.scheduled_for, jobs.c.state, jobs.c.last_error)
        for row in self.store.database.read(lambda conn: conn.execute(query.order_by(jobs.c.scheduled_for)).fetchall()):
            if row.state == State.SKIPPED:
                missed[row.schedule] += int(row.last_error.split()[0])
            else:
                made[row.schedule].append(row.scheduled_for)
        for definition in self._definitions:
            found = self.store.get_schedule(definition.name)
            assert found is not None
            assert found.next_fire_at is not None
            cursor = round(found.next_fire_at.timestamp() * SECOND)
            assert found.runs == len(made[definition.name]), self.replay
            if definition.misfire is Misfire.CATCH_UP:
                due = takewhile(lambda at: at < cursor, fires_after(definition.timing, self._start))  # noqa: B023
                assert made[definition.name] == [*due], f"{definition.name}: {self.replay}"
            else:
                due_count = count_between(definition.timing, self._start + 1, cursor - 1)
                assert len(made[definition.name]) + missed[definition.name] == due_count, self.replay

    def _planner(self) -> Iterator[None]:
        """One process's passes; what it yields is a point at which it may be held up."""
        database = self.store.database
        while True:
            due = database.read(lambda conn: schedules.due_schedules(conn, database.now(conn), batch=100))
            yield
            for row in due:
                database.write(lambda conn, row=row: schedules.materialise(database, conn, row))  # type: ignore[misc]
                yield

    def _step(self) -> None:
        place = self.chance.randrange(_PLANNERS)
        if self.chance.random() < 0.15:
            self._statements_left = self.chance.randint(0, 5)
        try:
            next(self._planners[place])
        except _Killed:
            self.befallen["killed"] += 1
            self._planners[place] = self._planner()
        self._statements_left = None

    def _move_clock(self) -> None:
        draw = self.chance.random()
        if draw < 0.05:
            self.befallen["set back"] += 1
            self.clock.set_back(self.chance.uniform(0, 3))
        elif draw < 0.08:
            self.befallen["leapt"] += 1
            self.clock.advance(self.chance.uniform(60, 200))
        else:
            self.clock.advance(self.chance.uniform(0, 4))

    def _instants_so_far(self) -> int:
        return sum(count_between(each.timing, self._start + 1, self.clock.now()) for each in self._definitions)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        engine = self.store.database.engine

        def may_die(*_: Any) -> None:
            if self._statements_left is not None:
                self._statements_left -= 1
                if self._statements_left < 0:
                    raise _Killed

        # Before a statement, after it, and before the commit: whatever was written is rolled back.
        points = ("before_cursor_execute", "after_cursor_execute", "commit")
        for point in points:
            event.listen(engine, point, may_die)
        try:
            yield
        finally:
            for point in points:
                event.remove(engine, point, may_die)


def _simulate(url: URL | str, seed: int, instants: int, *, migrates: bool) -> None:
    clock = VirtualClock()
    with closing(Store(Database(url, clock=clock), migrates=migrates)) as store:
        world = _World(store, clock, seed)
        world.run(instants)
        # The world was as rough as it was meant to be.
        assert min(world.befallen[what] for what in ("killed", "set back", "leapt")) >= 3, world.befallen


def test_planners_killed_at_random_make_each_of_ten_thousand_instants_exactly_once(seed: int) -> None:
    """S1, S2, S5, L3."""
    _simulate("sqlite://", seed, 10_000, migrates=True)


@pytest.mark.parametrize("database_name", ["postgresql"], indirect=True)
def test_planners_killed_at_random_on_a_server_make_each_instant_exactly_once(url: URL, seed: int) -> None:
    """S1, S2, S5, L3."""
    _simulate(url, seed, 2_000, migrates=False)
