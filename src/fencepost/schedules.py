"""`@app.schedule(...)` and `app.schedules`: what people say of schedules, checked, and what they do to them."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from zoneinfo import ZoneInfo

from fencepost.errors import ArgumentsError, ConfigurationError, ScheduleNotFound
from fencepost.handle import JobHandle
from fencepost.job import Job, OnMiss, Options, State, Trigger
from fencepost.limit_options import check_computed, check_whole, resolve
from fencepost.options import Asked, build_options, check_name
from fencepost.planning.cron import checked, fires_after, next_fire
from fencepost.registry import Handler, module_of
from fencepost.schedule import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_MAX_CATCH_UP,
    OWN_KEY_PREFIX,
    Cron,
    Every,
    Misfire,
    NewSchedule,
    Once,
    Overlap,
    Schedule,
    Timing,
)
from fencepost.store import ScheduleFigures, Store
from fencepost.store.batches import MOST_LISTED
from fencepost.store.rows import instant
from fencepost.store.schedules import PausedBy, Saved
from fencepost.store.tables import KEY_CHARS, NAME_CHARS
from fencepost.timing import instant_micros, micros, parse_duration

if TYPE_CHECKING:
    from fencepost.app import App
    from fencepost.function import JobFunction

__all__ = ["AskedSchedule", "Schedules"]

logger = logging.getLogger("fencepost.schedules")

_MOST_CAUGHT_UP = 10_000
_MOST_SLOTS = 1000
_MOST_STORED = 2**31 - 1  # in an integer column of every database
_PER_JOB = frozenset(
    {
        *("key", "hold", "on_conflict", "delay", "run_at", "start_at", "tolerance", "on_miss", "deadline"),
        *("after", "when"),
    }
)


class AskedSchedule(TypedDict, total=False):
    """The keywords that say when a schedule fires and how it catches up."""

    every: float | timedelta | str | None
    at: datetime | None
    anchor: datetime | None
    timezone: str
    misfire: Misfire | str
    max_catch_up: int
    grace: float | timedelta
    jitter: float | timedelta
    until: datetime | None
    max_runs: int | None
    version: int
    arguments: dict[str, Any] | None
    options: Asked
    overlap: Overlap | str
    key: str | None
    slots: int
    tolerance: float | timedelta | None
    on_miss: OnMiss | str


def build_timing(
    cron: str | None,
    every: float | timedelta | str | None,
    at: datetime | None,
    anchor: datetime | None,
    timezone: str,
) -> Timing:
    """When to fire, from exactly one way of saying it.

    Raises:
        ConfigurationError: none or several were given, or one that cannot be.
    """
    if sum(way is not None for way in (cron, every, at)) != 1:
        raise ConfigurationError("A schedule fires by one of cron='15 2 * * *', every='90s' or at=an aware datetime")
    if not isinstance(timezone, str):
        raise ConfigurationError(f"timezone is an IANA name such as 'Europe/Berlin', not {timezone!r}")
    if cron is not None and not isinstance(cron, str):
        raise ConfigurationError(f"cron is an expression such as '15 2 * * *', not {cron!r}")
    if cron is not None:
        return checked(Cron(cron, timezone))
    if at is not None:
        return Once(instant_micros(at, "at"))
    assert every is not None
    period = parse_duration(every, "every") if isinstance(every, str) else every
    return checked(Every(micros(period, "every"), 0 if anchor is None else instant_micros(anchor, "anchor")))


def check_asked(asked: Mapping[str, Any]) -> None:
    """Refuse keywords that no schedule has.

    Raises:
        ConfigurationError: the first of them, and what there is.
    """
    unknown = sorted(asked.keys() - AskedSchedule.__annotations__.keys())
    if unknown:
        known = ", ".join(sorted(AskedSchedule.__annotations__))
        near = get_close_matches(unknown[0], AskedSchedule.__annotations__, 1)
        meant = f"; did you mean {near[0]}=?" if near else "."
        raise ConfigurationError(f"A schedule has no {unknown[0]}={meant} There is: {known}")


def build_schedule(
    name: str, handler: Handler, cron: str | None, declared_in: str | None, **asked: Unpack[AskedSchedule]
) -> NewSchedule:
    """A definition in the store's units.

    Raises:
        ConfigurationError: what cannot be, with what would be right.
        ArgumentsError: arguments that do not fit the handler.
    """
    check_asked(asked)
    options = asked.get("options", {})
    if not isinstance(options, Mapping) or not all(isinstance(word, str) for word in options):
        raise ConfigurationError(
            f"options are a dict of the jobs' options, such as {{'priority': 'high'}}; not {options!r}"
        )
    wrong = sorted(_PER_JOB & options.keys())
    if wrong:
        raise ConfigurationError(
            f"{', '.join(wrong)} belongs to one job; the schedule itself says when its jobs are due"
        )
    max_catch_up = check_whole(asked.get("max_catch_up", DEFAULT_MAX_CATCH_UP), "max_catch_up", 1, _MOST_CAUGHT_UP)
    max_runs = asked.get("max_runs")
    if max_runs is not None:
        check_whole(max_runs, "max_runs", 1, _MOST_STORED)
    try:
        misfire = Misfire(asked.get("misfire", Misfire.LATEST))
    except ValueError:
        raise ConfigurationError(f"misfire is one of {', '.join(Misfire)}; not {asked.get('misfire')!r}") from None
    try:
        overlap = Overlap(asked.get("overlap", Overlap.ALLOW))
    except ValueError:
        raise ConfigurationError(f"overlap is one of {', '.join(Overlap)}; not {asked.get('overlap')!r}") from None
    slots, key = check_whole(asked.get("slots", 1), "slots", 1, _MOST_SLOTS), asked.get("key")
    if isinstance(key, str) and key.startswith(OWN_KEY_PREFIX):
        raise ConfigurationError(
            f"key={key!r} would be the key of a schedule of that name alone: begin it otherwise than with "
            f"{OWN_KEY_PREFIX!r}"
        )
    if overlap is Overlap.ALLOW and (key is not None or slots != 1):
        raise ConfigurationError("key and slots say how many may overlap: they need another overlap= than 'allow'")
    until = asked.get("until")
    text, checked = handler.arguments.encode_checked((), _arguments(asked.get("arguments")))
    grace = micros(asked.get("grace", DEFAULT_GRACE_SECONDS), "grace")
    job_options = _with_starts(build_options(handler.options, **options), asked)
    if job_options.computed:
        check_computed(job_options, handler.function, handler.kind)
        job_options = resolve(job_options, handler.function, handler.kind, handler.arguments.given(checked))
    if overlap is not Overlap.ALLOW and job_options.concurrency is not None:
        raise ConfigurationError(
            f"The schedule {name!r} has overlap={overlap.value!r}, and its job a concurrency key: it holds one. Give "
            "the schedule that key (key=, slots=), and options={'concurrency': None}."
        )
    if misfire is Misfire.SKIP and grace == 0 and job_options.tolerance is None:
        raise ConfigurationError(
            f"The schedule {name!r} would run nothing: it is planned when its instant has passed, and with grace=0 and "
            "misfire='skip' that is too late. Give it a grace of some seconds"
        )
    return NewSchedule(
        name=check_name(name, "a schedule's name", NAME_CHARS),
        kind=handler.kind,
        arguments=text,
        options=job_options,
        timing=build_timing(
            cron, asked.get("every"), asked.get("at"), asked.get("anchor"), asked.get("timezone", "UTC")
        ),
        misfire=misfire,
        max_catch_up=max_catch_up,
        grace=grace,
        jitter=micros(asked.get("jitter", 0), "jitter"),
        until=None if until is None else instant_micros(until, "until"),
        max_runs=max_runs,
        version=check_whole(asked.get("version", 0), "version", -_MOST_STORED, _MOST_STORED),
        declared_in=declared_in,
        overlap=overlap,
        permit_key=None if key is None else check_name(key, "key", KEY_CHARS),
        slots=slots,
    )


def _arguments(given: object) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ArgumentsError(f"arguments are a dict of the handler's arguments by name, not {given!r}")
    return dict(given)


def _with_starts(options: Options, asked: AskedSchedule) -> Options:
    tolerance = asked.get("tolerance")
    if tolerance is None:
        if "on_miss" in asked:
            raise ConfigurationError("on_miss says what becomes of a start beyond the tolerance: give a tolerance= too")
        return options
    try:
        on_miss = OnMiss(asked.get("on_miss", OnMiss.RUN_LATE))
    except ValueError:
        raise ConfigurationError(f"on_miss is one of {', '.join(OnMiss)}; not {asked.get('on_miss')!r}") from None
    return replace(options, tolerance=micros(tolerance, "tolerance"), on_miss=on_miss)


class Schedules:
    """`app.schedules`: make schedules at run time, look at them, and act on them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._declared: dict[str, tuple[Handler, str | None, AskedSchedule]] = {}

    @property
    def _store(self) -> Store:
        return self._app.store

    def declare(self, name: str, handler: Handler, cron: str | None, asked: AskedSchedule) -> None:
        """Remember what the code declares; a worker's start brings the database in step.

        Raises:
            ConfigurationError: a keyword that there is not, a timing that cannot be, or a name that is declared twice.
        """
        check_asked(asked)
        check_name(name, "a schedule's name", NAME_CHARS)
        if name in self._declared:
            raise ConfigurationError(
                f"Two schedules are named {name!r}. A job with several schedules needs a name for each: name='...'"
            )
        build_timing(cron, asked.get("every"), asked.get("at"), asked.get("anchor"), asked.get("timezone", "UTC"))
        self._declared[name] = (handler, cron, asked)

    def sync(self) -> dict[str, Saved]:
        """Bring the database in step with the declared schedules: changed ones start from now, vanished ones pause.

        A worker does this when it starts. Returns what became of each declared schedule.
        """
        saved: dict[str, Saved] = {}
        for name, (handler, cron, asked) in self._declared.items():
            new = build_schedule(name, handler, cron, module_of(handler.function), **asked)
            saved[name] = self._store.save_schedule(new)
            if saved[name] is Saved.OUTRANKED:
                self._warn_of_outranked(name)
        modules = {module_of(handler.function) for handler in self._app._registry.handlers()}
        for name in self._store.pause_undeclared(modules, saved.keys()):
            logger.warning("The schedule %r is not declared any more and was paused.", name)
        for name in self._store.recheck_schedules():
            logger.error("The schedule %r cannot be decoded by this version of fencepost and is not planned.", name)
        return saved

    def _warn_of_outranked(self, name: str) -> None:
        standing = self._store.get_schedule(name)
        if standing is not None and standing.paused_reason == PausedBy.UNDECLARED and standing.paused_at is not None:
            logger.warning(
                "The schedule %r stays paused: a program that does not declare it any more started at %s, and for an "
                "hour from then on the definition that it had does not come back by itself. If it is wanted, run "
                "`fencepost schedules resume`, or give it a higher version=.",
                name,
                standing.paused_at.isoformat(),
            )
        else:
            logger.warning(
                "The schedule %r stands in a newer definition than this program's, which stays. To make this one win "
                "at once, give it a higher version=.",
                name,
            )

    def upsert(
        self, name: str, job: JobFunction[..., Any] | str, cron: str | None = None, **asked: Unpack[AskedSchedule]
    ) -> Schedule:
        """Create a schedule at run time, or change it; a changed one starts from now, unpaused.

        Args:
            name: unique.
            job: a job function, or the kind of one that this app has registered.
            cron, every, at: when, one of them; see `App.schedule` for these and the rest.

        Raises:
            ConfigurationError: what cannot be, with what would be right, or a definition of a higher version stands;
                nothing was stored.
            ArgumentsError: arguments that do not fit the handler; nothing was stored.
        """
        handler = self._app._handler(job)
        check_asked(asked)
        new = build_schedule(name, handler, cron, None, **asked)
        upcoming = next_fire(new.timing, self._store.now())
        if upcoming is None:
            raise ConfigurationError(f"The schedule {name!r} would never fire: its only instant has passed")
        if new.until is not None and upcoming > new.until:
            raise ConfigurationError(f"The schedule {name!r} would never fire: its first instant comes after until=")
        if self._store.save_schedule(new) is Saved.OUTRANKED:
            raise ConfigurationError(
                f"The schedule {name!r} stands in version {self.get(name).version}, higher than {new.version}: "
                "nothing was stored. Give it at least that version."
            )
        self._app._wake_workers()
        return self.get(name)

    def get(self, name: str) -> Schedule:
        """One schedule.

        Raises:
            ScheduleNotFound: no such schedule.
        """
        found = self._store.get_schedule(name)
        if found is None:
            raise ScheduleNotFound(f"No schedule {name!r}. `fencepost schedules list` shows those that there are.")
        return found

    def list(self) -> list[Schedule]:
        """All schedules, by name."""
        return self._store.list_schedules()

    def figures(self) -> builtins.list[ScheduleFigures]:
        """How the occurrences of each schedule stand, by name: the newest one, what waits and runs, how late it is."""
        return self._store.schedule_figures()

    def preview(
        self,
        name: str | None = None,
        *,
        cron: str | None = None,
        every: float | timedelta | str | None = None,
        at: datetime | None = None,
        anchor: datetime | None = None,
        timezone: str = "UTC",
        after: datetime | None = None,
        count: int = 10,
    ) -> builtins.list[datetime]:
        """The next instants, as aware datetimes in the schedule's zone, without saving anything.

        Of a stored schedule these are the ones that it has, paused or not, up to its `until` and `max_runs`. With
        `after=` and no name the database is not asked.

        Args:
            name: of a stored schedule; or else one of:
            cron, every, at: when it would fire.
            anchor: of `every`.
            timezone: an IANA name.
            after: an aware datetime to start from, not included; default: now.
            count: how many at most, up to 1,000.

        Raises:
            ConfigurationError: what cannot be, with what would be right.
            ScheduleNotFound: no schedule of that name.
        """
        if not 1 <= count <= MOST_LISTED:
            raise ConfigurationError(f"count is from 1 to {MOST_LISTED}, not {count}")
        until: datetime | None = None
        if name is not None:
            stored = self.get(name)
            if stored.error is not None:
                raise ConfigurationError(stored.error)
            cron, every, at, anchor = stored.cron, stored.every, stored.at, stored.anchor
            timezone, until = stored.timezone, stored.until
            if stored.max_runs is not None:
                count = min(count, stored.max_runs - stored.runs)
        timing = build_timing(cron, every, at, anchor, timezone)
        if name is None:
            checked(Cron("@daily", timezone))  # of an interval too: the instants are shown in it
        start = self._store.now() if after is None else instant_micros(after, "after")
        zone = ZoneInfo(timezone)
        found: builtins.list[datetime] = []
        for moment in islice(fires_after(timing, start), max(0, count)):
            upcoming = instant(moment)
            assert upcoming is not None
            if until is not None and upcoming > until:
                break
            try:
                found.append(upcoming.astimezone(zone))
            except OverflowError:  # the last hours of the year 9999
                break
        return found

    def pause(self, name: str) -> bool:
        """Stop a schedule from firing; its history stays. Returns whether it was active."""
        return self._store.pause_schedule(name)

    def resume(self, name: str) -> bool:
        """Let a paused schedule fire again, from now on. Returns whether it was paused.

        One that has made its `max_runs`, or whose `until` has passed, fires no more: its `next_fire_at` is None.
        """
        resumed = self._store.resume_schedule(name)
        self._app._wake_workers()
        return resumed

    def trigger(self, name: str, arguments: dict[str, Any] | None = None) -> JobHandle[Any]:
        """Make an occurrence for this very moment, by the same path as any other (`trigger=manual`).

        Args:
            name: the schedule, paused or not.
            arguments: instead of the schedule's own.

        Raises:
            ScheduleNotFound: no such schedule.
            ArgumentsError: arguments that do not fit the handler.
        """
        text: str | None = None
        if arguments is not None:
            text = self._app._handler(self.get(name).kind).arguments.encode((), _arguments(arguments))
        result = self._store.trigger_schedule(name, text)
        self._app._wake_workers()
        return JobHandle(self._store, None, result.id)

    def backfill(self, name: str, first: datetime, last: datetime) -> builtins.list[JobHandle[Any]]:
        """Make the occurrences of a past range that are not there yet (`trigger=backfill`), in order.

        Args:
            name: the schedule.
            first, last: aware datetimes, both included; at most 1,000 instants between them.

        Raises:
            ScheduleNotFound: no such schedule.
            ConfigurationError: a naive datetime, a range that reaches into the future, instants after the schedule's
                `until`, or too many.
        """
        ids = self._store.backfill_schedule(name, instant_micros(first, "first"), instant_micros(last, "last"))
        self._app._wake_workers()
        return [JobHandle(self._store, None, job_id) for job_id in ids]

    def delete(self, name: str, *, occurrences: bool = False) -> None:
        """Remove a schedule for good.

        Args:
            name: which.
            occurrences: whether its final occurrences go too; otherwise they stay until retention takes them. Those
                that wait or run stay in any case, and end as usual.

        Raises:
            ScheduleNotFound: no such schedule.
        """
        self._store.delete_schedule(name)
        if occurrences:
            self._store.delete_occurrences(name, keep=0)

    def prune(self, name: str, *, keep: int) -> int:
        """Delete a schedule's final occurrences, but for the newest `keep` of them. Returns how many went.

        Retention by age is `app.prune`, for all jobs alike.

        Raises:
            ConfigurationError: `keep` is negative.
            ScheduleNotFound: no such schedule.
        """
        if keep < 0:
            raise ConfigurationError(f"keep is at least 0, not {keep}")
        self.get(name)
        return self._store.delete_occurrences(name, keep=keep)

    def occurrences(
        self,
        name: str | None = None,
        *,
        state: State | str | Collection[State | str] | None = None,
        trigger: Trigger | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: Job | None = None,
        limit: int = 50,
    ) -> builtins.list[Job]:
        """A page of occurrences, newest instant first, without arguments, results and history.

        Args:
            name: of one schedule; None: of all.
            state: one or several; None: all.
            trigger: schedule, manual or backfill; None: any.
            since, until: aware datetimes, the window of their instants, both included.
            before: the last one of the page before.
            limit: how many at most, up to 1,000; default 50.

        Raises:
            ConfigurationError: an unknown state, a naive datetime, or a limit out of range.
        """
        if not 1 <= limit <= MOST_LISTED:
            raise ConfigurationError(f"limit is from 1 to {MOST_LISTED}, not {limit}")
        if name is not None:
            check_name(name, "a schedule's name", NAME_CHARS)
        wanted = [] if state is None else [state] if isinstance(state, str) else sorted(state)
        unknown = [word for word in wanted if word not in list(State)]
        if unknown:
            raise ConfigurationError(f"No state {unknown[0]!r}. States: {', '.join(State)}")
        cursor = None
        if before is not None:
            if before.scheduled_for is None:
                raise ConfigurationError(f"before= is an occurrence; job {before.id} is none")
            cursor = (instant_micros(before.scheduled_for, "before"), before.id)
        return self._store.list_occurrences(
            schedule=name,
            states=[str(word) for word in wanted],
            trigger=None if trigger is None else str(trigger),
            since=None if since is None else instant_micros(since, "since"),
            until=None if until is None else instant_micros(until, "until"),
            before=cursor,
            limit=limit,
        )
