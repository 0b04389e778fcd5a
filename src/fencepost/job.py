"""Plain data: jobs, the words for their states, and what an enqueue asks for. Nothing here touches the world.

The life of a job (each arrow is one guarded write):

                      promote                 claim                 complete
    blocked ──▶ scheduled ──────────▶ ready ──────────▶ running ──────────────▶ succeeded
       │            ▲   ▲               ▲ ▲                │ │ │   abandon, or
       │            │   └───────────────┼─┼── retry ───────┘ │ │   attempts spent
       │            │                   │ └── release ───────┘ ├─────────────────▶ failed
       │            └── snooze, ────────┘     reclaim          │   expired, ...
       │                reschedule                             ├─────────────────▶ skipped
       └───────────────── cancel (from every live state) ──────┴─────────────────▶ cancelled
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "DEFAULT_LEASE_SECONDS",
    "DEFAULT_MAX_ATTEMPTS",
    "DEFAULT_QUEUE",
    "FINAL_STATES",
    "LIVE_STATES",
    "WAITING_STATES",
    "Attempt",
    "Backoff",
    "BackoffSpec",
    "BusyPolicy",
    "Claim",
    "Concurrency",
    "Dependency",
    "EnqueueResult",
    "FixedStart",
    "Hold",
    "Job",
    "JobLimits",
    "Lease",
    "Micros",
    "NewJob",
    "Occurrence",
    "OnConflict",
    "OnMiss",
    "Options",
    "Priority",
    "Rate",
    "Reason",
    "State",
    "Trigger",
    "When",
]

Micros: TypeAlias = int
"""An instant (microseconds since the Unix epoch) or a span (microseconds)."""

_LONGEST_BACKOFF = 100 * 366 * 86_400

DEFAULT_QUEUE = "default"
DEFAULT_MAX_ATTEMPTS = 20  # with the default backoff a failing job is tried for about a day
DEFAULT_LEASE_SECONDS = 30.0  # three heartbeats of 10 s: two may be lost


class State(StrEnum):
    """Where a job stands. The first four are live, the others final."""

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


LIVE_STATES = frozenset({State.BLOCKED, State.SCHEDULED, State.READY, State.RUNNING})
WAITING_STATES = frozenset({State.BLOCKED, State.SCHEDULED, State.READY})
FINAL_STATES = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED})


class Reason(StrEnum):
    """Why a job is final, or why a live one is waiting again."""

    ERROR = "error"
    """The handler raised; the job waits for its next attempt."""
    TIMEOUT = "timeout"
    """The attempt outlasted its timeout."""
    SNOOZED = "snoozed"
    """The handler asked to come back later."""
    RELEASED = "released"
    """Its worker stopped and handed it back."""
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    LEASE_EXPIRED = "lease_expired"
    """Its worker died or was cut off: nobody renewed the lease."""
    ABANDONED = "abandoned"
    """The handler, or a person, gave it up."""
    EXPIRED = "expired"
    """Its deadline passed before it started."""
    UNDECODABLE = "undecodable"
    """The row or its arguments cannot be read by this build."""
    UNENCODABLE_RESULT = "unencodable_result"
    """The handler returned something that cannot be stored."""
    CANCELLED = "cancelled"
    """A handler, or a person, cancelled it."""
    MISFIRE = "misfire"
    SINGLETON = "singleton"
    MISSED_START = "missed_start"
    DEPENDENCY_FAILED = "dependency_failed"
    SHED = "shed"
    """Its queue held more waiting jobs than it may, and this one had to go."""


class Priority(StrEnum):
    """Who goes first in a queue. See `fencepost.planning.rank` for what each means exactly."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Hold(StrEnum):
    """How long a job holds its identity."""

    LIVE = "live"
    """Until it is final."""
    QUEUED = "queued"
    """Until it first starts, for good: retries of it run without the identity."""


class Trigger(StrEnum):
    """What made an occurrence."""

    SCHEDULE = "schedule"
    """Its schedule's cursor came to its instant."""
    MANUAL = "manual"
    """Somebody asked for it now."""
    BACKFILL = "backfill"
    """Somebody asked for the instants of a past range."""


