"""`fencepost jobs`: look at jobs, and act on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import typer

from fencepost.app import App
from fencepost.cli.options import (
    AppArgument,
    AppOption,
    JsonOption,
    UrlOption,
    duration,
    instant_of,
    labels_of,
    object_of,
)
from fencepost.cli.output import Column, fields, hint, iso, line, problem, since, table, write_json
from fencepost.cli.targets import load_app, opened
from fencepost.errors import FencepostError
from fencepost.job import Attempt, Job, Priority, State
from fencepost.store.batches import MOST_LISTED
from fencepost.store.rows import instant

__all__ = [
    "NOT_LISTED",
    "Act",
    "as_dict",
    "cancel_one",
    "described",
    "each",
    "jobs",
    "note_of",
    "retry_one",
    "state_style",
    "without",
]

Act: TypeAlias = Callable[[App, str], dict[str, Any]]
"""Acts on one job, by its id. What it returns is the JSON of it, with a sentence for people as `said`."""

jobs = typer.Typer(no_args_is_help=True, help="Look at jobs, retry, cancel and enqueue them.")

_STYLES = {
    "blocked": "magenta",
    "scheduled": "cyan",
    "ready": "blue",
    "running": "bold blue",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "skipped": "yellow",
}
NOT_LISTED = ("arguments", "result", "history")
"""What a listing does not load."""

IdsArgument = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of jobs.", show_default=False)]


def state_style(text: str) -> str:
    """The style of a state's name."""
    return _STYLES.get(text.partition(" ")[0], "")


@jobs.command("list")
def list_jobs(
    url: UrlOption = None,
    app: AppOption = None,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", metavar="STATE", help=f"Only this one: {', '.join(State)}. May be repeated."),
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only this kind.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only this queue.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this key.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="WORD", help="Only with this tag.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Only with this label; may be repeated, for all of them."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MOST_LISTED, help="How many at most.")] = 50,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Only older ones: the next page.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    \b
    Example:
      fencepost jobs list --url sqlite:///jobs.db --state failed --limit 20
    """
    with opened(url, app) as target:
        found = target.jobs.list(
            state=state or None,
            kind=kind,
            queue=queue,
            key=key,
            tenant=tenant,
            tag=tag,
            labels=labels_of(label),
            limit=limit,
            before=before,
        )
        if as_json:
            write_json([without(as_dict(job), NOT_LISTED) for job in found])
            return
        now = instant(target.store.now())
    assert now is not None
    table(
        [
            Column("ID"),
            Column("STATE", style=state_style),
            Column("KIND", least=12, keeps_end=True),
            Column("QUEUE", least=6, yields=2),
            Column("TRY", yields=1),
            Column("WHEN"),
            Column("NOTE", least=16, yields=3),
        ],
        [
            (
                job.id,
                str(job.state),
                job.kind,
                job.queue,
                f"{job.attempts}/{job.max_attempts}",
                _when(job, now),
                note_of(job),
            )
            for job in found
        ],
        empty="No jobs.",
    )
    if len(found) == limit:
        hint(f"There may be more: --before {found[-1].id}")


@jobs.command()
def show(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all there is to know of a job.

    That is its arguments, its result, its attempts and its errors too. Exit code 1 if it is not there.

    \b
    Example:
      fencepost jobs show 01980c4e-8f2a-7c31-9a55-3f6f2f9f6d10 --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        job = target.jobs.get(job_id)
        now = instant(target.store.now())
    if as_json:
        write_json(as_dict(job))
        return
    assert now is not None
    fields((name, value) for name, value in described(job, now) if value)


@jobs.command()
def starts(
    url: UrlOption = None,
    app: AppOption = None,
    within: Annotated[
        float, typer.Option("--within", parser=duration, metavar="DURATION", help="Of what ended in this time.")
    ] = 3600,
    as_json: JsonOption = False,
) -> None:
    """Show how many fixed starts were kept.

    Of the jobs with a fixed start that ended lately, the newest 10,000 at most.

    \b
    Example:
      fencepost jobs starts --within 1d --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        figures = target.jobs.start_figures(within)
    if as_json:
        write_json(asdict(figures) | {"hit_rate": figures.hit_rate})
        return
    if figures.hit_rate is None:
        line("No job with a fixed start ended in that time.")
        return
    line(
        f"{figures.hit_rate:.1%} of fixed starts were kept: {figures.kept} kept, {figures.late} ran late, "
        f"{figures.skipped} skipped, {figures.failed} failed."
    )


