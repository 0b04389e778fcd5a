"""Job functions: what `@app.job` makes of a function, and what enqueues its jobs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from fencepost.context import JobContext
from fencepost.handle import JobHandle
from fencepost.ids import new_id
from fencepost.job import NewJob, Options
from fencepost.limit_options import check_computed, resolve
from fencepost.options import Asked, build_options
from fencepost.registry import Handler

if TYPE_CHECKING:
    from fencepost.app import App

__all__ = ["Decorator", "JobFunction", "Prepared"]

P = ParamSpec("P")
R = TypeVar("R")


class Prepared(Generic[P, R]):
    """A job function together with what `using(...)` asked for."""

    def __init__(self, app: App, handler: Handler, options: Options, connection: Any = None) -> None:
        self.app = app
        self.handler = handler
        self._options = options
        self._connection = connection

    def using(self, *, connection: Any = None, **options: Unpack[Asked]) -> Prepared[P, R]:
        """The same job function with other options.

        Args:
            connection: enqueue within this transaction of yours instead of one of our own: a SQLAlchemy Connection
                or Session (with `aenqueue` also an AsyncConnection or AsyncSession), a Django connection inside
                `atomic()`, or the driver's own connection. Workers see the job after your commit; your rollback takes
                it back.
            queue: the lane; default "default".
            priority: critical, high, normal (default) or low. A low job overtakes normal ones that came more than
                5 minutes after it.
            delay: seconds or timedelta from now.
            run_at: an aware datetime.
            deadline: an aware datetime after which it is not started any more (skipped, `expired`).
            duration_hint: seconds or timedelta that it will take; with a deadline it becomes urgent in time.
            timeout: seconds or timedelta for one attempt; None (default): none.
            max_attempts: how often it is tried at most; default 20. Fixed at enqueue.
            backoff: a `Backoff`, seconds, or a list of seconds per attempt; default: exponential from 2 s, with full
                jitter, at most 6 h.
            key: its identity is (kind, key): while a live job holds it, enqueueing again makes no second one.
            hold: "live" (default) holds the identity until the job is final, "queued" only until it first starts.
            on_conflict: "keep" (default) leaves the holder as it is, "replace" gives a waiting holder the new
                arguments, options and time.
            keep_result: whether what the handler returns is stored; default True.
            tags: words to find it by.
            tenant: on whose behalf it runs.
            concurrency: a key, of whose jobs one runs at a time; (key, slots), for so many at a time; a `Concurrency`;
                or a function of arguments of the handler's, by their names, that returns one of these, or None for no
                limit.
            rate: (key, per_second, burst), or a `Rate`: of the jobs with this key, whatever their kinds, queues and
                nodes, at most burst + per_second * t start in any t seconds; or such a function.
            resources: amounts of named buckets and semaphores (see `app.limits`) that it takes to start. It waits for
                one that nobody has declared yet.
            labels: what its worker must have: names and values, `{"gpu": "a100"}`. Only a worker that has each of
                them with the same value takes the job; None or {} (default): any worker. Replaces those of the kind.
            after: what it waits for, `blocked`, before it takes its place: a handle, a built job, an id, (kind or job
                function, key) for the live job with that identity, or a list of these. A `delay` counts from there.
                None (default): nothing.
            when: what it asks of each of them: "success" (default), "failure" (that it failed for good) or
                "completion" (any end). Where one ends otherwise, it is skipped, reason `dependency_failed`.

        Raises:
            ConfigurationError: a value that cannot be, with what would be right.
        """
        joins = self._connection if connection is None else connection
        changed = build_options(self._options, **options)
        if changed.computed:
            check_computed(changed, self.handler.function, self.handler.kind)
        return Prepared(self.app, self.handler, changed, joins)

    def build(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job that is checked and encoded but not stored; for `app.enqueue_many`.

        Raises:
            ArgumentsError: the arguments do not fit the signature.
            EncodingError: a value that cannot be stored.
            ConfigurationError: a `concurrency` or `rate` function that returns what cannot be, or an amount of a
                resource that is known never to be there.
        """
        handler, options = self.handler, self._options
        if not options.computed and not options.resources:
            return NewJob(new_id(), handler.kind, handler.arguments.encode(args, kwargs), options)
        text, checked = handler.arguments.encode_checked(args, kwargs)
        if options.computed:
            options = resolve(options, handler.function, handler.kind, handler.arguments.given(checked))
        self.app.limits.refuse_impossible(options.resources)
        return NewJob(new_id(), handler.kind, text, options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job. Returns after the commit (or, with `connection=`, after the insert).

        Raises:
            ArgumentsError: the arguments do not fit the signature.
            EncodingError: a value that cannot be stored.
            DependencyError: what it is to wait for is not there.
            StoreUnavailable: the database could not be asked.
        """
        job = self.build(*args, **kwargs)
        (handle,) = self.app._enqueue([job], self._connection)
        return handle

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for async code: the event loop does not wait on the database, and calls that happen at the same
        time share a transaction."""
        job = self.build(*args, **kwargs)
        (handle,) = await self.app._aenqueue([job], self._connection)
        return handle


class Decorator(Protocol):
    """`@app.job(...)` with parentheses: registers the function that it decorates."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...


class JobFunction(Prepared[P, R]):
    """A function that was registered as a job. Calling it runs it here and now, as if it were undecorated."""

    def __init__(self, app: App, handler: Handler) -> None:
        super().__init__(app, handler, handler.options)
        update_wrapper(self, handler.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function itself."""
        return self.handler.function(*args, **kwargs)

    @property
    def kind(self) -> str:
        """Its name in the database."""
        return self.handler.kind

    def __repr__(self) -> str:
        return f"<job {self.kind}>"