class BusyPolicy(StrEnum):
    """What becomes of a job whose concurrency key has no free permit when it is its turn."""

    SKIP = "skip"
    """It is skipped, reason `singleton`. Only a first attempt is: a retry waits."""
    QUEUE = "queue"
    """It waits, `blocked`, until a permit is released."""
    QUEUE_ON_SUCCESS = "queue_on_success"
    """It waits until the holder is final, retries included, and starts if that succeeded; otherwise it is skipped,
    reason `dependency_failed`."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """A concurrency key: at most `slots` of the jobs that name it run at once.

    Attributes:
        key: its name.
        slots: how many permits it has; 1: a singleton.
        busy: what becomes of a job that finds none free.
    """

    key: str
    slots: int = 1
    busy: BusyPolicy = BusyPolicy.QUEUE


class OnMiss(StrEnum):
    """What becomes of a job with a fixed start that cannot be kept."""

    RUN_LATE = "run_late"
    """It runs as soon as it can; its history says how late it was."""
    SKIP = "skip"
    """It is skipped, reason `missed_start`."""
    FAIL = "fail"
    """It fails, reason `missed_start`."""


@dataclass(frozen=True, slots=True)
class FixedStart:
    """An instant at which a job is to start, neither before nor, if it can be helped, after.

    Attributes:
        at: the instant.
        tolerance: how many microseconds later it may start and still count as on time.
        on_miss: what becomes of it after that.
    """

    at: Micros
    tolerance: Micros
    on_miss: OnMiss


DEFAULT_TOLERANCE: Micros = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit of a key's own: at most `burst + per_second * t` jobs that name it start within any t seconds.

    Attributes:
        key: its name; jobs of all kinds, queues and nodes that name it share one token bucket.
        per_second: tokens a second, more than 0, at most 1,000,000; each start takes one token.
        burst: how many may start at once after a quiet time, at least 1; default 1.
    """

    key: str
    per_second: float
    burst: int = 1


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What a job needs beside a permit of its concurrency key, to start.

    Attributes:
        rate: a token of this bucket.
        resources: amounts of named buckets and semaphores, in the order of the names.
    """

    rate: Rate | None = None
    resources: tuple[tuple[str, int], ...] = ()


class When(StrEnum):
    """What a job that waits for another asks of its end."""

    SUCCESS = "success"
    """That it succeeded. One that failed, was cancelled or was skipped skips its successor."""
    FAILURE = "failure"
    """That it failed. One that succeeded, was cancelled or was skipped skips its successor."""
    COMPLETION = "completion"
    """Nothing: any end will do."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """One job that another waits for.

    Attributes:
        job_id: its id; None: it is the live job with the identity (kind, key) when the waiting one is enqueued.
        kind, key: that identity.
        when: what is asked of its end.
        name: by which its result is found; None: its id.
    """

    job_id: str | None
    when: When = When.SUCCESS
    kind: str | None = None
    key: str | None = None
    name: str | None = None


class OnConflict(StrEnum):
    """What an enqueue does when a live job holds its identity."""

    KEEP = "keep"
    """Leave that job as it is."""
    REPLACE = "replace"
    """Give that job, if it still waits, the new arguments, options and time; leave a running one alone."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: `base * factor ** (attempt - 1)` seconds, at most `cap`.

    Args:
        base: seconds after the first failed attempt; default 2.
        factor: growth for each further attempt; default 2.
        cap: upper bound in seconds; default 6 hours.
        jitter: the share of the delay that is drawn at random: 1 is full jitter (anything from 0 to the
            delay), 0 is none; default 1.

    Raises:
        ValueError: a number out of range.
    """

    base: float = 2.0
    factor: float = 2.0
    cap: float = 21_600.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        bounded = 0 <= self.base <= self.cap <= _LONGEST_BACKOFF
        if not (bounded and 1 <= self.factor < math.inf and 0 <= self.jitter <= 1):
            raise ValueError(
                f"{self!r} cannot be used: it takes 0 <= base <= cap <= 100 years, a finite factor >= 1 and "
                "0 <= jitter <= 1"
            )


BackoffSpec: TypeAlias = "float | Sequence[float] | Backoff"
"""A constant number of seconds, one number per attempt (the last repeats), or a `Backoff`."""


@dataclass(frozen=True, slots=True)
class Options:
    """What an enqueue asks for, checked and in the store's units. Built by `using(...)`."""

    queue: str = DEFAULT_QUEUE
    priority: Priority = Priority.NORMAL
    delay: Micros | None = None
    run_at: Micros | None = None
    deadline: Micros | None = None
    duration_hint: Micros = 0
    timeout_seconds: float | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: BackoffSpec = field(default_factory=Backoff)
    key: str | None = None
    hold: Hold = Hold.LIVE
    on_conflict: OnConflict = OnConflict.KEEP
    keep_result: bool = True
    tags: tuple[str, ...] = ()
    tenant: str | None = None
    concurrency: Concurrency | None = None
    labels: str | None = None
    """What its worker must have, as canonical JSON text; see `fencepost.labels`."""
    start_at: Micros | None = None
    tolerance: Micros | None = None
    """With `start_at`; None: the default. In a schedule's options: its occurrences have fixed starts."""
    on_miss: OnMiss = OnMiss.RUN_LATE
    rate: Rate | None = None
    resources: tuple[tuple[str, int], ...] = ()
    computed: tuple[tuple[str, Callable[..., Any]], ...] = ()
    """`concurrency` and `rate` that are worked out from a job's arguments, when it is built."""
    after: tuple[Dependency, ...] = ()
    """What it waits for."""

    @property
    def fixed_start(self) -> FixedStart | None:
        """What `start_at`, `tolerance` and `on_miss` say together."""
        if self.start_at is None:
            return None
        return FixedStart(self.start_at, DEFAULT_TOLERANCE if self.tolerance is None else self.tolerance, self.on_miss)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What makes a job the occurrence of a schedule.

    Attributes:
        schedule: its name.
        scheduled_for: the instant; (schedule, scheduled_for) is unique.
        trigger: what made it.
    """

    schedule: str
    scheduled_for: Micros
    trigger: Trigger


@dataclass(slots=True)
class NewJob:
    """A job that was built and not yet stored: what `build(...)` returns and `enqueue_many` takes."""

    id: str
    kind: str
    arguments: str
    """JSON text."""
    options: Options
    occurrence: Occurrence | None = None


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """What became of one enqueue.

    Attributes:
        id: the job's id; with `created=False`, that of the live job that holds the identity.
        created: whether this enqueue made the job.
        replaced: whether the holder took the new arguments (`on_conflict="replace"`).
    """

    id: str
    created: bool
    replaced: bool = False


class Lease(NamedTuple):
    """The right to work on a job: valid while the row is running with this owner and this token."""

    job_id: str
    owner: str
    token: int


@dataclass(slots=True)
class Claim:
    """One attempt that a worker has claimed, with all it needs to run and settle it."""

    lease: Lease
    kind: str
    queue: str
    arguments: str
    attempt: int
    """1 for the first; the number of attempts spent, this one included."""
    max_attempts: int
    priority: Priority
    created_at: Micros
    run_at: Micros
    """The instant from which it was due."""
    deadline: Micros | None
    duration_hint: Micros
    hold: Hold | None
    timeout_seconds: float | None
    backoff: BackoffSpec
    keep_result: bool
    tags: tuple[str, ...]
    tenant: str | None
    schedule: str | None
    scheduled_for: Micros | None
    trigger: str | None
    concurrency: Concurrency | None
    reason: str | None
    """Why it was waiting again: `lease_expired` marks an attempt whose predecessor died with its worker."""
    history: str | None
    """JSON text; see `Attempt`."""
    claimed_at: Micros
    """The database's clock at the claim."""
    fencing_token: int | None = None
    """Of its permit, if it has a concurrency key: grows every time a permit of the slot is taken."""
    start: FixedStart | None = None
    """When its handler is to start, if that is fixed: a claim may come a little before it."""
    limits: JobLimits | None = None
    """What it took beside the permit."""
    labels: str | None = None
    """What its worker must have, as canonical JSON text; None: nothing."""
    has_successors: bool = False
    """Whether other jobs wait for its end."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self.lease.job_id

    @property
    def gives_back(self) -> bool:
        """Whether somebody else may start when it ends: it holds a permit, or may hold shares of semaphores."""
        return self.concurrency is not None or (self.limits is not None and bool(self.limits.resources))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One ended attempt of a job's history (the last 50 are kept; successes are not recorded)."""

    attempt: int
    at: datetime
    reason: Reason | str
    worker: str
    error: str | None
    """The error's last line; the newest one stands whole in `Job.last_error`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stood when it was read. Instants are aware datetimes in UTC."""

    id: str
    kind: str
    queue: str
    state: State | str
    reason: Reason | str | None
    priority: Priority | str
    arguments: Any
    """As plain JSON values; None in a listing, which does not load them."""
    attempts: int
    max_attempts: int
    key: str | None
    run_at: datetime
    """When it is (or was) due: for a waiting job, its next attempt."""
    deadline: datetime | None
    created_at: datetime
    started_at: datetime | None
    """When its newest attempt was claimed."""
    finished_at: datetime | None
    start_at: datetime | None
    """Its fixed start, if it has one."""
    tolerance: float | None
    """Seconds by which that start may be late and still counts as kept."""
    on_miss: OnMiss | str | None
    last_error: str | None
    result: Any
    progress: float | None
    """From 0 to 1, as the handler last reported it."""
    progress_note: str | None
    tags: tuple[str, ...]
    labels: dict[str, str]
    tenant: str | None
    schedule: str | None
    scheduled_for: datetime | None
    trigger: Trigger | str | None
    lease_owner: str | None
    lease_until: datetime | None
    cancel_requested: bool
    history: tuple[Attempt, ...]
    waits_for: str | None = None
    """What a blocked job waits for, in words: `concurrency key 'user-7'`, `rate 'acme'`, `resource 'gpu'`, or the
    jobs that have not ended yet."""

    @property
    def is_final(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in FINAL_STATES

    @property
    def is_live(self) -> bool:
        """Whether it still waits or runs."""
        return self.state in LIVE_STATES
