"""One database as the store sees it: transactions, the clock, and retries of what may pass."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from sqlalchemy import exc, make_url
from sqlalchemy.engine import URL, Connection, Engine

from fencepost.errors import ConfigurationError, StoreUnavailable
from fencepost.job import Micros
from fencepost.queue import KnownQueues
from fencepost.store.dialects import Dialect, Fault, dialect_for
from fencepost.store.dialects.sqlite import database_path

__all__ = ["Clock", "Database", "parse_url"]

T = TypeVar("T")

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0
_FORK_PATIENCE = 15.0


class Clock(Protocol):
    """A clock that stands in for the database's, as tests pass one."""

    def now(self) -> Micros:
        """Microseconds since the Unix epoch."""
        ...


class Database:
    """An engine, its dialect and the ways to run something in a transaction.

    Args:
        target: a URL, or for PostgreSQL and MySQL an `Engine` of the application's.
        clock: stands in for the database's clock; for tests.
        synchronous: SQLite's `FULL` (default: acknowledged means on the disk) or `NORMAL` (a power cut may
            take back the last transactions; a crash of the process may not).
        busy_timeout: seconds that SQLite waits for another writer; default 10.
        patience: seconds for which transient faults are retried before they are raised; default 15.

    Raises:
        ConfigurationError: a URL, an engine or an option that cannot work.
    """

    def __init__(
        self,
        target: str | URL | Engine,
        *,
        clock: Clock | None = None,
        synchronous: str = "FULL",
        busy_timeout: float = 10.0,
        patience: float = 15.0,
    ) -> None:
        if synchronous.upper() not in ("FULL", "NORMAL"):
            raise ConfigurationError(f"synchronous is FULL or NORMAL, not {synchronous!r}")
        if isinstance(target, Engine):
            self.dialect: Dialect = dialect_for(target.url)
            self._check_driver(target.dialect.driver)
            self.url = target.url
            self.engine = self.dialect.adopt_engine(target)
        else:
            self.url = parse_url(target)
            self.dialect = dialect_for(self.url)
            self._check_url()
            self.engine = self._create_engine(synchronous.upper(), busy_timeout)
        self._is_adopted = isinstance(target, Engine)
        self.path = database_path(self.url) if self.dialect.name == "sqlite" else None
        self.in_memory = self.dialect.name == "sqlite" and self.path is None
        self.patience = patience
        self.lines: dict[int, Any] = {}
        """What the store has learnt of the lines it met, by number; a digest, so never stale."""
        self.present_lines: list[int] = []
        """The lines that held ready jobs at the last look: where the next one begins. Old ones do no harm."""
        self.known_queues = KnownQueues()
        self.turn_lines: dict[int, Any] = {}
        """What the store has learnt of the lines in which jobs wait for their turn, by number."""
        self.turns_wait = False
        """Whether jobs were left waiting for their turn at the last pass."""
        self.on_due: Callable[[Micros], None] | None = None
        """Told in how many microseconds somebody is to be woken who waits for tokens: nobody else will tell."""
        self._clock = clock
        self._synchronous = synchronous.upper()
        self._busy_timeout = busy_timeout
        self._reading = self.engine.execution_options(fencepost_reading=True)
        self._pid = os.getpid()
        # SQLite's own wait for another writer polls; writers of one process hand over to each other at once.
        # An in-memory database is one connection, so there readers take their turn too.
        self._turn: threading.Lock | None = threading.Lock() if self.dialect.name == "sqlite" else None
        self._gate: _ForkGate | None = None if self.path is None else _ForkGate()
        _databases.add(self)

    def _check_url(self) -> None:
        _, _, driver = self.url.drivername.partition("+")
        if driver:
            self._check_driver(driver)
        if self.dialect.name != "sqlite" and not self.url.database:
            raise ConfigurationError(f"{self.display_url} names no database: {self.dialect.name}://host/database")

    def _check_driver(self, driver: str) -> None:
        if driver not in self.dialect.drivers:
            raise ConfigurationError(
                f"fencepost talks to {self.dialect.name} through {', '.join(self.dialect.drivers)}, not through "
                f"{driver}. It works on threads of its own, so that neither event loops nor handlers wait for it: "
                f"pass the URL as {self.dialect.name}://..."
            )

    def _create_engine(self, synchronous: str, busy_timeout: float) -> Engine:
        try:
            return self.dialect.create_engine(
                self.url, pool_size=10, synchronous=synchronous, busy_timeout=busy_timeout
            )
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"The driver for {self.dialect.name} is not installed ({error.name}). "
                f"Install it with: pip install 'fencepost[{self.dialect.extra}]'"
            ) from error

    @property
    def display_url(self) -> str:
        """The URL without its password, for people."""
        return self.url.render_as_string(hide_password=True)

    def now(self, conn: Connection) -> Micros:
        """The clock that all planning uses: the database's."""
        return self._clock.now() if self._clock is not None else self.dialect.now(conn)

    def now_and_pin(self, conn: Connection) -> Micros:
        """The clock; and until the transaction ends, hot statements keep their index plans.

        Only for transactions of our own: it may change planner settings of the transaction.
        """
        now = self.dialect.now_and_pin(conn)
        return self._clock.now() if self._clock is not None else now

    def tell_due(self, span: Micros) -> None:
        """Somebody is to be woken after that span."""
        if self.on_due is not None:
            self.on_due(max(0, span))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A write transaction of our own: committed at the end of the block, rolled back on an exception."""
        with self._my_turn(), self.engine.begin() as conn:
            yield conn

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read-only transaction; on a SQLite file it waits for nobody."""
        with self._my_turn(needed=self.in_memory), self._reading.begin() as conn:
            yield conn

    @contextmanager
    def _my_turn(self, *, needed: bool = True) -> Iterator[None]:
        self._refuse_foreign_memory()
        if self._gate is None:
            with self._alone(needed=needed):
                yield
            return
        with self._gate.inside(self.display_url), self._alone(needed=needed):
            yield

    @contextmanager
    def _alone(self, *, needed: bool) -> Iterator[None]:
        turn = self._turn if needed else None
        if turn is None:
            yield
            return
        if not turn.acquire(timeout=self._busy_timeout):
            raise StoreUnavailable(
                f"{self.display_url} has been locked by another thread of this process for "
                f"{self._busy_timeout:g} s. If that is your own `with ctx.transaction()`, make it shorter, and "
                "pass its connection to what you enqueue inside it: using(connection=conn)."
            )
        try:
            yield
        finally:
            turn.release()

    def _refuse_foreign_memory(self) -> None:
        if self.in_memory and os.getpid() != self._pid:
            raise ConfigurationError(
                "An in-memory database lives in the process that made it and cannot be used after a fork. "
                "Use a file: sqlite:///jobs.db"
            )

    def write(self, work: Callable[[Connection], T], *, patience: float | None = None) -> T:
        """Run `work` in a transaction of our own; transient faults are retried, so it must bear repeating.

        Args:
            work: a function of a connection whose every write is idempotent: a commit that was reported as
                lost may have happened.
            patience: seconds for which to retry; default: the database's.

        Raises:
            StoreUnavailable: the database could not be asked within the patience.
        """
        return self._retrying(self.transaction, work, patience)

    def read(self, work: Callable[[Connection], T], *, patience: float | None = None) -> T:
        """Run `work` in a read-only transaction, with the same retries.

        Raises:
            StoreUnavailable: the database could not be asked within the patience.
        """
        return self._retrying(self.reading, work, patience)

    def _retrying(self, transaction: Callable[[], Any], work: Callable[[Connection], T], patience: float | None) -> T:
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        for attempt in itertools.count():
            try:
                with transaction() as conn:
                    return work(conn)
            except exc.DBAPIError as error:
                if self.dialect.classify(error) is Fault.PERMANENT:
                    raise
                pause = random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10)))  # noqa: S311
                if time.monotonic() + pause > deadline:
                    raise StoreUnavailable(
                        f"{self.display_url} could not be used: {str(error.orig).strip()}. Nothing was stored by "
                        "this call unless a commit's answer was lost, and repeating it is harmless."
                    ) from error
                time.sleep(pause)
            except exc.TimeoutError as error:  # the application's own pool gave no connection
                raise StoreUnavailable(f"No connection to {self.display_url} was free: {error}") from error
        raise AssertionError("unreachable")

    def sibling(self, *, patience: float) -> Database:
        """The same database with connections of its own; of an in-memory database, itself."""
        if self.in_memory:
            return self
        target = Engine(self.engine.pool.recreate(), self.engine.dialect, self.url) if self._is_adopted else self.url
        other = Database(
            target,
            clock=self._clock,
            synchronous=self._synchronous,
            busy_timeout=self._busy_timeout,
            patience=patience,
        )
        other._turn = self._turn
        other.known_queues = self.known_queues
        return other

    def close(self) -> None:
        """Close the pool's connections. The database may be used again afterwards."""
        self.engine.dispose()

    def _before_fork(self) -> None:
        if self._gate is not None:
            self._gate.close()
            self.engine.dispose()

    def _after_fork_in_parent(self) -> None:
        if self._gate is not None:
            self._gate.open()

    def _forget_parent(self) -> None:
        # The inherited connections belong to the parent. They are dropped without being closed, and kept
        # referenced so that no destructor closes them either: a child that closed a SQLite file would drop
        # locks that it does not own, and one that closed a socket would end the parent's session.
        _inherited.append(self.engine.pool)
        if not self.in_memory:
            self.engine.dispose(close=False)
        if self._turn is not None:
            self._turn = threading.Lock()
        if self._gate is not None:
            self._gate = self._gate.of_child()


