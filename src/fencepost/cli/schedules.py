"""`fencepost schedules`: look at schedules, make them, and act on them."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from fencepost.app import App
from fencepost.cli.jobs import NOT_LISTED, as_dict, state_style, without
from fencepost.cli.options import AppOption, JsonOption, UrlOption, duration, instant_of, labels_of, object_of
from fencepost.cli.output import Column, count, fields, hint, iso, line, since, span, table, write_json
from fencepost.cli.targets import opened
from fencepost.errors import ConfigurationError
from fencepost.job import OnMiss, Priority
from fencepost.schedule import Misfire, Overlap, Schedule
from fencepost.store import ScheduleFigures
from fencepost.store.batches import MOST_LISTED
from fencepost.store.rows import instant

__all__ = ["schedules"]

schedules = typer.Typer(
    no_args_is_help=True, help="Look at schedules, make, pause and delete them, and make occurrences by hand."
)

_ANY_DATABASE = "sqlite://"  # never opened: instants are worked out without one

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.", show_default=False)]
CronOption = Annotated[
    str | None,
    typer.Option("--cron", metavar="CRON", help="5 fields, 6 with leading seconds, or @hourly, @daily, @weekly, ..."),
]
EveryOption = Annotated[
    float | None, typer.Option("--every", parser=duration, metavar="DURATION", help="An interval: 90s, 15m, 1h30m.")
]
TimezoneOption = Annotated[
    str, typer.Option("--timezone", metavar="ZONE", help="Of --cron: an IANA name such as Asia/Kolkata.")
]
ArgsOption = Annotated[
    str | None, typer.Option("--args", metavar="JSON", help="The handler's arguments as a JSON object; needs --app.")
]


@schedules.command("list")
def list_schedules(url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List schedules, and how their occurrences stand.

    LAST is the state of the occurrence of the latest instant, BACKLOG how many wait and for how long the oldest has.

    \b
    Example:
      fencepost schedules list --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        found = target.schedules.list()
        figures = {one.schedule: one for one in target.schedules.figures()}
        now = instant(target.store.now())
    if as_json:
        write_json([_as_json(schedule, figures.get(schedule.name)) for schedule in found])
        return
    assert now is not None
    table(
        [
            Column("NAME", least=16),
            Column("WHEN", least=9),
            Column("ZONE", least=8, yields=2),
            Column("NEXT"),
            Column("LAST", style=state_style),
            Column("BACKLOG", yields=3),
            Column("NOTE", least=10, yields=1, style=lambda _: "yellow"),
        ],
        [
            (
                schedule.name,
                _when(schedule),
                schedule.timezone,
                since(schedule.next_fire_at, now),
                _last(figures.get(schedule.name)),
                _backlog(figures.get(schedule.name)),
                _note(schedule),
            )
            for schedule in found
        ],
        empty="No schedules.",
    )


@schedules.command()
def show(name: NameArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show all there is to know of a schedule.

    Exit code 1 if it is not there.

    \b
    Example:
      fencepost schedules show nightly --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        schedule = target.schedules.get(name)
        figures = next(iter(target.store.schedule_figures(name)), None)
        now = instant(target.store.now())
    if as_json:
        write_json(_as_json(schedule, figures))
        return
    assert now is not None
    fields((title, value) for title, value in _described(schedule, figures, now) if value)


@schedules.command("next")
def next_instants(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A stored schedule; or say when: --cron, --every.")
    ] = None,
    cron: CronOption = None,
    every: EveryOption = None,
    timezone: TimezoneOption = "UTC",
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="INSTANT", help="Start from here instead of now; ISO 8601 with an offset."),
    ] = None,
    number: Annotated[
        int, typer.Option("--count", metavar="N", min=1, max=MOST_LISTED, help="How many instants at most.")
    ] = 10,
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show when a schedule fires next, in its zone and in UTC.

    Of a stored schedule, or of one that is not saved yet: then no database is needed.

    \b
    Example:
      fencepost schedules next --cron '15 2 * * *' --timezone Asia/Kolkata --count 3
    """
    start = instant_of(after, "--after")
    asked = [cron is not None, every is not None]
    if name is not None and (any(asked) or timezone != "UTC"):
        raise typer.BadParameter("A stored schedule has its own timing: give NAME, or --cron or --every, not both.")
    if name is None and sum(asked) != 1:
        raise typer.BadParameter("Give the NAME of a stored schedule, or one of --cron '15 2 * * *' and --every 90s.")
    paused_at: datetime | None = None
    if name is not None:
        with opened(url, app) as target:
            paused_at = target.schedules.get(name).paused_at
            found = target.schedules.preview(name, after=start, count=number)
            now = instant(target.store.now())
        assert now is not None
    else:
        now = datetime.now(UTC)
        found = _preview(cron, every, timezone, start or now, number)
    if as_json:
        write_json([{"local": at.isoformat(), "utc": at} for at in found])
        return
    zone = getattr(found[0].tzinfo, "key", "UTC") if found else "UTC"
    table(
        [Column(zone), Column("UTC"), Column("WHEN")],
        [(f"{at:%a} {at.isoformat(sep=' ')}", _plain_utc(at), since(at, now)) for at in found],
        empty="It fires no more.",
    )
    if paused_at is not None:
        hint(f"It is paused since {iso(paused_at)}: these are its instants once it is resumed.")


