"""`fencepost queues`: the lanes in which jobs wait."""

from __future__ import annotations

from typing import Annotated

import typer

from fencepost.cli.options import AppOption, JsonOption, UrlOption, duration
from fencepost.cli.output import Column, count, line, since, table, write_json
from fencepost.cli.targets import opened
from fencepost.queue import Overflow, QueueSettings
from fencepost.queues import AskedQueue
from fencepost.store import QueueCounts
from fencepost.store.rows import instant

__all__ = ["queues"]

queues = typer.Typer(no_args_is_help=True, help="Look at queues, pause and resume them, say how they treat their jobs.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The queue.", show_default=False)]


@queues.command("list")
def list_queues(url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List queues, with what waits and runs.

    A queue is listed while it has live jobs, is paused or has settings.

    \b
    Example:
      fencepost queues list --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        found = target.store.queue_counts()
        now = instant(target.store.now())
    if as_json:
        write_json(found)
        return
    assert now is not None
    table(
        [
            Column("QUEUE", least=12),
            Column("READY"),
            Column("BLOCKED"),
            Column("SCHEDULED"),
            Column("RUNNING"),
            Column("PAUSED", yields=1),
            Column("SETTINGS", yields=2),
        ],
        [
            (
                queue.name,
                str(queue.ready),
                str(queue.blocked),
                str(queue.scheduled),
                str(queue.running),
                since(queue.paused_since, now),
                _settings(queue),
            )
            for queue in found
        ],
        empty="No queue has live jobs, and none is paused or has settings.",
    )


@queues.command()
def pause(name: NameArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let a queue's jobs wait.

    Nothing in it is claimed until it is resumed. Jobs that run already end as usual.

    \b
    Example:
      fencepost queues pause mail --url sqlite:///jobs.db
    """
    _set(name, url, app, paused=True, as_json=as_json)


@queues.command()
def resume(name: NameArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let a paused queue's jobs be claimed again.

    \b
    Example:
      fencepost queues resume mail --url sqlite:///jobs.db
    """
    _set(name, url, app, paused=False, as_json=as_json)


@queues.command("set")
def set_(
    name: NameArgument,
    fair: Annotated[
        bool | None, typer.Option("--fair/--plain", help="Whether its tenants share it by weight.", show_default=False)
    ] = None,
    max_pending: Annotated[
        int | None, typer.Option(help="How many jobs may wait in it at most; 0: any number.", show_default=False)
    ] = None,
    overflow: Annotated[
        Overflow | None, typer.Option(help="What an enqueue beyond that does.", show_default=False)
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long --overflow wait waits.", show_default=False),
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how a queue treats its jobs.

    What is not named stays as it is. Workers take it over within about a second, other programs when they start. What
    an app declares with app.queue(...) is written again whenever one of its workers starts.

    \b
    Example:
      fencepost queues set mail --fair --max-pending 10000 --overflow wait --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        stored = target.store.queue_settings(name) or QueueSettings()
        asked: AskedQueue = {"fair": stored.fair if fair is None else fair}
        most = stored.max_pending if max_pending is None else (max_pending or None)
        asked["max_pending"] = most
        if most is not None or overflow is not None:
            asked["overflow"] = overflow or stored.overflow
        if wait is not None:
            asked["wait"] = wait
        elif asked.get("overflow") is Overflow.WAIT:
            asked["wait"] = stored.wait / 1_000_000
        target.queues.set(name, **asked)
        queue = target.queues.get(name)
    if as_json:
        write_json(queue)
    else:
        line(f"{name}: {_settings(queue) or 'first come, first served, any number of jobs'}.")


@queues.command()
def weight(
    name: NameArgument,
    tenant: Annotated[str, typer.Argument(help='The tenant; "" stands for jobs without one.', show_default=False)],
    weight: Annotated[
        float | None, typer.Argument(help="From 0.01 to 100; left out: the default, 1.", show_default=False)
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a tenant its weight in a fair queue.

    While both have jobs waiting, a tenant of weight 2 has twice as many started as one of weight 1.

    \b
    Example:
      fencepost queues weight mail acme 2 --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        target.queues.set_weight(name, tenant, weight)
        weights = dict(target.queues.weights(name))
        is_fair = target.queues.get(name).fair
    if as_json:
        write_json({"queue": name, "fair": is_fair, "weights": weights})
        return
    listed = ", ".join(f"{tenant or '(none)'} {weight:g}" for tenant, weight in sorted(weights.items()))
    line(f"{name}: {listed or 'no weights'}; all others 1.")
    if not is_fair:
        line(f"{name} is not fair, so weights mean nothing in it: fencepost queues set {name} --fair")


def _settings(queue: QueueCounts) -> str:
    """What a queue was told, in a few words."""
    told = ["fair"] if queue.fair else []
    if queue.max_pending is not None:
        told.append(f"at most {queue.max_pending:,} pending, {queue.overflow}")
    if queue.shed:
        told.append(f"{queue.shed:,} shed")
    return ", ".join(told)


def _set(name: str, url: str | None, app: str | None, *, paused: bool, as_json: bool) -> None:
    with opened(url, app) as target:
        (target.pause_queue if paused else target.resume_queue)(name)
        ready = sum(queue.ready for queue in target.store.queue_counts() if queue.name == name)
    if as_json:
        write_json({"queue": name, "paused": paused, "ready": ready})
    else:
        line(f"{name} is {'paused' if paused else 'not paused'}; {count(ready, 'job')} ready in it.")