@jobs.command()
def retry(ids: IdsArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Make final jobs ready again.

    Failed, cancelled and skipped ones, with fresh attempts and the same id. Exit code 1 if one could not be retried.

    \b
    Example:
      fencepost jobs retry 01980c4e-8f2a-7c31-9a55-3f6f2f9f6d10 --url sqlite:///jobs.db
    """

    each(ids, url, app, retry_one, as_json=as_json)


@jobs.command()
def cancel(ids: IdsArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Cancel jobs.

    Waiting ones are cancelled at once, running ones at their worker's next heartbeat; final ones stay as they are.
    Exit code 1 if one is unknown.

    \b
    Example:
      fencepost jobs cancel 01980c4e-8f2a-7c31-9a55-3f6f2f9f6d10 --url sqlite:///jobs.db
    """

    each(ids, url, app, cancel_one, as_json=as_json)


@jobs.command()
def enqueue(
    where: AppArgument,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A kind that the app registers.", show_default=False)],
    arguments: Annotated[
        str | None,
        typer.Argument(metavar="ARGUMENTS", help="The handler's arguments as a JSON object.", show_default=False),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Default: the handler's.")] = None,
    priority: Annotated[
        Priority | None,
        typer.Option("--priority", metavar="WORD", help=f"{', '.join(Priority)}. Default: the handler's."),
    ] = None,
    delay: Annotated[
        float | None, typer.Option("--delay", parser=duration, metavar="DURATION", help="From now: 90s, 15m, 7d.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option("--run-at", metavar="INSTANT", help="ISO 8601 with a time zone: 2030-01-31T08:00:00Z.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="INSTANT", help="Not started any more after this; ISO 8601.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", parser=duration, metavar="DURATION", help="For one attempt.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="How often it is tried at most.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="At most one live job has this kind and key.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="On whose behalf it runs.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="WORD", help="A word to find it by; may be repeated.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="What its worker must have; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Store a job, and print its id.

    Its kind must be one that the app registers, and its arguments are checked against the handler.

    \b
    Example:
      fencepost jobs enqueue tasks:app tasks.send_welcome '{"user_id": 7}' --delay 5m
    """
    asked: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "run_at": instant_of(run_at, "--run-at"),
        "deadline": instant_of(deadline, "--deadline"),
        "timeout": timeout,
        "max_attempts": max_attempts,
        "key": key,
        "tenant": tenant,
        "tags": tag,
        "labels": labels_of(label),
    }
    given = {name: value for name, value in asked.items() if value is not None}
    app, named = load_app(where), object_of(arguments, "ARGUMENTS") or {}
    try:
        handle = app.enqueue(kind, named, **given)
    finally:
        app.close()
    if as_json:
        write_json({"id": handle.id, "created": handle.created})
    elif handle.created:
        line(handle.id)
    else:
        line(handle.id)
        hint("No second job was made: this one is live and holds the key.")


def retry_one(target: App, job_id: str) -> dict[str, Any]:
    """Retry a job."""
    handle = target.jobs.retry(job_id)
    if handle.created:
        return {"id": handle.id, "retried": True, "said": f"{handle.id} is ready again."}
    return {
        "id": job_id,
        "retried": False,
        "live": handle.id,
        "said": f"{job_id} stays as it is: {handle.id} holds its key and does the work.",
    }


def cancel_one(target: App, job_id: str) -> dict[str, Any]:
    """Cancel a job."""
    if not target.jobs.cancel(job_id):
        job = target.jobs.get(job_id)
        return {"id": job.id, "cancelled": False, "said": f"{job.id} was final already: {job.state}."}
    job = target.jobs.get(job_id)
    done = job.state == State.CANCELLED
    said = f"{job.id} is cancelled." if done else f"{job.id} is {job.state} and will be stopped."
    return {"id": job.id, "cancelled": True, "said": said}


def each(ids: list[str], url: str | None, app: str | None, act: Act, *, as_json: bool) -> None:
    """Act on each of several jobs; one that cannot be acted on does not keep the others from it."""
    done: list[dict[str, Any]] = []
    failed = False
    with opened(url, app) as target:
        for job_id in ids:
            try:
                outcome = act(target, job_id)
            except FencepostError as error:
                failed = True
                outcome = {"id": job_id, "error": str(error)}
            done.append(outcome)
            if not as_json:
                problem(outcome["error"]) if "error" in outcome else line(outcome["said"])
    if as_json:
        write_json([without(outcome, ("said",)) for outcome in done])
    if failed:
        raise typer.Exit(1)


def as_dict(job: Job) -> dict[str, Any]:
    """A job's fields."""
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


def without(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Some fields left out."""
    return {name: value for name, value in values.items() if name not in names}


def _when(job: Job, now: datetime) -> str:
    if job.finished_at is not None:
        return since(job.finished_at, now)
    if job.state == State.RUNNING:
        return since(job.started_at, now)
    return since(job.run_at, now)


def note_of(job: Job, *, says_reason: bool = True) -> str:
    """Why it is where it is, in a few words."""
    parts = []
    if job.cancel_requested and job.state == State.RUNNING:
        parts.append("to be cancelled")
    if job.progress is not None and job.state == State.RUNNING:
        parts.append(f"{job.progress:.0%}" + (f" {job.progress_note}" if job.progress_note else ""))
    if job.waits_for is not None:
        parts.append(f"waits for {job.waits_for}")
    if job.labels and job.is_live:
        parts.append("needs " + ", ".join(f"{name}={value}" for name, value in job.labels.items()))
    if job.reason is not None and says_reason:
        parts.append(str(job.reason))
    if job.last_error and job.state != State.SUCCEEDED:
        parts.append(job.last_error.strip().rsplit("\n", 1)[-1])
    return ": ".join(parts)


def described(job: Job, now: datetime) -> list[tuple[str, str]]:
    """All there is to know of a job, as names and values; an empty value says nothing."""

    def at(value: datetime | None) -> str:
        return "" if value is None else f"{iso(value)} ({since(value, now)})"

    lease = f"{job.lease_owner}, until {at(job.lease_until)}" if job.lease_owner else ""
    progress = "" if job.progress is None else f"{job.progress:.0%} {job.progress_note or ''}"
    return [
        ("id", job.id),
        ("kind", job.kind),
        ("queue", job.queue),
        ("state", f"{job.state}{' (cancellation requested)' if job.cancel_requested and not job.is_final else ''}"),
        ("reason", job.reason or ""),
        ("waits for", job.waits_for or ""),
        ("priority", str(job.priority)),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("key", job.key or ""),
        ("tenant", job.tenant or ""),
        ("tags", ", ".join(job.tags)),
        ("labels", ", ".join(f"{name}={value}" for name, value in job.labels.items())),
        ("created", at(job.created_at)),
        ("due", "" if job.start_at else at(job.run_at)),
        ("starts", _start(job, now)),
        ("deadline", at(job.deadline)),
        ("started", at(job.started_at)),
        ("finished", at(job.finished_at)),
        ("schedule", job.schedule or ""),
        ("scheduled for", at(job.scheduled_for)),
        ("trigger", "" if job.trigger is None else str(job.trigger)),
        ("lease", lease),
        ("progress", progress),
        ("arguments", _json_text(job.arguments)),
        ("result", "" if job.result is None else _json_text(job.result)),
        ("history", "".join(f"{_attempt(attempt, now)}\n" for attempt in job.history)),
        ("last error", f"{job.last_error}\n" if job.last_error else ""),
    ]


def _start(job: Job, now: datetime) -> str:
    if job.start_at is None:
        return ""
    return (
        f"{iso(job.start_at)} ({since(job.start_at, now)}), {job.tolerance or 0:g} s later at most, else {job.on_miss}"
    )


def _attempt(attempt: Attempt, now: datetime) -> str:
    error = f": {attempt.error}" if attempt.error else ""
    return f"attempt {attempt.attempt}, {since(attempt.at, now)}, {attempt.reason}{error} ({attempt.worker})"


def _json_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 72 else json.dumps(value, ensure_ascii=False, indent=2)