class _ForkGate:
    """Keeps a SQLite file closed in this process while it forks.

    SQLite keeps its file locks in a table of the process, and POSIX gives a child none of its parent's. A child forked
    while the file is open believes that it holds locks which it does not: the parent, when it ends, then deletes the
    write-ahead log under the child's feet, and what the child was told is committed is gone
    (https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_). So a fork waits until
    no other thread is in a transaction, and the idle connections are closed for it.
    """

    def __init__(self, *, is_spoilt: bool = False) -> None:
        self._changed = threading.Condition()
        self._is_closed = False
        self._threads: Counter[int] = Counter()
        self._is_spoilt = is_spoilt

    @contextmanager
    def inside(self, database: str) -> Iterator[None]:
        """Use the file within the block."""
        if self._is_spoilt:
            raise ConfigurationError(
                f"This process was forked in the middle of a transaction on {database}: to use that SQLite file here "
                "could corrupt it. Fork outside of transactions, or start processes with the method 'spawn'."
            )
        me = threading.get_ident()
        with self._changed:
            # Who is inside already may go further in, or the fork would wait for it in vain.
            self._changed.wait_for(lambda: not self._is_closed or me in self._threads)
            self._threads[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._threads[me] -= 1
                if not self._threads[me]:
                    del self._threads[me]
                if self._is_closed:
                    self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in, and wait until all are out but the thread that forks, which cannot be waited for."""
        mine = {threading.get_ident()}
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: self._threads.keys() <= mine, timeout=_FORK_PATIENCE)

    def open(self) -> None:
        """The fork is done; this is the parent."""
        with self._changed:
            self._is_closed = False
            self._changed.notify_all()

    def of_child(self) -> _ForkGate:
        """The gate of the process that was forked off."""
        return _ForkGate(is_spoilt=self._is_spoilt or bool(self._threads))


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[Any] = []


def _before_fork() -> None:
    for database in list(_databases):
        database._before_fork()


def _after_fork_in_parent() -> None:
    for database in list(_databases):
        database._after_fork_in_parent()


def _after_fork_in_child() -> None:
    for database in list(_databases):
        database._forget_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def parse_url(target: str | URL) -> URL:
    """A database URL.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return make_url(target)
    except (exc.ArgumentError, ValueError) as error:
        raise ConfigurationError(
            f"{target!r} is not a database URL. Examples: sqlite:///jobs.db, "
            "postgresql://user:password@host/database, mysql://user:password@host/database"
        ) from error
