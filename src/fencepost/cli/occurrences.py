"""`fencepost occurrences`: the jobs that schedules made."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fencepost.app import App
from fencepost.cli.jobs import (
    NOT_LISTED,
    as_dict,
    cancel_one,
    described,
    each,
    note_of,
    retry_one,
    state_style,
    without,
)
from fencepost.cli.options import AppOption, JsonOption, UrlOption, instant_of
from fencepost.cli.output import Column, fields, hint, iso, table, write_json
from fencepost.cli.targets import opened
from fencepost.errors import InvalidTransition
from fencepost.job import Job, State, Trigger
from fencepost.store.batches import MOST_LISTED
from fencepost.store.figures import lag_seconds
from fencepost.store.rows import instant

__all__ = ["occurrences"]

occurrences = typer.Typer(no_args_is_help=True, help="Look at what schedules made, retry and cancel it.")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The occurrence's job id.", show_default=False)]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID...", help="Job ids of occurrences.", show_default=False)]


@occurrences.command("list")
def list_occurrences(
    url: UrlOption = None,
    app: AppOption = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="NAME", help="Only this schedule; it may be deleted by now.")
    ] = None,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", metavar="STATE", help=f"Only this one: {', '.join(State)}. May be repeated."),
    ] = None,
    trigger: Annotated[
        Trigger | None, typer.Option("--trigger", metavar="WORD", help=f"Only this one: {', '.join(Trigger)}.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="INSTANT", help="Only for this instant and later; ISO 8601 with an offset."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="INSTANT", help="Only for this instant and earlier; ISO 8601.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MOST_LISTED, help="How many at most.")] = 50,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Only earlier ones: the next page.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List occurrences, latest instant first.

    LAG is how long after it was due it started: an occurrence made by hand or for a past range is due when it is made.

    \b
    Example:
      fencepost occurrences list --url sqlite:///jobs.db --schedule nightly --state failed --state skipped
    """
    first, last = instant_of(since, "--since"), instant_of(until, "--until")
    with opened(url, app) as target:
        found = target.schedules.occurrences(
            schedule,
            state=state or None,
            trigger=trigger,
            since=first,
            until=last,
            before=None if before is None else _occurrence(target, before),
            limit=limit,
        )
    if as_json:
        write_json([without(as_dict(job), NOT_LISTED) | {"lag_seconds": lag_seconds(job)} for job in found])
        return
    table(
        [
            Column("ID"),
            Column("SCHEDULE", least=10),
            Column("SCHEDULED FOR"),
            Column("STATE", style=state_style),
            Column("REASON", yields=1),
            Column("TRIGGER", yields=2),
            Column("LAG", yields=3),
            Column("NOTE", least=16, yields=4),
        ],
        [
            (
                job.id,
                job.schedule or "",
                "" if job.scheduled_for is None else iso(job.scheduled_for),
                str(job.state),
                "" if job.reason is None else str(job.reason),
                "" if job.trigger is None else str(job.trigger),
                _lag(job),
                note_of(job, says_reason=False),
            )
            for job in found
        ],
        empty="No occurrences.",
    )
    if len(found) == limit:
        hint(f"There may be more: --before {found[-1].id}")


@occurrences.command()
def show(job_id: IdArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show all there is to know of an occurrence.

    Exit code 1 if it is not there, or the job has no schedule.

    \b
    Example:
      fencepost occurrences show 01980c4e-8f2a-7c31-9a55-3f6f2f9f6d10 --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        job = _occurrence(target, job_id)
        now = instant(target.store.now())
    if as_json:
        write_json(as_dict(job) | {"lag_seconds": lag_seconds(job)})
        return
    assert now is not None
    fields((name, value) for name, value in [*described(job, now), ("lag", _lag(job))] if value)


@occurrences.command()
def retry(ids: IdsArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Run failed, cancelled and skipped occurrences again.

    Each keeps its id and its instant, and gets fresh attempts. A succeeded one is refused. Exit code 1 if one could
    not be retried.

    \b
    Example:
      fencepost occurrences retry 01980c4e-8f2a-7c31-9a55-3f6f2f9f6d10 --url sqlite:///jobs.db
    """

    def one(target: App, job_id: str) -> dict[str, Any]:
        return retry_one(target, _occurrence(target, job_id).id)

    each(ids, url, app, one, as_json=as_json)


@occurrences.command()
def cancel(ids: IdsArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Cancel occurrences.

    Waiting ones are cancelled at once, running ones at their worker's next heartbeat, which frees their permits; final
    ones stay as they are. Exit code 1 if one is unknown.

    \b
    Example:
      fencepost occurrences cancel 01980c4e-8f2a-7c31-9a55-3f6f2f9f6d10 --url sqlite:///jobs.db
    """

    def one(target: App, job_id: str) -> dict[str, Any]:
        return cancel_one(target, _occurrence(target, job_id).id)

    each(ids, url, app, one, as_json=as_json)


def _occurrence(target: App, job_id: str) -> Job:
    job = target.jobs.get(job_id)
    if job.schedule is None:
        raise InvalidTransition(f"Job {job.id} is no occurrence of a schedule. Use: fencepost jobs show {job.id}")
    return job


def _lag(job: Job) -> str:
    seconds = lag_seconds(job)
    return "" if seconds is None else f"{seconds:.2f}s"
