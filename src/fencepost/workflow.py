"""Workflows: jobs that wait for each other, by name, to be enqueued together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fencepost.errors import ConfigurationError, DependencyError
from fencepost.job import Dependency, NewJob, OnConflict, When
from fencepost.options import AfterOne, AskedWhen, check_name, dependency_on
from fencepost.store.tables import NAME_CHARS

__all__ = ["Workflow"]


class Workflow:
    """Jobs that wait for each other, named, in any order; `app.enqueue_graph` stores them all or none.

        flow = fencepost.Workflow()
        flow.add("extract", extract.build("2026-07-01"))
        flow.add("clean", clean.build(), after="extract")
        flow.add("alert", alert.build(), after="clean", when="failure")
        handles = app.enqueue_graph(flow)

    A handler finds what those before it returned under their names, in `ctx.dependencies`.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, NewJob] = {}
        self._after: dict[str, list[tuple[Any, When]]] = {}

    def add(
        self,
        name: str,
        job: NewJob,
        *,
        after: AfterOne | Iterable[AfterOne] | Mapping[str, AskedWhen] = (),
        when: AskedWhen = When.SUCCESS,
    ) -> str:
        """Add a job.

        Args:
            name: by which others name it, unique in the workflow, at most 200 characters.
            job: what `build(...)` returns.
            after: the name of a job of this workflow, which may be added later; a handle, or (kind, key), of a job
                that is enqueued already; a list of these; or names with what is asked of each,
                `{"load": "success", "check": "completion"}`. A job that must wait for an id is built with
                `using(after=id)`: what stands there stays.
            when: what is asked of each: "success" (default), "failure" or "completion".

        Returns:
            The name.

        Raises:
            ConfigurationError: a name that is taken, or a value that cannot be.
        """
        name = check_name(name, "the name of a job in a workflow", NAME_CHARS)
        if not isinstance(job, NewJob):
            raise ConfigurationError(f"Not a built job: {job!r}. Pass what build() returns: add('send', send.build(7))")
        if name in self._jobs:
            raise ConfigurationError(f"The workflow has a job named {name!r} already: names are unique.")
        if any(job.id == other.id for other in self._jobs.values()):
            raise ConfigurationError(f"The job {name!r} stands in the workflow already: build one for each name.")
        if job.options.on_conflict is OnConflict.REPLACE:
            raise ConfigurationError(
                f"The job {name!r} would replace another: a workflow takes on_conflict='keep' alone."
            )
        self._after[name] = [(one, _when(asked)) for one, asked in _pairs(after, when)]
        self._jobs[name] = job
        return name

    def build(self) -> dict[str, NewJob]:
        """The jobs with what they wait for, by name, in the order in which they were added.

        Raises:
            DependencyError: a job waits for a name that the workflow has not, or for itself.
        """
        return {name: self._built(name, job) for name, job in self._jobs.items()}

    def _built(self, name: str, job: NewJob) -> NewJob:
        if not self._after[name]:
            return job
        found = [self._dependency(name, one, when) for one, when in self._after[name]]
        return replace(job, options=replace(job.options, after=(*job.options.after, *found)))

    def _dependency(self, name: str, one: Any, when: When) -> Dependency:
        if not isinstance(one, str):
            return dependency_on(one, when)
        if one == name:
            raise DependencyError(f"The job {name!r} waits for itself: leave it out of its own after=.")
        if one not in self._jobs:
            known = ", ".join(map(repr, self._jobs))
            raise DependencyError(f"The job {name!r} waits for {one!r}, which the workflow has not. It has: {known}.")
        return Dependency(self._jobs[one].id, when, name=one)

    def __len__(self) -> int:
        return len(self._jobs)

    def __repr__(self) -> str:
        return f"<Workflow of {len(self)} jobs>"


def _pairs(after: Any, when: AskedWhen) -> Iterator[tuple[Any, AskedWhen]]:
    if isinstance(after, Mapping):
        yield from after.items()
    elif isinstance(after, str) or _is_key(after) or hasattr(after, "id"):
        yield after, when
    elif isinstance(after, Iterable):
        yield from ((one, when) for one in after)
    else:
        yield after, when


def _is_key(after: Any) -> bool:
    # ("a", "b") are two names, (send, "key") is one identity.
    return isinstance(after, tuple) and len(after) == 2 and hasattr(after[0], "kind") and isinstance(after[1], str)


def _when(asked: object) -> When:
    try:
        return When(str(asked))
    except ValueError:
        raise ConfigurationError(f"when is one of {', '.join(When)}; not {asked!r}") from None