@schedules.command("set")
def set_schedule(
    name: NameArgument,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A kind that the app registers.", show_default=False)],
    app: AppOption = None,
    cron: CronOption = None,
    every: EveryOption = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="INSTANT", help="Once, at this instant; ISO 8601 with an offset.")
    ] = None,
    timezone: TimezoneOption = "UTC",
    arguments: ArgsOption = None,
    misfire: Annotated[
        Misfire, typer.Option("--misfire", metavar="WORD", help=f"Of instants that passed: {', '.join(Misfire)}.")
    ] = Misfire.LATEST,
    max_catch_up: Annotated[
        int | None, typer.Option("--max-catch-up", metavar="N", help="How many catch_up runs. Default: 100.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace", parser=duration, metavar="DURATION", help="Late, not missed, within this. Default: 60s."
        ),
    ] = None,
    jitter: Annotated[
        float | None,
        typer.Option("--jitter", parser=duration, metavar="DURATION", help="The most by which a start is put off."),
    ] = None,
    overlap: Annotated[
        Overlap,
        typer.Option("--overlap", metavar="WORD", help=f"While an earlier one runs: {', '.join(Overlap)}."),
    ] = Overlap.ALLOW,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Share permits with whatever names this key.")
    ] = None,
    slots: Annotated[int | None, typer.Option("--slots", metavar="N", help="How many may run at once.")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", parser=duration, metavar="DURATION", help="Fix the starts: how late one may be at most."
        ),
    ] = None,
    on_miss: Annotated[
        OnMiss | None, typer.Option("--on-miss", metavar="WORD", help=f"Of a missed fixed start: {', '.join(OnMiss)}.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="INSTANT", help="It fires no more after this; ISO 8601.")
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", metavar="N", help="How many occurrences it makes at most.")
    ] = None,
    version: Annotated[int, typer.Option("--version", metavar="N", help="The higher version wins.")] = 0,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="Of its jobs. Default: the handler's.")
    ] = None,
    priority: Annotated[
        Priority | None, typer.Option("--priority", metavar="WORD", help=f"Of its jobs: {', '.join(Priority)}.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="What the worker of its jobs must have; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a schedule, or change it.

    Its kind must be one that the app registers (hence --app), and its arguments are checked against the handler. A
    changed schedule starts from now and is not paused any more. Of a schedule that the code declares, the code's
    definition comes back: declare the change there.

    \b
    Example:
      fencepost schedules set nightly tasks.rollup --app tasks:app --cron '15 2 * * *' --timezone Asia/Kolkata
    """
    of_its_jobs: dict[str, Any] = {"queue": queue, "priority": priority, "labels": labels_of(label)}
    asked: dict[str, Any] = {
        "every": every,
        "at": instant_of(at, "--at"),
        "timezone": timezone,
        "misfire": misfire,
        "max_catch_up": max_catch_up,
        "grace": grace,
        "jitter": jitter,
        "overlap": overlap,
        "key": key,
        "slots": slots,
        "tolerance": tolerance,
        "on_miss": on_miss,
        "until": instant_of(until, "--until"),
        "max_runs": max_runs,
        "version": version,
        "arguments": object_of(arguments, "--args"),
        "options": {word: value for word, value in of_its_jobs.items() if value is not None},
    }
    given = {word: value for word, value in asked.items() if value is not None}
    with _app_of(app, "The kind and its arguments are checked by the app that registers it") as target:
        before = next((one for one in target.schedules.list() if one.name == name), None)
        saved = target.schedules.upsert(name, kind, cron, **given)
        now = instant(target.store.now())
    if as_json:
        write_json(_as_json(saved, None))
        return
    assert now is not None
    line(f"{saved.name} fires {_when(saved)} ({saved.timezone}); next {_at(saved.next_fire_at, now) or 'never'}.")
    _hint_if_spent(saved)
    if before is not None and before.declared_in is not None:
        hint(f"{before.declared_in} declares it: a worker of that program may set it back to what the code says.")


@schedules.command()
def pause(name: NameArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Stop a schedule from firing.

    Its history stays, and what it has made already runs. Instants that pass meanwhile are not made up for.

    \b
    Example:
      fencepost schedules pause nightly --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        changed = target.schedules.pause(name)
    if as_json:
        write_json({"schedule": name, "paused": True, "changed": changed})
    else:
        line(f"{name} is paused." if changed else f"{name} was paused already.")


@schedules.command()
def resume(name: NameArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let a paused schedule fire again, from now on.

    \b
    Example:
      fencepost schedules resume nightly --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        changed = target.schedules.resume(name)
        resumed = target.schedules.get(name)
        now = instant(target.store.now())
    upcoming = resumed.next_fire_at
    if as_json:
        write_json({"schedule": name, "paused": False, "changed": changed, "next_fire_at": upcoming})
        return
    assert now is not None
    said = "is resumed" if changed else "was not paused"
    line(f"{name} {said}; next {_at(upcoming, now) or 'never'}.")
    _hint_if_spent(resumed)


@schedules.command()
def trigger(
    name: NameArgument,
    arguments: ArgsOption = None,
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an occurrence for this very moment, and print its job's id.

    The schedule may be paused. With --args, which the handler checks, --app is needed instead of --url.

    \b
    Example:
      fencepost schedules trigger nightly --url sqlite:///jobs.db
    """
    given = object_of(arguments, "--args")
    if given is None:
        with opened(url, app) as target:
            made = target.schedules.trigger(name)
    else:
        if url is not None:
            raise typer.BadParameter("--args is checked by the handler: give --app tasks:app instead of --url.")
        with _app_of(app, "--args is checked by the handler") as target:
            made = target.schedules.trigger(name, given)
    if as_json:
        write_json({"schedule": name, "id": made.id})
    else:
        line(made.id)


@schedules.command()
def backfill(
    name: NameArgument,
    first: Annotated[
        str, typer.Option("--from", metavar="INSTANT", help="The range's start, included; ISO 8601 with an offset.")
    ],
    last: Annotated[
        str, typer.Option("--to", metavar="INSTANT", help="Its end, included, not in the future; ISO 8601.")
    ],
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the occurrences of a past range that are not there yet, and print their jobs' ids.

    At most 1,000 instants at a time. Repeating it makes nothing twice. A skipped or failed occurrence is there:
    `fencepost occurrences retry` runs it again.

    \b
    Example:
      fencepost schedules backfill nightly --from 2026-01-01T00:00:00Z --to 2026-01-31T23:59:59Z
    """
    start, end = instant_of(first, "--from"), instant_of(last, "--to")
    assert start is not None
    assert end is not None
    if start > end:
        raise typer.BadParameter("--from is later than --to: the range is empty.")
    with opened(url, app) as target:
        made = target.schedules.backfill(name, start, end)
    if as_json:
        write_json({"schedule": name, "ids": [handle.id for handle in made]})
        return
    for handle in made:
        line(handle.id)
    hint(f"{count(len(made), 'occurrence')} made.")


@schedules.command()
def delete(
    name: NameArgument,
    sure: Annotated[bool, typer.Option("--yes", help="Do it: it cannot be undone.")] = False,
    occurrences: Annotated[bool, typer.Option("--occurrences", help="Its final occurrences go too.")] = False,
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a schedule for good.

    Its occurrences stay until they are pruned, unless you say otherwise. A schedule that the code declares comes back
    at a worker's next start: remove it there.

    \b
    Example:
      fencepost schedules delete nightly --yes --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        found = target.schedules.get(name)
        if not sure:
            raise ConfigurationError(
                f"Deleting {name!r} removes its definition and where it stands, and cannot be undone. If that is "
                "meant, say --yes; `fencepost schedules pause` only stops it."
            )
        target.schedules.delete(name, occurrences=occurrences)
    if as_json:
        write_json({"schedule": name, "deleted": True})
    else:
        line(f"{name} is deleted.")
    if found.declared_in is not None:
        hint(f"{found.declared_in} declares it: it comes back when a worker of that program starts.")


@schedules.command()
def prune(
    name: NameArgument,
    keep: Annotated[int, typer.Option("--keep", min=0, metavar="NUMBER", help="How many of the newest stay.")],
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a schedule's final occurrences, but for the newest.

    By age, `fencepost prune` deletes final jobs of all kinds.

    \b
    Example:
      fencepost schedules prune nightly --keep 100 --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        gone = target.schedules.prune(name, keep=keep)
    if as_json:
        write_json({"schedule": name, "deleted": gone})
    else:
        line(f"{count(gone, 'occurrence')} of {name} deleted.")


def _app_of(app: str | None, why: str) -> Any:
    if app is None:
        raise typer.BadParameter(f"{why}: name it with --app tasks:app.")
    return opened(None, app)


def _preview(cron: str | None, every: float | None, timezone: str, after: datetime, number: int) -> list[datetime]:
    app = App(_ANY_DATABASE)
    try:
        return app.schedules.preview(cron=cron, every=every, timezone=timezone, after=after, count=number)
    finally:
        app.close()


def _hint_if_spent(schedule: Schedule) -> None:
    if schedule.next_fire_at is None and schedule.max_runs is not None and schedule.runs >= schedule.max_runs:
        hint(
            f"It has made its {schedule.max_runs} runs. They are counted anew when its timing or --max-runs is changed."
        )


def _as_json(schedule: Schedule, figures: ScheduleFigures | None) -> dict[str, Any]:
    values = {field.name: getattr(schedule, field.name) for field in dataclasses.fields(schedule)}
    if figures is None:
        return values
    return values | {
        "newest": None if figures.newest is None else without(as_dict(figures.newest), NOT_LISTED),
        "pending": figures.pending,
        "running": figures.running,
        "oldest_pending": figures.oldest_pending,
        "oldest_pending_seconds": figures.oldest_pending_seconds,
        "lag_seconds": figures.lag_seconds,
    }


def _when(schedule: Schedule) -> str:
    if schedule.cron is not None:
        return schedule.cron
    if schedule.every is not None:
        return f"every {span(schedule.every, exact=True)}"
    return "?" if schedule.at is None else f"at {_plain_utc(schedule.at)}"


def _plain_utc(at: datetime) -> str:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ") + "Z"


def _last(figures: ScheduleFigures | None) -> str:
    if figures is None or figures.newest is None:
        return ""
    return str(figures.newest.state)


def _backlog(figures: ScheduleFigures | None) -> str:
    if figures is None or not figures.pending:
        return "0"
    return f"{figures.pending} ({span(figures.oldest_pending_seconds or 0)})"


def _note(schedule: Schedule) -> str:
    if schedule.error is not None:
        return "undecodable"
    if schedule.paused_at is not None:
        return "paused" if schedule.paused_reason == "operator" else f"paused: {schedule.paused_reason}"
    return "over" if schedule.next_fire_at is None else ""


def _at(value: datetime | None, now: datetime) -> str:
    return "" if value is None else f"{iso(value)} ({since(value, now)})"


def _starts(schedule: Schedule) -> str:
    if schedule.tolerance is None:
        return ""
    return f"fixed: {schedule.tolerance:g} s late at most, else {schedule.on_miss}"


def _described(schedule: Schedule, figures: ScheduleFigures | None, now: datetime) -> list[tuple[str, str]]:
    paused = f"{_at(schedule.paused_at, now)}, {schedule.paused_reason}" if schedule.paused_at else ""
    most = "" if schedule.max_runs is None else f" of {schedule.max_runs}"
    permits = "" if schedule.overlap == Overlap.ALLOW else f"{schedule.permit_key or 'its own key'}, {schedule.slots}"
    newest = figures.newest if figures is not None else None
    listed = [
        ("name", schedule.name),
        ("kind", schedule.kind),
        ("queue", schedule.queue),
        ("labels", ", ".join(f"{name}={value}" for name, value in schedule.labels.items())),
        ("fires", _when(schedule)),
        ("zone", schedule.timezone),
        ("next", _at(schedule.next_fire_at, now)),
        ("paused", paused),
        ("error", schedule.error or ""),
        ("misfire", f"{schedule.misfire}, grace {schedule.grace:g} s, at most {schedule.max_catch_up} caught up"),
        ("jitter", f"{schedule.jitter:g} s" if schedule.jitter else ""),
        ("overlap", str(schedule.overlap)),
        ("permits", permits),
        ("starts", _starts(schedule)),
        ("until", _at(schedule.until, now)),
        ("runs", f"{schedule.runs}{most}"),
        ("version", str(schedule.version)),
        ("declared in", schedule.declared_in or ""),
        ("created", _at(schedule.created_at, now)),
        ("changed", _at(schedule.updated_at, now)),
        ("arguments", json.dumps(schedule.arguments, ensure_ascii=False)),
    ]
    if newest is not None and figures is not None:
        lag = "" if figures.lag_seconds is None else f", started {figures.lag_seconds:.2f} s after it was due"
        listed.append(("newest", f"{newest.id} for {_at(newest.scheduled_for, now)}: {newest.state}{lag}"))
    if figures is not None:
        listed.append(("backlog", _backlog(figures)))
        listed.append(("running", str(figures.running)))
    return listed
